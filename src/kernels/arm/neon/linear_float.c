#include "kernels/arm/neon/vec16.h"

enum { MAX_ROWS = 2 }; /* 16 registers of sums, eight of weights */
#define IS_WIDE 1

#include "kernels/vector/linear_float_body.h"

#define FLOAT_TILES(t, dtype)                                                                                \
    FLOAT_TILE(t, dtype, 1)                                                                                  \
    FLOAT_TILE(t, dtype, 2)
#define FLOAT_TILES_TABLE(t) t##_1, t##_2

LINEAR_FLOAT(f32, DTYPE_F32)
LINEAR_FLOAT(f16, DTYPE_F16)
