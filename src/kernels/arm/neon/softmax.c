#include "kernels/arm/neon/vec16.h"

#include "kernels/vector/softmax_body.h"
