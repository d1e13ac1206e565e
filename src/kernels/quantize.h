/* Rows of weights between float32 and the stored types.
 *
 * Q8_0 is written as everybody writes it: the largest magnitude becomes 127. The other block types are searched for the scales
 * (and mins) of least squared error, see quantize_fit.h. The bytes depend on the row alone. */
#ifndef TUTTI_KERNELS_QUANTIZE_H
#define TUTTI_KERNELS_QUANTIZE_H

#include "base/dtype.h"

/* n: elements, a multiple of the type's block. dtype: a weight type. src and dst need no alignment.
 * Where a block of a quantized type holds a NaN or an infinity, its other weights are lost with it. */
void dequantize(float *dst, const void *src, enum dtype dtype, int64_t n);
void quantize(void *dst, const float *src, enum dtype dtype, int64_t n);

#endif
