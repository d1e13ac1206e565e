/* Helpers on shorter registers for both versions of vec16.h. */
#ifndef TUTTI_KERNELS_X86_BYTES_H
#define TUTTI_KERNELS_X86_BYTES_H

#include "kernels/x86/x86.h"

#include <immintrin.h>

/* The sum of sixteen signed bytes. */
INLINE int sum_of_bytes(__m128i bytes)
{
    __m128i biased = _mm_xor_si128(bytes, _mm_set1_epi8(-128));
    __m128i sums = _mm_sad_epu8(biased, _mm_setzero_si128());
    return _mm_cvtsi128_si32(_mm_add_epi64(sums, _mm_unpackhi_epi64(sums, sums))) - 16 * 128;
}

/* The sum of (q + 128) r - (q + r) middle over q = p[8..19] and r = p[20..31]. */
INLINE int v_sum_paired(const int8_t *p, int middle)
{
    __m128i low = _mm_loadu_si128((const __m128i *)(p + 8)),
            high = _mm_loadu_si128((const __m128i *)(p + 16));
    __m256i q = _mm256_cvtepi8_epi16(low), r = _mm256_cvtepi8_epi16(_mm_srli_si128(high, 4));
    /* (q + 128 - middle) r - q middle; four numbers of q too many meet zeros. */
    __m256i twelve = _mm256_setr_epi16(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
    __m256i products = _mm256_madd_epi16(_mm256_add_epi16(q, _mm256_set1_epi16((short)(128 - middle))), r);
    __m256i rest = _mm256_madd_epi16(q, _mm256_mullo_epi16(twelve, _mm256_set1_epi16((short)middle)));
    __m256i both = _mm256_sub_epi32(products, rest);
    __m128i sums = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0xB1)));
}

/* The maximum of eight floats, compared as integers. */
INLINE float fold_max_bits(__m256i x)
{
    __m128i a = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4E));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(a, _mm_shuffle_epi32(a, 0xB1))));
}

#endif
