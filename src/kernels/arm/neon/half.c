#include "kernels/arm/neon/vec16.h"

#include "kernels/vector/half_body.h"
