#include "kernels/arm/neon/vec16.h"

#include "kernels/vector/norm_body.h"
