/* Linear layers with weights of type Q4_1. */
#include "kernels/cuda/linear/linear.h"

LINEAR_KERNELS(q4_1, LINEAR_Q4_1)
