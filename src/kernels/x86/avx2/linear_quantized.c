/* Linear layers of quantized weights with AVX2 only. */
#include <immintrin.h>

#define IS_VNNI             0
#define dot_four(sum, w, q) ((void)(w), (void)(q), (sum))
#include "kernels/x86/avx2/linear_quantized_body.h"

FOR_EACH_QUANTIZED(LINEAR, avx2)
