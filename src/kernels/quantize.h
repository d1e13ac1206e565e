/* Rows of weights between float32 and the stored types, bit for bit as ggml's reference quantizers do it. */
#ifndef TUTTI_KERNELS_QUANTIZE_H
#define TUTTI_KERNELS_QUANTIZE_H

#include "base/dtype.h"

/* False: dequantize() reads the type, but quantize() does not write it. */
bool quantizes(enum dtype dtype);

/* n: elements, a multiple of the type's block. dtype: a weight type. src and dst need no alignment. */
void dequantize(float *dst, const void *src, enum dtype dtype, int64_t n);
void quantize(void *dst, const float *src, enum dtype dtype, int64_t n);

#endif
