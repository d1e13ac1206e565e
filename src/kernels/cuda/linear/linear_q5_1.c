/* Linear layers with weights of type Q5_1. */
#include "kernels/cuda/linear/linear.h"

LINEAR_KERNELS(q5_1, LINEAR_Q5_1)
