/* Linear layers with weights of type Q4_1. */
#if TUTTI_CUDA_LEVEL == 80
#define LINEAR_FEW_BLOCKS 2 /* with registers for three, 4 bytes are spilled */
#endif
#include "kernels/cuda/linear/linear.h"

LINEAR_KERNELS(q4_1, LINEAR_Q4_1)
