#include "kernels/x86/avx512/vec16.h"

enum { HAS_SCALED_ROWS = 0 };
#include "kernels/vector/tile_body.h"
