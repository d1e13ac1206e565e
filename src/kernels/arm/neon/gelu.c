#include "kernels/arm/neon/vec16.h"

#include "kernels/vector/gelu_body.h"
