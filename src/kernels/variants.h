/* The names of the kernels of one variant: name_variant, such as rmsnorm_avx2. */
#ifndef TUTTI_KERNELS_VARIANTS_H
#define TUTTI_KERNELS_VARIANTS_H

#include "kernels/float8.h"
#include "kernels/formats.h"

/* M(type of the function, name, variant) for each kernel but those of linear layers. */
#define FOR_EACH_ROW_KERNEL(M, variant)                                                                      \
    M(rmsnorm_fn, rmsnorm, variant)                                                                          \
    M(layernorm_fn, layernorm, variant)                                                                      \
    M(add_fn, add, variant)                                                                                  \
    M(scale_fn, scale, variant)                                                                              \
    M(scale_add_fn, scale_add, variant)                                                                      \
    M(glu_fn, silu_mul, variant)                                                                             \
    M(glu_fn, silu_clamped_mul, variant)                                                                     \
    M(glu_fn, gelu_tanh_mul, variant)                                                                        \
    M(gelu_fn, gelu_tanh, variant)                                                                           \
    M(gelu_fn, gelu_sigmoid, variant)                                                                        \
    M(gelu_fn, gelu_erf, variant)                                                                            \
    M(softcap_fn, softcap, variant)                                                                          \
    M(softmax_fn, softmax, variant)                                                                          \
    M(rope_fn, rope_interleaved, variant)                                                                    \
    M(rope_fn, rope_half, variant)                                                                           \
    M(attention_fn, attention_f16, variant)                                                                  \
    M(attention_fn, attention_bf16, variant)                                                                 \
    M(attention_fn, attention_f32, variant)                                                                  \
    M(attention_fn, attention_int8, variant)                                                                 \
    M(attention_merge_fn, attention_merge, variant)                                                          \
    M(to_int8_fn, to_int8, variant)                                                                          \
    M(divide_fn, divide, variant)                                                                            \
    M(scan_max_fn, scan_max, variant)                                                                        \
    M(sum_exp_fn, sum_exp, variant)                                                                          \
    M(exps_fn, exps, variant)                                                                                \
    M(find_above_fn, find_above, variant)                                                                    \
    M(find_arrival_fn, find_arrival, variant)                                                                \
    M(to_half_fn, to_half, variant)                                                                          \
    M(lora_down_fn, lora_down, variant)                                                                      \
    M(lora_up_fn, lora_up, variant)                                                                          \
    M(lora_down_half_fn, lora_down_half, variant)                                                            \
    M(lora_up_half_fn, lora_up_half, variant)

/* M(name, dtype, variant) for each type of float weights. */
#define FOR_EACH_FLOAT_LINEAR(M, variant)                                                                    \
    M(f32, DTYPE_F32, variant)                                                                               \
    M(f16, DTYPE_F16, variant)                                                                               \
    M(bf16, DTYPE_BF16, variant)                                                                             \
    FOR_EACH_FLOAT8(M, variant)

#define DECLARE_ROW_KERNEL(type, name, variant) type name##_##variant;
#define DECLARE_LINEAR(name, dtype, variant)    linear_fn linear_##name##_##variant;
#define DECLARE_TILE(name, dtype, variant)      tile_fn tile_##name##_##variant;
#define DECLARE_INTEGER_LINEAR(name, dtype, variant)                                                         \
    tile_fn tile_##name##_##variant;                                                                         \
    linear_fn linear_##name##_##variant;
/* All kernels of a variant but the tiles of float weights, which are copies. */
#define DECLARE_VARIANT(variant)                                                                             \
    FOR_EACH_ROW_KERNEL(DECLARE_ROW_KERNEL, variant)                                                         \
    FOR_EACH_FLOAT_LINEAR(DECLARE_LINEAR, variant)                                                           \
    FOR_EACH_QUANTIZED(DECLARE_INTEGER_LINEAR, variant)

/* The same into a table k. */
#define SET_ROW_KERNEL(type, name, variant) k->name = name##_##variant;
#define SET_LINEAR(name, dtype, variant)    k->linear[dtype] = linear_##name##_##variant;
#define SET_TILE(name, dtype, variant)      k->tile[dtype] = tile_##name##_##variant;
#define SET_INTEGER_LINEAR(name, dtype, variant)                                                             \
    k->tile[dtype] = tile_##name##_##variant;                                                                \
    k->linear[dtype] = linear_##name##_##variant;
#define SET_VARIANT(variant)                                                                                 \
    FOR_EACH_ROW_KERNEL(SET_ROW_KERNEL, variant)                                                             \
    FOR_EACH_FLOAT_LINEAR(SET_LINEAR, variant)                                                               \
    FOR_EACH_QUANTIZED(SET_INTEGER_LINEAR, variant)

#endif
