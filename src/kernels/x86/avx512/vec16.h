/* vec16, a vector of sixteen floats, in which the *_body.h files are written: here one AVX-512
 * register. */
#ifndef TUTTI_KERNELS_X86_AVX512_VEC16_H
#define TUTTI_KERNELS_X86_AVX512_VEC16_H

#include "base/rng.h"
#include "kernels/x86/bytes.h"

#include <immintrin.h>
#include <stdint.h>

#define VARIANT(name) name##_avx512

enum {
    VEC_TOTALS = 16, /* accumulators (vec16) that fit in registers together with the operands */
    VEC_ROWS = 12,   /* rows of two accumulators each that share two vectors */
};

typedef __m512 vec16;
typedef __mmask16 mask16;
typedef __m512i ivec16; /* sixteen int32, or sixteen pairs of int16 */

INLINE mask16 first_lanes(int n) /* n: 0..16 */
{
    return (mask16)((1u << n) - 1);
}

INLINE vec16 v_set(float x)
{
    return _mm512_set1_ps(x);
}

INLINE vec16 v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

/* Into registers. */
INLINE vec16 v_load_once(const float *p)
{
    return v_load(p);
}

/* The first n lanes; the others are zero, and their memory is not touched. */
INLINE vec16 v_load_n(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(first_lanes(n), p);
}

INLINE vec16 v_load_half(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE vec16 v_load_half_n(const uint16_t *p, int n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}

INLINE vec16 from_bf16(__m256i x)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

INLINE vec16 v_load_bf16(const uint16_t *p)
{
    return from_bf16(_mm256_loadu_si256((const __m256i *)p));
}

INLINE vec16 v_load_bf16_n(const uint16_t *p, int n)
{
    return from_bf16(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}

/* Sixteen pairs of bf16: the lower, and the upper of each. */
INLINE vec16 v_load_even_bf16(const void *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}

INLINE vec16 v_load_odd_bf16(const void *p)
{
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(-65536)));
}

/* The numbers in the upper bytes of sixteen words as floats, times 2^-8. */
INLINE vec16 v_from_float8(__m256i words)
{
    return _mm512_cvtph_ps(_mm256_and_si256(_mm256_srai_epi16(words, 1), _mm256_set1_epi16((short)0xBF80)));
}

/* Sixteen pairs of 8-bit floats, times 2^-8: the lower, and the upper of each. */
INLINE vec16 v_load_even_float8(const uint8_t *p)
{
    return v_from_float8(_mm256_slli_epi16(_mm256_load_si256((const __m256i *)p), 8));
}

INLINE vec16 v_load_odd_float8(const uint8_t *p)
{
    return v_from_float8(_mm256_load_si256((const __m256i *)p));
}

INLINE vec16 v_set_bits(uint32_t bits)
{
    return _mm512_castsi512_ps(_mm512_set1_epi32((int)bits));
}

INLINE void v_store(float *p, vec16 x)
{
    _mm512_storeu_ps(p, x);
}

INLINE void v_store_n(float *p, vec16 x, int n)
{
    _mm512_mask_storeu_ps(p, first_lanes(n), x);
}

INLINE void v_store_half_n(uint16_t *p, vec16 x, int n)
{
    _mm256_mask_storeu_epi16(p, first_lanes(n),
                             _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

/* Stores the low byte of each lane's bits, and returns the sum of those signed bytes. */
INLINE int v_store_low_bytes(int8_t *p, vec16 x)
{
    __m128i bytes = _mm512_cvtepi32_epi8(_mm512_castps_si512(x));
    _mm_storeu_si128((__m128i *)p, bytes);
    return sum_of_bytes(bytes);
}

INLINE vec16 v_add(vec16 a, vec16 b)
{
    return _mm512_add_ps(a, b);
}

INLINE vec16 v_sub(vec16 a, vec16 b)
{
    return _mm512_sub_ps(a, b);
}

INLINE vec16 v_mul(vec16 a, vec16 b)
{
    return _mm512_mul_ps(a, b);
}

INLINE vec16 v_div(vec16 a, vec16 b)
{
    return _mm512_div_ps(a, b);
}

INLINE vec16 v_fma(vec16 a, vec16 b, vec16 c) /* a * b + c */
{
    return _mm512_fmadd_ps(a, b, c);
}

INLINE vec16 v_fms(vec16 a, vec16 b, vec16 c) /* a * b - c */
{
    return _mm512_fmsub_ps(a, b, c);
}

INLINE vec16 v_fma_sub_add(vec16 a, vec16 b, vec16 c) /* even lanes a * b - c, odd lanes a * b + c */
{
    return _mm512_fmaddsub_ps(a, b, c);
}

INLINE vec16 v_max(vec16 a, vec16 b) /* b if either is NaN, or both are zero */
{
    return _mm512_max_ps(a, b);
}

INLINE vec16 v_min(vec16 a, vec16 b)
{
    return _mm512_min_ps(a, b);
}

/* The maximum of non-negative numbers; NaN is the largest. */
INLINE vec16 v_max_bits(vec16 a, vec16 b)
{
    return _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}

INLINE vec16 v_negate(vec16 x)
{
    return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f));
}

INLINE vec16 v_abs(vec16 x)
{
    return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x);
}

/* Stores the low 16 bits of each lane. */
INLINE void v_store_low_words(int16_t *p, vec16 x)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_castps_si512(x)));
}

INLINE ivec16 iv_zero(void)
{
    return _mm512_setzero_si512();
}

