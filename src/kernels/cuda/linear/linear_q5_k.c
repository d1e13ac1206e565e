/* Linear layers with weights of type Q5_K. */
#include "kernels/cuda/linear/linear.h"

LINEAR_KERNELS(q5_k, LINEAR_Q5_K)
