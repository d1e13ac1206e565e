/* Linear layers with weights of type Q4_K. */
#include "kernels/cuda/linear/linear.h"

LINEAR_KERNELS(q4_k, LINEAR_Q4_K)
