/* Linear layers with weights of type Q4_0. */
#include "kernels/cuda/linear/linear.h"

LINEAR_KERNELS(q4_0, LINEAR_Q4_0)
