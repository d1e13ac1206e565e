#include "kernels/x86/x86.h"

#include <immintrin.h>

uint64_t measure_read_avx512(const uint8_t *bytes, size_t n)
{
    const __m512i *at = (const __m512i *)bytes;
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i < n / 256; i++, at += 4) {
        for (int line = 0; line < 4; line++)
            _mm_prefetch((const char *)(at + line) + 8192, _MM_HINT_T0);
        a = _mm512_xor_si512(a, at[0]);
        b = _mm512_xor_si512(b, at[1]);
        c = _mm512_xor_si512(c, at[2]);
        d = _mm512_xor_si512(d, at[3]);
    }
    a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
    return (uint64_t)_mm512_reduce_or_epi64(a);
}

uint64_t measure_int8_avx512(int64_t rounds)
{
    __m512i acc[16], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
    for (int i = 0; i < 16; i++)
        acc[i] = _mm512_set1_epi32(i);
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < 16; i++)
            acc[i] = _mm512_dpbusd_epi32(acc[i], a, b);
    for (int i = 1; i < 16; i++)
        acc[0] = _mm512_add_epi32(acc[0], acc[i]);
    return (uint64_t)_mm512_reduce_or_epi32(acc[0]);
}

uint64_t measure_f32_avx512(int64_t rounds)
{
    __m512 acc[16], a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);
    for (int i = 0; i < 16; i++)
        acc[i] = _mm512_set1_ps((float)i);
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < 16; i++)
            acc[i] = _mm512_fmadd_ps(acc[i], a, b);
    for (int i = 1; i < 16; i++)
        acc[0] = _mm512_add_ps(acc[0], acc[i]);
    return (uint64_t)_mm512_reduce_or_epi32(_mm512_castps_si512(acc[0]));
}
