/* Linear layers with weights of type Q2_K. */
#include "kernels/cuda/linear/linear.h"

LINEAR_KERNELS(q2_k, LINEAR_Q2_K)
