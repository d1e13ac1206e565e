/* The kernels in plain C: the truth that the fast ones are held against. */
#ifndef TUTTI_KERNELS_REF_REF_H
#define TUTTI_KERNELS_REF_REF_H

#include "base/half.h"
#include "kernels/kernels.h"

#include <math.h>

tile_fn tile_float_ref, tile_q8_0_ref, tile_q4_0_ref;
linear_fn linear_f32_ref, linear_f16_ref, linear_bf16_ref, linear_q8_0_ref, linear_q4_0_ref;
rmsnorm_fn rmsnorm_ref;
add_fn add_ref;
silu_mul_fn silu_mul_ref;
softmax_fn softmax_ref;
rope_fn rope_interleaved_ref, rope_half_ref;
attention_fn attention_f16_ref, attention_f32_ref;
scan_max_fn scan_max_ref;
sum_exp_fn sum_exp_ref;
find_above_fn find_above_ref;

/* The 16 sums of a row in one: lanes i and i + 8, then 4, 2, 1. */
static inline float fold16(float sum[16])
{
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            sum[i] += sum[i + half];
    return sum[0];
}

/* As vmaxps does it: b where either is NaN. */
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

/* exp: x = n ln 2 + r, |r| <= ln 2 / 2; a polynomial of r (minimax, degree 6) times 2^n. Within 2 ulp.
 * 0 below -87.33654 (the smallest normal float), infinity above 88.376, exactly 1 at 0; NaN stays NaN.
 * The twins repeat these operations one by one. */
#define EXP_LOW   (-87.33654f)
#define EXP_HIGH  88.376f
#define EXP_LOG2E 1.44269504f
#define EXP_MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer, which stands in the low bits */
#define EXP_LN2_H 0.693359375f
#define EXP_LN2_L (-2.12194440e-4f)
#define EXP_C2    0.49999994f
#define EXP_C3    0.16666521f
#define EXP_C4    0.04166839f
#define EXP_C5    0.008368745f
#define EXP_C6    0.001381454f

static inline float exp_ref(float x)
{
    float clamped = EXP_LOW > x ? EXP_LOW : x;
    clamped = EXP_HIGH < clamped ? EXP_HIGH : clamped;
    float shifted = fmaf(clamped, EXP_LOG2E, EXP_MAGIC);
    float n = shifted - EXP_MAGIC;
    float r = fmaf(n, -EXP_LN2_H, clamped);
    r = fmaf(n, -EXP_LN2_L, r);
    float p = fmaf(EXP_C6, r, EXP_C5);
    p = fmaf(p, r, EXP_C4);
    p = fmaf(p, r, EXP_C3);
    p = fmaf(p, r, EXP_C2);
    p = fmaf(p, r, 1.0f);
    p = fmaf(p, r, 1.0f);
    float y = p * bits_float((float_bits(shifted) + 127) << 23);
    if (x < EXP_LOW)
        y = 0.0f;
    return x > EXP_HIGH ? (float)INFINITY : y;
}

#endif
