/* Linear layers with weights of type Q5_0. */
#include "kernels/cuda/linear/linear.h"

LINEAR_KERNELS(q5_0, LINEAR_Q5_0)
