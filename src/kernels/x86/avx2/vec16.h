/* vec16, a vector of sixteen floats, in which the *_body.h files are written: here two AVX2
 * registers. */
#ifndef TUTTI_KERNELS_X86_AVX2_VEC16_H
#define TUTTI_KERNELS_X86_AVX2_VEC16_H

#include "base/rng.h"
#include "kernels/x86/bytes.h"

#include <immintrin.h>
#include <stdint.h>

#define VARIANT(name) name##_avx2

enum {
    VEC_TOTALS = 4, /* accumulators (vec16) that fit in registers together with the operands */
    VEC_ROWS = 6,   /* accumulators that share one vector */
};

typedef struct {
    __m256 a, b; /* lanes 0..7, 8..15 */
} vec16;
typedef vec16 mask16; /* all bits of a lane */
typedef struct {
    __m256i a, b; /* lanes 0..7, 8..15: int32, or pairs of int16 */
} ivec16;

INLINE __m256i first_eight(int n) /* n: may be outside 0..8 */
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

INLINE mask16 first_lanes(int n) /* n: 0..16 */
{
    return (mask16){ _mm256_castsi256_ps(first_eight(n)), _mm256_castsi256_ps(first_eight(n - 8)) };
}

INLINE vec16 v_set(float x)
{
    return (vec16){ _mm256_set1_ps(x), _mm256_set1_ps(x) };
}

INLINE vec16 v_load(const float *p)
{
    return (vec16){ _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8) };
}

/* Into registers: the compiler would fold a load into each product. */
INLINE vec16 v_load_once(const float *p)
{
    vec16 x = v_load(p);
    __asm__("" : "+x"(x.a), "+x"(x.b));
    return x;
}

/* The first n lanes; the others are zero, and their memory is not touched. */
INLINE vec16 v_load_n(const float *p, int n)
{
    return (vec16){ _mm256_maskload_ps(p, first_eight(n)), _mm256_maskload_ps(p + 8, first_eight(n - 8)) };
}

INLINE vec16 v_load_half(const uint16_t *p)
{
    return (vec16){ _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                    _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))) };
}

INLINE vec16 v_load_half_n(const uint16_t *p, int n)
{
    uint16_t all[16] = { 0 };
    __builtin_memcpy(all, p, (size_t)n * sizeof *p);
    return v_load_half(all);
}

INLINE __m256 eight_bf16(const uint16_t *p)
{
    __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}

INLINE vec16 v_load_bf16(const uint16_t *p)
{
    return (vec16){ eight_bf16(p), eight_bf16(p + 8) };
}

INLINE vec16 v_load_bf16_n(const uint16_t *p, int n)
{
    uint16_t all[16] = { 0 };
    __builtin_memcpy(all, p, (size_t)n * sizeof *p);
    return v_load_bf16(all);
}

/* Sixteen pairs of bf16: the lower, and the upper of each. */
INLINE vec16 v_load_even_bf16(const void *p)
{
    const __m256i *at = p;
    return (vec16){ _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(at), 16)),
                    _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256(at + 1), 16)) };
}

INLINE vec16 v_load_odd_bf16(const void *p)
{
    const __m256i *at = p, mask = _mm256_set1_epi32(-65536);
    return (vec16){ _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(at), mask)),
                    _mm256_castsi256_ps(_mm256_and_si256(_mm256_loadu_si256(at + 1), mask)) };
}

/* The numbers in the upper bytes of sixteen words as floats, times 2^-8. */
INLINE vec16 v_from_float8(__m256i words)
{
    __m256i halves = _mm256_and_si256(_mm256_srai_epi16(words, 1), _mm256_set1_epi16((short)0xBF80));
    return (vec16){ _mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
                    _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)) };
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
    __m256 x = _mm256_castsi256_ps(_mm256_set1_epi32((int)bits));
    return (vec16){ x, x };
}

INLINE void v_store(float *p, vec16 x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}

INLINE void v_store_n(float *p, vec16 x, int n)
{
    _mm256_maskstore_ps(p, first_eight(n), x.a);
    _mm256_maskstore_ps(p + 8, first_eight(n - 8), x.b);
}

INLINE void v_store_half_n(uint16_t *p, vec16 x, int n)
{
    uint16_t all[16];
    _mm_storeu_si128((__m128i *)all, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *)(all + 8),
                     _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    __builtin_memcpy(p, all, (size_t)n * sizeof *p);
}

INLINE __m256i signed_low_bytes(__m256 x)
{
    return _mm256_srai_epi32(_mm256_slli_epi32(_mm256_castps_si256(x), 24), 24);
}

/* Stores the low byte of each lane's bits, and returns the sum of those signed bytes. */
INLINE int v_store_low_bytes(int8_t *p, vec16 x)
{
    __m256i a = signed_low_bytes(x.a), b = signed_low_bytes(x.b);
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8); /* the halves in order */
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)p, bytes);
    return sum_of_bytes(bytes);
}

INLINE vec16 v_add(vec16 a, vec16 b)
{
    return (vec16){ _mm256_add_ps(a.a, b.a), _mm256_add_ps(a.b, b.b) };
}

