#include "kernels/x86/avx2/vec16.h"

enum {
    MAX_TILES = 8,
    WIDE_ROWS = 6,
    WIDE_HALVES = 1, /* twelve of sums, two of weights */
};

struct places {
    __m256i a, b; /* lanes 0..7, 8..15 */
};

INLINE struct places load_places(const uint8_t *p)
{
    return (struct places){ _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)),
                            _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8))) };
}

INLINE vec16 pick_scales(const float *scales, struct places places)
{
    __m256 all = _mm256_load_ps(scales);
    return (vec16){ _mm256_permutevar8x32_ps(all, places.a), _mm256_permutevar8x32_ps(all, places.b) };
}

#define FLOAT8_TILES(t, dtype)                                                                               \
    FLOAT8_TILE(t, dtype, 1)                                                                                 \
    FLOAT8_TILE(t, dtype, 2)                                                                                 \
    FLOAT8_HALVES(t, dtype, 3)                                                                               \
    FLOAT8_HALVES(t, dtype, 4)                                                                               \
    FLOAT8_HALVES(t, dtype, 5)                                                                               \
    FLOAT8_HALVES(t, dtype, 6)
#define FLOAT8_TILES_TABLE(t) t##_1, t##_2, t##_3, t##_4, t##_5, t##_6
/* More than MAX_TILES tiles have five or six rows. */
#define WIDE_TILES(t, dtype)                                                                                 \
    WIDE_TILE(t, dtype, 5)                                                                                   \
    WIDE_TILE(t, dtype, 6)
#define WIDE_TILES_TABLE(t) NULL, NULL, NULL, NULL, t##_5, t##_6

#include "kernels/vector/linear_float8_body.h"
