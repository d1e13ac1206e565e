#include "kernels/arm/neon/vec16.h"

#include "kernels/vector/tile_body.h"
