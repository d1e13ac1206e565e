/* Quantizes and dequantizes rows of weights: float32 to and from the stored types.
 *
 * The IQ types and 8-bit floats are only dequantized.
 *
 * Q8_0 is quantized in the usual way: the largest magnitude becomes 127. For MXFP4 the better of two
 * exponents is taken: the usual one, and the next. For the other block
 * types the scales (and mins) of least squared error are searched, see quantize_fit.h. The bytes
 * depend only on the row. */
#ifndef TUTTI_KERNELS_QUANTIZE_H
#define TUTTI_KERNELS_QUANTIZE_H

#include "base/dtype.h"

/* n: elements, a multiple of the type's block. dtype: a weight type. src and dst need no alignment.
 * In a block of a quantized type with a NaN or an infinity the other weights are lost too. */
void dequantize(float *dst, const void *src, enum dtype dtype, int64_t n);
void quantize(void *dst, const float *src, enum dtype dtype, int64_t n);

/* Index of the first of n weights that is not finite, or of an 8-bit float whose scale is 2^100 or more; -1:
 * none. Linear layers compute other results with those. */
int64_t dequantize_find_nan(const void *src, enum dtype dtype, int64_t n);

/* The same with a weight for the squared error of each element: [n], finite and not negative. Block
 * types other than Q8_0 then make the weighted errors small. NULL: all the same. */
void quantize_weighted(void *dst, const float *src, enum dtype dtype, int64_t n, const float *weights);

/* Whether rows can be quantized to the type; false for those that are only read. */
bool quantize_can(enum dtype dtype);

#endif
