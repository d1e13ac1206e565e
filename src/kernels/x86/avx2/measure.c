#include "kernels/x86/x86.h"

#include <immintrin.h>

uint64_t measure_read_avx2(const uint8_t *bytes, size_t n)
{
    const __m256i *at = (const __m256i *)bytes;
    __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
    for (size_t i = 0; i < n / 128; i++, at += 4) {
        _mm_prefetch((const char *)at + 8192, _MM_HINT_T0);
        _mm_prefetch((const char *)at + 8192 + 64, _MM_HINT_T0);
        a = _mm256_xor_si256(a, at[0]);
        b = _mm256_xor_si256(b, at[1]);
        c = _mm256_xor_si256(c, at[2]);
        d = _mm256_xor_si256(d, at[3]);
    }
    a = _mm256_xor_si256(_mm256_xor_si256(a, b), _mm256_xor_si256(c, d));
    return (uint64_t)_mm256_extract_epi64(a, 0);
}

/* Products of 4-bit weights with 8-bit inputs without saturation: eight vpmaddubsw, added in 16 bits, are
 * widened by one vpmaddwd. Four chains, each a round, hide the latency. */
uint64_t measure_int8_avx2(int64_t rounds)
{
    enum { CHAINS = 4, PRODUCTS = 8 };
    __m256i acc[CHAINS], narrow[CHAINS], a = _mm256_set1_epi8(15), b = _mm256_set1_epi8(-127);
    const __m256i ones = _mm256_set1_epi16(1);
    for (int i = 0; i < CHAINS; i++)
        acc[i] = _mm256_set1_epi32(i);
    for (int64_t r = 0; r < rounds; r += CHAINS) {
        for (int i = 0; i < CHAINS; i++) {
            __asm__("" : "+x"(a)); /* keeps the product inside the loop */
            narrow[i] = _mm256_maddubs_epi16(a, b);
        }
        for (int k = 1; k < PRODUCTS; k++)
            for (int i = 0; i < CHAINS; i++) {
                __asm__("" : "+x"(a), "+x"(narrow[i])); /* and the additions in this order */
                narrow[i] = _mm256_add_epi16(narrow[i], _mm256_maddubs_epi16(a, b));
            }
        for (int i = 0; i < CHAINS; i++)
            acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(narrow[i], ones));
    }
    for (int i = 1; i < CHAINS; i++)
        acc[0] = _mm256_add_epi32(acc[0], acc[i]);
    return (uint64_t)_mm256_extract_epi64(acc[0], 0);
}

uint64_t measure_f32_avx2(int64_t rounds)
{
    __m256 acc[12], a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
    for (int i = 0; i < 12; i++)
        acc[i] = _mm256_set1_ps((float)i);
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < 12; i++)
            acc[i] = _mm256_fmadd_ps(acc[i], a, b);
    for (int i = 1; i < 12; i++)
        acc[0] = _mm256_add_ps(acc[0], acc[i]);
    return (uint64_t)_mm256_extract_epi64(_mm256_castps_si256(acc[0]), 0);
}
