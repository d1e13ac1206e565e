/* Linear layers with weights of type MXFP4. */
#include "kernels/cuda/linear/linear.h"

LINEAR_KERNELS(mxfp4, LINEAR_MXFP4)
