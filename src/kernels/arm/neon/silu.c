#include "kernels/arm/neon/vec16.h"

#include "kernels/vector/silu_body.h"
