/* The exponential function that every kernel uses: its constants, and the operations in plain C.
 * Also compiled for devices that have no C library, as gelu.h, silu.h and softcap.h are. */
#ifndef TUTTI_KERNELS_REF_EXP_H
#define TUTTI_KERNELS_REF_EXP_H

#include "base/half.h"

/* exp: x = n ln 2 + r, |r| <= ln 2 / 2; a polynomial of r (minimax, degree 6) times 2^n. Within 2
 * ulp. 0 below -87.33654 (the smallest normal float), infinity above 88.376, exactly 1 at 0; NaN
 * stays NaN. The optimized kernels repeat these operations one by one. */
#define EXP_LOW   (-87.33654f)
#define EXP_HIGH  88.376f
#define EXP_LOG2E 1.44269504f
#define EXP_MAGIC 12582912.0f /* 1.5 * 2^23: adding it rounds to an integer, which is in the low bits */
#define EXP_LN2_H 0.693359375f
#define EXP_LN2_L (-2.12194440e-4f)
#define EXP_C2    0.49999994f
#define EXP_C3    0.16666521f
#define EXP_C4    0.04166839f
#define EXP_C5    0.008368745f
#define EXP_C6    0.001381454f

/* Margin of find_arrival(): more than the relative error of exp() of a product rounded twice,
 * unless it is below 2^-53. */
#define ARRIVAL_MARGIN 1.0001f

/* exp of a number from -88 to EXP_HIGH, or NaN; below EXP_LOW: less than 2^-126. */
static inline float exp_in_range_ref(float clamped)
{
    float shifted = __builtin_fmaf(clamped, EXP_LOG2E, EXP_MAGIC);
    float n = shifted - EXP_MAGIC;
    float r = __builtin_fmaf(n, -EXP_LN2_H, clamped);
    r = __builtin_fmaf(n, -EXP_LN2_L, r);
    float p = __builtin_fmaf(EXP_C6, r, EXP_C5);
    p = __builtin_fmaf(p, r, EXP_C4);
    p = __builtin_fmaf(p, r, EXP_C3);
    p = __builtin_fmaf(p, r, EXP_C2);
    p = __builtin_fmaf(p, r, 1.0f);
    p = __builtin_fmaf(p, r, 1.0f);
    return p * bits_float((float_bits(shifted) + 127) << 23);
}

static inline float exp_ref(float x)
{
    float clamped = EXP_LOW > x ? EXP_LOW : x;
    float y = exp_in_range_ref(EXP_HIGH < clamped ? EXP_HIGH : clamped);
    if (x < EXP_LOW)
        y = 0.0f;
    return x > EXP_HIGH ? __builtin_inff() : y;
}

#endif
