#include "kernels/x86/avx2/vec16.h"

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

#define IS_WIDE 1
#include "kernels/vector/linear_float8_body.h"
