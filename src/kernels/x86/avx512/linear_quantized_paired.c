/* Linear layers of weights of four bits, on processors with four units of 512 bits of which two multiply. */
enum { IS_SPLIT = 0, IS_PAIRED = 1 };
#include "kernels/x86/avx512/linear_quantized_body.h"

FOR_EACH_PAIRED(LINEAR, avx512paired)
FOR_EACH_PAIRED(PAIRED_TILE, avx512paired)
