#include "kernels/x86/avx2/vec16.h"

enum { HAS_SCALED_ROWS = 1 };
#include "kernels/vector/tile_body.h"
