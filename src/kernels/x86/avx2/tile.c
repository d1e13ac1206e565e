#include "kernels/x86/avx2/vec16.h"

#include "kernels/vector/tile_body.h"
