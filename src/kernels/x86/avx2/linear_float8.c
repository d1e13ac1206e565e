#include "kernels/x86/avx2/vec16.h"

enum {
    MAX_ROWS = 2, /* eight registers of sums, four of weights */
    WIDE_ROWS = 6,
    WIDE_HALVES = 1, /* twelve of sums, two of weights */
};

/* Into registers: the compiler would fold a load into each product. */
INLINE vec16 v_load_once(const float *p)
{
    vec16 x = v_load(p);
    __asm__("" : "+x"(x.a), "+x"(x.b));
    return x;
}

/* The numbers in the upper bytes of sixteen words as floats, times 2^-8. */
INLINE vec16 expand(__m256i words)
{
    __m256i halves = _mm256_and_si256(_mm256_srai_epi16(words, 1), _mm256_set1_epi16((short)0xBF80));
    return (vec16){ _mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                    _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)) };
}

/* Sixteen rows of two columns. */
INLINE void load_pairs(vec16 *even, vec16 *odd, const uint8_t *p)
{
    __m256i words = _mm256_load_si256((const __m256i *)p);
    *even = expand(_mm256_slli_epi16(words, 8));
    *odd = expand(words);
}

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
    FLOAT8_TILE(t, dtype, 2)
#define FLOAT8_TILES_TABLE(t) t##_1, t##_2
#define WIDE_TILES(t, dtype)                                                                                 \
    WIDE_TILE(t, dtype, 1)                                                                                   \
    WIDE_TILE(t, dtype, 2)                                                                                   \
    WIDE_TILE(t, dtype, 3)                                                                                   \
    WIDE_TILE(t, dtype, 4)                                                                                   \
    WIDE_TILE(t, dtype, 5)                                                                                   \
    WIDE_TILE(t, dtype, 6)
#define WIDE_TILES_TABLE(t) t##_1, t##_2, t##_3, t##_4, t##_5, t##_6

#include "kernels/vector/linear_float8_body.h"