INLINE vec16 v_sub(vec16 a, vec16 b)
{
    return (vec16){ _mm256_sub_ps(a.a, b.a), _mm256_sub_ps(a.b, b.b) };
}

INLINE vec16 v_mul(vec16 a, vec16 b)
{
    return (vec16){ _mm256_mul_ps(a.a, b.a), _mm256_mul_ps(a.b, b.b) };
}

INLINE vec16 v_div(vec16 a, vec16 b)
{
    return (vec16){ _mm256_div_ps(a.a, b.a), _mm256_div_ps(a.b, b.b) };
}

INLINE vec16 v_fma(vec16 a, vec16 b, vec16 c) /* a * b + c */
{
    return (vec16){ _mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b) };
}

INLINE vec16 v_fms(vec16 a, vec16 b, vec16 c) /* a * b - c */
{
    return (vec16){ _mm256_fmsub_ps(a.a, b.a, c.a), _mm256_fmsub_ps(a.b, b.b, c.b) };
}

INLINE vec16 v_fma_sub_add(vec16 a, vec16 b, vec16 c) /* even lanes a * b - c, odd lanes a * b + c */
{
    return (vec16){ _mm256_fmaddsub_ps(a.a, b.a, c.a), _mm256_fmaddsub_ps(a.b, b.b, c.b) };
}

INLINE vec16 v_max(vec16 a, vec16 b) /* b if either is NaN, or both are zero */
{
    return (vec16){ _mm256_max_ps(a.a, b.a), _mm256_max_ps(a.b, b.b) };
}

INLINE vec16 v_min(vec16 a, vec16 b)
{
    return (vec16){ _mm256_min_ps(a.a, b.a), _mm256_min_ps(a.b, b.b) };
}

/* The maximum of non-negative numbers; NaN is the largest. */
INLINE vec16 v_max_bits(vec16 a, vec16 b)
{
    return (vec16){
        _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a.a), _mm256_castps_si256(b.a))),
        _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a.b), _mm256_castps_si256(b.b))),
    };
}

INLINE vec16 v_negate(vec16 x)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (vec16){ _mm256_xor_ps(x.a, sign), _mm256_xor_ps(x.b, sign) };
}

INLINE vec16 v_abs(vec16 x)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (vec16){ _mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b) };
}

/* Stores the low 16 bits of each lane. */
INLINE void v_store_low_words(int16_t *p, vec16 x)
{
    __m256i a = _mm256_srai_epi32(_mm256_slli_epi32(_mm256_castps_si256(x.a), 16), 16);
    __m256i b = _mm256_srai_epi32(_mm256_slli_epi32(_mm256_castps_si256(x.b), 16), 16);
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8));
}

INLINE ivec16 iv_zero(void)
{
    return (ivec16){ _mm256_setzero_si256(), _mm256_setzero_si256() };
}

/* The same bits. */
INLINE ivec16 iv_cast(vec16 x)
{
    return (ivec16){ _mm256_castps_si256(x.a), _mm256_castps_si256(x.b) };
}

INLINE vec16 v_cast(ivec16 x)
{
    return (vec16){ _mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b) };
}

/* Thirty-two int8 as int16. */
INLINE ivec16 iv_load_bytes(const int8_t *p)
{
    return (ivec16){ _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)),
                     _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(p + 16))) };
}

/* Sixteen int8 of each of two rows, as pairs of int16. */
INLINE ivec16 iv_load_two_rows(const int8_t *p, const int8_t *q)
{
    __m128i x = _mm_loadu_si128((const __m128i *)p), y = _mm_loadu_si128((const __m128i *)q);
    return (ivec16){ _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(x, y)),
                     _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(x, y)) };
}

/* Thirty-two int16. */
INLINE ivec16 iv_load_words(const int16_t *p)
{
    return (ivec16){ _mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 16)) };
}

/* p[0] and p[1] in each lane. */
INLINE ivec16 iv_set_pair(const int16_t *p)
{
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return (ivec16){ _mm256_set1_epi32(pair), _mm256_set1_epi32(pair) };
}

/* sum + the two products of each lane's int16. */
INLINE ivec16 iv_dot(ivec16 a, ivec16 b, ivec16 sum)
{
    return (ivec16){ _mm256_add_epi32(sum.a, _mm256_madd_epi16(a.a, b.a)),
                     _mm256_add_epi32(sum.b, _mm256_madd_epi16(a.b, b.b)) };
}

/* The sum of the lanes. */
INLINE int iv_fold(ivec16 x)
{
    __m256i a = _mm256_add_epi32(x.a, x.b);
    __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    b = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(b, _mm_shuffle_epi32(b, 0xB1)));
}

INLINE vec16 v_from_int(ivec16 x)
{
    return (vec16){ _mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b) };
}

INLINE __m256 exponent_eight(__m256 shifted)
{
    __m256i biased = _mm256_add_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}

