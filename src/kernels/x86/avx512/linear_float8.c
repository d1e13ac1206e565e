#include "kernels/x86/avx512/vec16.h"

enum { MAX_ROWS = 12, WIDE_ROWS = 12, WIDE_HALVES = 2 }; /* 24 registers of sums */

INLINE vec16 v_load_once(const float *p)
{
    return v_load(p);
}

/* The numbers in the upper bytes of sixteen words as floats, times 2^-8. */
INLINE vec16 expand(__m256i words)
{
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(words, 1), _mm256_set1_epi16((short)0xBF80)));
}

/* Sixteen rows of two columns. */
INLINE void load_pairs(vec16 *even, vec16 *odd, const uint8_t *p)
{
    __m256i words = _mm256_load_si256((const __m256i *)p);
    *even = expand(_mm256_slli_epi16(words, 8));
    *odd = expand(words);
}

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
