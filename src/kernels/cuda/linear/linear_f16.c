/* Linear layers with weights of type F16. */
#include "kernels/cuda/linear/linear.h"

LINEAR_KERNELS(f16, LINEAR_F16)
