#include "kernels/x86/x86.h"

#include <immintrin.h>

uint64_t measure_read_sse2(const uint8_t *bytes, size_t n)
{
    const __m128i *at = (const __m128i *)bytes;
    __m128i a = _mm_setzero_si128(), b = a, c = a, d = a;
    for (size_t i = 0; i < n / 64; i++, at += 4) {
        a = _mm_xor_si128(a, at[0]);
        b = _mm_xor_si128(b, at[1]);
        c = _mm_xor_si128(c, at[2]);
        d = _mm_xor_si128(d, at[3]);
    }
    a = _mm_xor_si128(_mm_xor_si128(a, b), _mm_xor_si128(c, d));
    return (uint64_t)_mm_cvtsi128_si64(a);
}
