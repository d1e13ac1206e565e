/* Declares the reference kernels in plain C, with which the optimized ones are compared. */
#ifndef TUTTI_KERNELS_REF_REF_H
#define TUTTI_KERNELS_REF_REF_H

#include "base/half.h"
#include "kernels/float8.h"
#include "kernels/formats.h"
#include "kernels/ref/exp.h"

#include <math.h>

tile_fn tile_float_ref, tile_bf16_ref;
linear_fn linear_f32_ref, linear_f16_ref, linear_bf16_ref;
#define DECLARE_LINEAR(name, dtype)                                                                          \
    tile_fn tile_##name##_ref;                                                                               \
    linear_fn linear_##name##_ref;
FOR_EACH_QUANTIZED(DECLARE_LINEAR)
#undef DECLARE_LINEAR
#define DECLARE_LINEAR(name, dtype) linear_fn linear_##name##_ref;
FOR_EACH_FLOAT8(DECLARE_LINEAR)
#undef DECLARE_LINEAR
rmsnorm_fn rmsnorm_ref;
layernorm_fn layernorm_ref;
add_fn add_ref;
scale_add_fn scale_add_ref;
glu_fn silu_mul_ref, silu_clamped_mul_ref, gelu_tanh_mul_ref;
gelu_fn gelu_tanh_ref, gelu_sigmoid_ref, gelu_erf_ref;
softcap_fn softcap_ref;
softmax_fn softmax_ref;
rope_fn rope_interleaved_ref, rope_half_ref;
attention_fn attention_f16_ref, attention_f32_ref, attention_int8_ref;
attention_merge_fn attention_merge_ref;
to_int8_fn to_int8_ref;
divide_fn divide_ref;
scan_max_fn scan_max_ref;
sum_exp_fn sum_exp_ref;
find_above_fn find_above_ref;
find_arrival_fn find_arrival_ref;
to_half_fn to_half_ref;
lora_down_fn lora_down_ref;
lora_up_fn lora_up_ref;
lora_down_half_fn lora_down_half_ref;
lora_up_half_fn lora_up_half_ref;

/* Largest |q| of a query of n dimensions over int8 keys: no sum of n products overflows, and q fits
 * 16 bits. */
#define ATTENTION_LIMIT(n) (INT32_MAX / 127 / (n) < 32767 ? INT32_MAX / 127 / (n) : 32767)

/* The sum of the 16 partial sums of a row: lanes i and i + 8, then 4, 2, 1. */
static inline float fold16(float sum[16])
{
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            sum[i] += sum[i + half];
    return sum[0];
}

/* As vmaxps: b if either is NaN. */
static inline float max_of(float a, float b)
{
    return a > b ? a : b;
}

static inline float fold16_max(float x[16])
{
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            x[i] = max_of(x[i], x[i + half]);
    return x[0];
}

#endif
