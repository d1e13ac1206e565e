#include "kernels/arm/neon/vec16.h"

#include "kernels/vector/rope_body.h"