/* 2^n from the float 1.5 * 2^23 + n: n is in its low bits. */
INLINE vec16 v_exponent(vec16 shifted)
{
    return (vec16){ exponent_eight(shifted.a), exponent_eight(shifted.b) };
}

/* The low 64 bits of four products. */
INLINE __m256i multiply_four(__m256i x, uint64_t y)
{
    __m256i low = _mm256_set1_epi64x((long long)y), high = _mm256_set1_epi64x((long long)(y >> 32));
    __m256i across = _mm256_add_epi64(_mm256_mul_epu32(x, high),
                                      _mm256_mul_epu32(_mm256_srli_epi64(x, 32), low));
    return _mm256_add_epi64(_mm256_mul_epu32(x, low), _mm256_slli_epi64(across, 32));
}

/* The upper 24 bits of mix64(seed ^ id) of four ids. */
INLINE __m256i mix_four(uint64_t seed, __m128i ids)
{
    __m256i x = _mm256_xor_si256(_mm256_set1_epi64x((long long)seed), _mm256_cvtepu32_epi64(ids));
    x = _mm256_add_epi64(x, _mm256_set1_epi64x((long long)MIX_STEP));
    x = multiply_four(_mm256_xor_si256(x, _mm256_srli_epi64(x, 30)), MIX_FIRST);
    x = multiply_four(_mm256_xor_si256(x, _mm256_srli_epi64(x, 27)), MIX_SECOND);
    return _mm256_srli_epi64(_mm256_xor_si256(x, _mm256_srli_epi64(x, 31)), 40);
}

INLINE __m256 mixed_eight(uint64_t seed, uint32_t first)
{
    __m256i ids = _mm256_add_epi32(_mm256_set1_epi32((int)first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256 a = _mm256_castsi256_ps(mix_four(seed, _mm256_castsi256_si128(ids)));
    __m256 b = _mm256_castsi256_ps(mix_four(seed, _mm256_extracti128_si256(ids, 1)));
    __m256i even = _mm256_castps_si256(
        _mm256_shuffle_ps(a, b, 0x88)); /* the low halves, by lanes of 128 bits */
    return _mm256_cvtepi32_ps(_mm256_permute4x64_epi64(even, 0xD8));
}

/* The upper 24 bits of mix64(seed ^ (first + lane)). */
INLINE vec16 v_mixed(uint64_t seed, uint32_t first)
{
    return (vec16){ mixed_eight(seed, first), mixed_eight(seed, first + 8) };
}

INLINE mask16 v_less(vec16 a, vec16 b)
{
    return (mask16){ _mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ), _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ) };
}

INLINE mask16 v_less_equal(vec16 a, vec16 b)
{
    return (mask16){ _mm256_cmp_ps(a.a, b.a, _CMP_LE_OQ), _mm256_cmp_ps(a.b, b.b, _CMP_LE_OQ) };
}

INLINE vec16 v_select(mask16 mask, vec16 yes, vec16 no)
{
    return (vec16){ _mm256_blendv_ps(no.a, yes.a, mask.a), _mm256_blendv_ps(no.b, yes.b, mask.b) };
}

/* One bit per lane. */
INLINE unsigned v_bits(mask16 mask)
{
    return (unsigned)_mm256_movemask_ps(mask.a) | (unsigned)_mm256_movemask_ps(mask.b) << 8;
}

/* (x1, x0, x3, x2, ...) */
INLINE vec16 v_swap_pairs(vec16 x)
{
    return (vec16){ _mm256_permute_ps(x.a, 0xB1), _mm256_permute_ps(x.b, 0xB1) };
}

/* (p0, p0, p1, p1, ...) of n_pairs floats, 0..8. */
INLINE vec16 v_load_twice(const float *p, int n_pairs)
{
    __m256 x = _mm256_maskload_ps(p, first_eight(n_pairs));
    return (vec16){ _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
                    _mm256_permutevar8x32_ps(x, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)) };
}

/* Lanes i and i + 8, then 4, 2, 1. */
INLINE float v_fold(vec16 x)
{
    __m256 a = _mm256_add_ps(x.a, x.b);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}

INLINE __m128 fold_to_four(vec16 x)
{
    __m256 a = _mm256_add_ps(x.a, x.b);
    return _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
}

/* Stores v_fold() of each of four vectors. */
INLINE void v_fold_four(float *p, vec16 w, vec16 x, vec16 y, vec16 z)
{
    __m128 a = fold_to_four(w), b = fold_to_four(x), c = fold_to_four(y), d = fold_to_four(z);
    __m128 ab = _mm_add_ps(_mm_movelh_ps(a, b), _mm_movehl_ps(b, a)); /* a0 + a2, a1 + a3, b0 + b2, ... */
    __m128 cd = _mm_add_ps(_mm_movelh_ps(c, d), _mm_movehl_ps(d, c));
    _mm_storeu_ps(p, _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xDD)));
}

INLINE float v_fold_max(vec16 x)
{
    __m256 a = _mm256_max_ps(x.a, x.b);
    __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
}

INLINE float v_fold_max_bits(vec16 x)
{
    return fold_max_bits(_mm256_max_epi32(_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)));
}

#endif
