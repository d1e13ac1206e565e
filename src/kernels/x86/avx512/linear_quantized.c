/* Linear layers of quantized weights, on processors with units of 512 bits. */
enum { IS_SPLIT = 0, IS_PAIRED = 0 };
#include "kernels/x86/avx512/linear_quantized_body.h"

FOR_EACH_QUANTIZED(LINEAR, avx512)
