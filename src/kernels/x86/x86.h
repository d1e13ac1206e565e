/* Declares the kernels for x86-64. A file of one instruction set is compiled with its flags and
 * called only on processors that have it; nothing of it is inlined into code without those flags. */
#ifndef TUTTI_KERNELS_X86_X86_H
#define TUTTI_KERNELS_X86_X86_H

#include "kernels/float8.h"
#include "kernels/formats.h"

#include <stddef.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16") /* before loops whose arrays must live in registers */

/* The number of lanes, of sixteen, that a row of n elements fills from element i on. */
INLINE int lanes_left(int64_t i, int64_t n)
{
    return n - i < 16 ? (int)(n - i) : 16;
}

/* How far ahead linear layers prefetch their weights, in bytes: by processor, set by kernels_init(). */
extern size_t x86_prefetch_bytes;

linear_fn linear_f32_avx2, linear_f16_avx2, linear_bf16_avx2;
linear_fn linear_f32_avx512, linear_f16_avx512, linear_bf16_avx512, linear_bf16_avx512bf16;
#define DECLARE_LINEAR(name, dtype)                                                                          \
    tile_fn tile_##name##_avx2, tile_##name##_avx512;                                                        \
    linear_fn linear_##name##_avx2, linear_##name##_avx512;
FOR_EACH_QUANTIZED(DECLARE_LINEAR)
#undef DECLARE_LINEAR
#define DECLARE_LINEAR(name, dtype) linear_fn linear_##name##_avx2, linear_##name##_avx512;
FOR_EACH_FLOAT8(DECLARE_LINEAR)
#undef DECLARE_LINEAR
rmsnorm_fn rmsnorm_avx2, rmsnorm_avx512;
layernorm_fn layernorm_avx2, layernorm_avx512;
add_fn add_avx2, add_avx512;
scale_add_fn scale_add_avx2, scale_add_avx512;
glu_fn silu_mul_avx2, silu_mul_avx512, gelu_tanh_mul_avx2, gelu_tanh_mul_avx512;
glu_fn silu_clamped_mul_avx2, silu_clamped_mul_avx512;
gelu_fn gelu_tanh_avx2, gelu_sigmoid_avx2, gelu_tanh_avx512, gelu_sigmoid_avx512;
gelu_fn gelu_erf_avx2, gelu_erf_avx512;
softcap_fn softcap_avx2, softcap_avx512;
softmax_fn softmax_avx2, softmax_avx512;
rope_fn rope_interleaved_avx2, rope_half_avx2, rope_interleaved_avx512, rope_half_avx512;
attention_fn attention_f16_avx2, attention_f32_avx2, attention_int8_avx2;
attention_fn attention_f16_avx512, attention_f32_avx512, attention_int8_avx512;
attention_merge_fn attention_merge_avx2, attention_merge_avx512;
to_int8_fn to_int8_avx2, to_int8_avx512;
divide_fn divide_avx2, divide_avx512;
scan_max_fn scan_max_avx2, scan_max_avx512;
sum_exp_fn sum_exp_avx2, sum_exp_avx512;
find_above_fn find_above_avx2, find_above_avx512;
find_arrival_fn find_arrival_avx2, find_arrival_avx512;
to_half_fn to_half_avx2, to_half_avx512;
lora_down_fn lora_down_avx2, lora_down_avx512;
lora_up_fn lora_up_avx2, lora_up_avx512;
lora_down_half_fn lora_down_half_avx2, lora_down_half_avx512;
lora_up_half_fn lora_up_half_avx2, lora_up_half_avx512;

/* The loops of measure.h, and the operations of one round. n: a multiple of 4096. */
enum {
    MEASURE_INT8_AVX512_OPS = 16 * 64 * 2,
    MEASURE_F32_AVX512_OPS = 16 * 16 * 2,
    MEASURE_INT8_AVX2_OPS = 8 * 32 * 2,
    MEASURE_F32_AVX2_OPS = 12 * 8 * 2,
};
uint64_t measure_read_sse2(const uint8_t *bytes, size_t n);
uint64_t measure_read_avx2(const uint8_t *bytes, size_t n);
uint64_t measure_read_avx512(const uint8_t *bytes, size_t n);
uint64_t measure_int8_avx2(int64_t rounds);
uint64_t measure_int8_avx512(int64_t rounds);
uint64_t measure_f32_avx2(int64_t rounds);
uint64_t measure_f32_avx512(int64_t rounds);

#endif
