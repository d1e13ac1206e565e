/* Linear layers of quantized weights, on processors that execute 512 bits as two times 256. */
enum { IS_SPLIT = 1, IS_PAIRED = 1 };
#include "kernels/x86/avx512/linear_quantized_body.h"

FOR_EACH_QUANTIZED(LINEAR, avx512split)
FOR_EACH_PAIRED(PAIRED_TILE, avx512split)
