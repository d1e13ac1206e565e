/* Linear layers with weights of type Q8_0. */
#include "kernels/cuda/linear/linear.h"

LINEAR_KERNELS(q8_0, LINEAR_Q8_0)
