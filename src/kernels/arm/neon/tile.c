#include "kernels/arm/neon/vec16.h"

enum { HAS_SCALED_ROWS = 0 };
#include "kernels/vector/tile_body.h"
