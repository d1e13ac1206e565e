/* Linear layers with weights of type Q3_K. */
#include "kernels/cuda/linear/linear.h"

LINEAR_KERNELS(q3_k, LINEAR_Q3_K)
