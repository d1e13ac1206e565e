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

/* The maximum of eight floats, compared as integers. */
INLINE float fold_max_bits(__m256i x)
{
    __m128i a = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    a = _mm_max_epi32(a, _mm_shuffle_epi32(a, 0x4E));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_max_epi32(a, _mm_shuffle_epi32(a, 0xB1))));
}

#endif
