#include "kernels/x86/avx512/vec16.h"

enum { MAX_TILES = 1 };
#define IS_WIDE 0

struct places {
    __m512i lanes;
};

INLINE struct places load_places(const uint8_t *p)
{
    return (struct places){ _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)) };
}

INLINE vec16 pick_scales(const float *scales, struct places places)
{
    return _mm512_permutexvar_ps(places.lanes, _mm512_castps256_ps512(_mm256_load_ps(scales)));
}

#define FLOAT8_TILES(t, dtype)                                                                               \
    FLOAT8_TILE(t, dtype, 1)                                                                                 \
    FLOAT8_TILE(t, dtype, 2)                                                                                 \
    FLOAT8_TILE(t, dtype, 3)                                                                                 \
    FLOAT8_TILE(t, dtype, 4)                                                                                 \
    FLOAT8_TILE(t, dtype, 5)                                                                                 \
    FLOAT8_TILE(t, dtype, 6)                                                                                 \
    FLOAT8_TILE(t, dtype, 7)                                                                                 \
    FLOAT8_TILE(t, dtype, 8)                                                                                 \
    FLOAT8_TILE(t, dtype, 9)                                                                                 \
    FLOAT8_TILE(t, dtype, 10)                                                                                \
    FLOAT8_TILE(t, dtype, 11)                                                                                \
    FLOAT8_TILE(t, dtype, 12)
#define FLOAT8_TILES_TABLE(t)                                                                                \
    t##_1, t##_2, t##_3, t##_4, t##_5, t##_6, t##_7, t##_8, t##_9, t##_10, t##_11, t##_12
#define WIDE_TILES(t, dtype)                                                                                 \
    WIDE_TILE(t, dtype, 1)                                                                                   \
    WIDE_TILE(t, dtype, 2)                                                                                   \
    WIDE_TILE(t, dtype, 3)                                                                                   \
    WIDE_TILE(t, dtype, 4)                                                                                   \
    WIDE_TILE(t, dtype, 5)                                                                                   \
    WIDE_TILE(t, dtype, 6)                                                                                   \
    WIDE_TILE(t, dtype, 7)                                                                                   \
    WIDE_TILE(t, dtype, 8)                                                                                   \
    WIDE_TILE(t, dtype, 9)                                                                                   \
    WIDE_TILE(t, dtype, 10)                                                                                  \
    WIDE_TILE(t, dtype, 11)                                                                                  \
    WIDE_TILE(t, dtype, 12)
#define WIDE_TILES_TABLE(t)                                                                                  \
    t##_1, t##_2, t##_3, t##_4, t##_5, t##_6, t##_7, t##_8, t##_9, t##_10, t##_11, t##_12

#include "kernels/vector/linear_float8_body.h"
