#include "kernels/x86/avx512/vec16.h"

enum { MAX_ROWS = 12 }; /* 24 registers of sums */
#define IS_WIDE 0

#include "kernels/vector/linear_float_body.h"

#define FLOAT_TILES(t, dtype)                                                                                \
    FLOAT_TILE(t, dtype, 1)                                                                                  \
    FLOAT_TILE(t, dtype, 2)                                                                                  \
    FLOAT_TILE(t, dtype, 3)                                                                                  \
    FLOAT_TILE(t, dtype, 4)                                                                                  \
    FLOAT_TILE(t, dtype, 5)                                                                                  \
    FLOAT_TILE(t, dtype, 6)                                                                                  \
    FLOAT_TILE(t, dtype, 7)                                                                                  \
    FLOAT_TILE(t, dtype, 8)                                                                                  \
    FLOAT_TILE(t, dtype, 9)                                                                                  \
    FLOAT_TILE(t, dtype, 10)                                                                                 \
    FLOAT_TILE(t, dtype, 11)                                                                                 \
    FLOAT_TILE(t, dtype, 12)
#define FLOAT_TILES_TABLE(t)                                                                                 \
    t##_1, t##_2, t##_3, t##_4, t##_5, t##_6, t##_7, t##_8, t##_9, t##_10, t##_11, t##_12

LINEAR_FLOAT(f32, DTYPE_F32)
LINEAR_FLOAT(f16, DTYPE_F16)
