/* The quantizers of the block types: one file each for the 32-element types and the K-quants. */
#ifndef TUTTI_KERNELS_QUANTIZE_BLOCKS_H
#define TUTTI_KERNELS_QUANTIZE_BLOCKS_H

#include "base/dtype.h"
#include "base/half.h"

#include <string.h>

static inline void store_half(uint8_t *dst, uint16_t half)
{
    memcpy(dst, &half, 2);
}

/* The nearest finite half. */
static inline uint16_t finite_half(float x)
{
    return float_to_half(x > 65504 ? 65504 : x < -65504 ? -65504 : x);
}

/* Copies a block of 32 or 256 weights for the search: multiplied by a power of two so that the
 * largest magnitude is below 1, with NaN replaced by 0 and infinities by the largest float.
 * Returns the exponent of the power of two that undoes the scaling. */
int quantize_normalize(float *dst, const float *src, int n);

/* Copies the weights of a block's squared errors, relative to their mean and at least 2^-20 of it.
 * src NULL, or all 0: all 1. */
void quantize_weights(float *dst, const float *src, int n);

/* Q4_0, Q4_1, Q5_0, Q5_1. weights: of the squared errors, as for quantize_weighted(). */
void quantize_small(uint8_t *dst, const float *x, enum dtype dtype, const float *weights);

void quantize_mxfp4(uint8_t *dst, const float *x, const float *weights);

/* Q2_K to Q6_K. */
void quantize_k(uint8_t *dst, const float *x, enum dtype dtype, const float *weights);

#endif
