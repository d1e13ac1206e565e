#include "kernels/x86/vec16_avx512.h"

#include "kernels/x86/linear_float_body.h"

#define FLOAT_TILES_WIDE(t, dtype)                                                                           \
    FLOAT_TILE(t##_1x5, dtype, 1, 5)                                                                         \
    FLOAT_TILE(t##_1x6, dtype, 1, 6)                                                                         \
    FLOAT_TILE(t##_1x7, dtype, 1, 7)                                                                         \
    FLOAT_TILE(t##_1x8, dtype, 1, 8)                                                                         \
    FLOAT_TILE(t##_1x9, dtype, 1, 9)                                                                         \
    FLOAT_TILE(t##_1x10, dtype, 1, 10)                                                                       \
    FLOAT_TILE(t##_1x11, dtype, 1, 11)                                                                       \
    FLOAT_TILE(t##_1x12, dtype, 1, 12)                                                                       \
    FLOAT_TILE(t##_1x13, dtype, 1, 13)                                                                       \
    FLOAT_TILE(t##_1x14, dtype, 1, 14)                                                                       \
    FLOAT_TILE(t##_1x15, dtype, 1, 15)                                                                       \
    FLOAT_TILE(t##_1x16, dtype, 1, 16)
#define FLOAT_TILES_TABLE(t)                                                                                 \
    {                                                                                                        \
        NULL, t##_1x1, t##_1x2, t##_1x3, t##_1x4, t##_1x5, t##_1x6, t##_1x7, t##_1x8, t##_1x9, t##_1x10,     \
            t##_1x11, t##_1x12, t##_1x13, t##_1x14, t##_1x15, t##_1x16                                       \
    }

LINEAR_FLOAT(f32, DTYPE_F32)
LINEAR_FLOAT(f16, DTYPE_F16)
LINEAR_FLOAT(bf16, DTYPE_BF16)
