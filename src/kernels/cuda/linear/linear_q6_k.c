/* Linear layers with weights of type Q6_K. */
#include "kernels/cuda/linear/linear.h"

LINEAR_KERNELS(q6_k, LINEAR_Q6_K)
