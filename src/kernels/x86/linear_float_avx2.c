#include "kernels/x86/vec16_avx2.h"

#include "kernels/x86/linear_float_body.h"

/* Four rows: eight registers of sums, two of weights. */
#define FLOAT_TILES_WIDE(t, dtype)
#define FLOAT_TILES_TABLE(t)                                                                                 \
    {                                                                                                        \
        NULL, t##_1x1, t##_1x2, t##_1x3, t##_1x4                                                             \
    }

LINEAR_FLOAT(f32, DTYPE_F32)
LINEAR_FLOAT(f16, DTYPE_F16)
LINEAR_FLOAT(bf16, DTYPE_BF16)