/* The same bits. */
INLINE ivec16 iv_cast(vec16 x)
{
    return _mm512_castps_si512(x);
}

INLINE vec16 v_cast(ivec16 x)
{
    return _mm512_castsi512_ps(x);
}

/* Thirty-two int8 as int16. */
INLINE ivec16 iv_load_bytes(const int8_t *p)
{
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
}

/* Sixteen int8 of each of two rows, as pairs of int16. */
INLINE ivec16 iv_load_two_rows(const int8_t *p, const int8_t *q)
{
    __m128i x = _mm_loadu_si128((const __m128i *)p), y = _mm_loadu_si128((const __m128i *)q);
    return _mm512_cvtepi8_epi16(_mm256_set_m128i(_mm_unpackhi_epi8(x, y), _mm_unpacklo_epi8(x, y)));
}

/* Thirty-two int16. */
INLINE ivec16 iv_load_words(const int16_t *p)
{
    return _mm512_loadu_si512(p);
}

/* p[0] and p[1] in each lane. */
INLINE ivec16 iv_set_pair(const int16_t *p)
{
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return _mm512_set1_epi32(pair);
}

/* sum + the two products of each lane's int16. */
INLINE ivec16 iv_dot(ivec16 a, ivec16 b, ivec16 sum)
{
    /* In assembly, because gcc copies the sums of a loop between registers around the intrinsic. */
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}

/* The sum of the lanes. */
INLINE int iv_fold(ivec16 x)
{
    return _mm512_reduce_add_epi32(x);
}

INLINE vec16 v_from_int(ivec16 x)
{
    return _mm512_cvtepi32_ps(x);
}

/* 2^n from the float 1.5 * 2^23 + n: n is in its low bits. */
INLINE vec16 v_exponent(vec16 shifted)
{
    __m512i biased = _mm512_add_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
}

/* mix64() of eight numbers. */
INLINE __m512i mix_eight(__m512i x)
{
    x = _mm512_add_epi64(x, _mm512_set1_epi64((long long)MIX_STEP));
    x = _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 30)),
                           _mm512_set1_epi64((long long)MIX_FIRST));
    x = _mm512_mullo_epi64(_mm512_xor_si512(x, _mm512_srli_epi64(x, 27)),
                           _mm512_set1_epi64((long long)MIX_SECOND));
    return _mm512_xor_si512(x, _mm512_srli_epi64(x, 31));
}

/* The upper 24 bits of mix64(seed ^ (first + lane)). */
INLINE vec16 v_mixed(uint64_t seed, uint32_t first)
{
    __m512i id = _mm512_add_epi32(_mm512_set1_epi32((int)first),
                                  _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    __m512i s = _mm512_set1_epi64((long long)seed);
    __m512i a = mix_eight(_mm512_xor_si512(s, _mm512_cvtepu32_epi64(_mm512_castsi512_si256(id))));
    __m512i b = mix_eight(_mm512_xor_si512(s, _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(id, 1))));
    __m256i low = _mm512_cvtepi64_epi32(_mm512_srli_epi64(a, 40)),
            high = _mm512_cvtepi64_epi32(_mm512_srli_epi64(b, 40));
    return _mm512_cvtepi32_ps(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1));
}

INLINE mask16 v_less(vec16 a, vec16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

INLINE mask16 v_less_equal(vec16 a, vec16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ);
}

INLINE vec16 v_select(mask16 mask, vec16 yes, vec16 no)
{
    return _mm512_mask_blend_ps(mask, no, yes);
}

/* One bit per lane. */
INLINE unsigned v_bits(mask16 mask)
{
    return mask;
}

/* (x1, x0, x3, x2, ...) */
INLINE vec16 v_swap_pairs(vec16 x)
{
    return _mm512_permute_ps(x, 0xB1);
}

/* (p0, p0, p1, p1, ...) of n_pairs floats, 0..8. */
INLINE vec16 v_load_twice(const float *p, int n_pairs)
{
    const __m512i order = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(order, v_load_n(p, n_pairs));
}

/* Lanes i and i + 8, then 4, 2, 1. */
INLINE float v_fold(vec16 x)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

/* Stores v_fold() of each of four vectors. */
INLINE void v_fold_four(float *p, vec16 w, vec16 x, vec16 y, vec16 z)
{
    __m512 wx = _mm512_add_ps(_mm512_shuffle_f32x4(w, x, 0x44), _mm512_shuffle_f32x4(w, x, 0xEE));
    __m512 yz = _mm512_add_ps(_mm512_shuffle_f32x4(y, z, 0x44), _mm512_shuffle_f32x4(y, z, 0xEE));
    /* One vector in each 128 bits. */
    __m512 all = _mm512_add_ps(_mm512_shuffle_f32x4(wx, yz, 0x88), _mm512_shuffle_f32x4(wx, yz, 0xDD));
    all = _mm512_add_ps(all, _mm512_permute_ps(all, 0x4E));
    all = _mm512_add_ps(all, _mm512_permute_ps(all, 0xB1));
    __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm_storeu_ps(p, _mm512_castps512_ps128(_mm512_permutexvar_ps(first, all)));
}

INLINE float v_fold_max(vec16 x)
{
    __m256 a = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

INLINE float v_fold_max_bits(vec16 x)
{
    __m512i bits = _mm512_castps_si512(x);
    return fold_max_bits(_mm256_max_epi32(_mm512_castsi512_si256(bits), _mm512_extracti64x4_epi64(bits, 1)));
}

#endif
