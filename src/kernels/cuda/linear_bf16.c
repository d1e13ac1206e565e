/* Linear layers with weights of type BF16. */
#include "kernels/cuda/linear.h"

LINEAR_KERNELS(bf16, LINEAR_BF16)
