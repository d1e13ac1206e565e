/* Declares the reference kernels in plain C, with which the optimized ones are compared. */
#ifndef TUTTI_KERNELS_REF_REF_H
#define TUTTI_KERNELS_REF_REF_H

#include "base/half.h"
#include "kernels/ref/exp.h"
#include "kernels/variants.h"

#include <math.h>

tile_fn tile_float_ref, tile_bf16_ref;
DECLARE_VARIANT(ref)

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
