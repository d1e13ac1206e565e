/* vec16, a vector of sixteen floats, in which the *_body.h files are written: here four NEON registers. */
#ifndef TUTTI_KERNELS_ARM_NEON_VEC16_H
#define TUTTI_KERNELS_ARM_NEON_VEC16_H

#include "base/rng.h"
#include "kernels/arm/arm.h"

#include <arm_neon.h>
#include <string.h>

#define VARIANT(name) name##_neon

enum {
    VEC_TOTALS = 4, /* accumulators (vec16) that fit in registers together with the operands */
    VEC_ROWS = 6,   /* accumulators that share one vector */
};

typedef struct {
    float32x4_t a, b, c, d; /* lanes 0..3, 4..7, 8..11, 12..15 */
} vec16;
typedef struct {
    uint32x4_t a, b, c, d; /* all bits of a lane */
} mask16;
/* Sums: sixteen int32. Factors: sixteen pairs of int16, the first of each pair in a and b (lanes 0..7, 8..15),
 * the second in c and d. */
typedef struct {
    int32x4_t a, b, c, d;
} ivec16;

/* An operation on each of the four registers. */
#define OF_ONE(type, f, x)    ((type){ f((x).a), f((x).b), f((x).c), f((x).d) })
#define OF_TWO(type, f, x, y) ((type){ f((x).a, (y).a), f((x).b, (y).b), f((x).c, (y).c), f((x).d, (y).d) })
#define OF_THREE(type, f, x, y, z)                                                                           \
    ((type){ f((x).a, (y).a, (z).a), f((x).b, (y).b, (z).b), f((x).c, (y).c, (z).c), f((x).d, (y).d, (z).d) })

INLINE vec16 v_set(float x)
{
    float32x4_t v = vdupq_n_f32(x);
    return (vec16){ v, v, v, v };
}

INLINE vec16 v_load(const float *p)
{
    return (vec16){ vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12) };
}

INLINE void v_store(float *p, vec16 x)
{
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
    vst1q_f32(p + 8, x.c);
    vst1q_f32(p + 12, x.d);
}

INLINE mask16 first_lanes(int n) /* n: 0..16 */
{
    static const uint32_t LANE[16] = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
    uint32x4_t end = vdupq_n_u32((uint32_t)n);
    return (mask16){ vcltq_u32(vld1q_u32(LANE), end), vcltq_u32(vld1q_u32(LANE + 4), end),
                     vcltq_u32(vld1q_u32(LANE + 8), end), vcltq_u32(vld1q_u32(LANE + 12), end) };
}

/* Into registers. */
INLINE vec16 v_load_once(const float *p)
{
    return v_load(p);
}

/* The first n lanes; the others are zero, and their memory is not touched. */
INLINE vec16 v_load_n(const float *p, int n)
{
    float all[16] = { 0 };
    if (n >= 16)
        return v_load(p);
    memcpy(all, p, (size_t)n * sizeof *p);
    return v_load(all);
}

INLINE void v_store_n(float *p, vec16 x, int n)
{
    float all[16];
    if (n >= 16) {
        v_store(p, x);
        return;
    }
    v_store(all, x);
    memcpy(p, all, (size_t)n * sizeof *p);
}

INLINE float32x4_t widen(float16x4_t x)
{
    return vcvt_f32_f16(x);
}

/* Sixteen halves in two registers. */
INLINE vec16 from_halves(uint16x8_t low, uint16x8_t high)
{
    return (vec16){ widen(vreinterpret_f16_u16(vget_low_u16(low))),
                    widen(vreinterpret_f16_u16(vget_high_u16(low))),
                    widen(vreinterpret_f16_u16(vget_low_u16(high))),
                    widen(vreinterpret_f16_u16(vget_high_u16(high))) };
}

INLINE vec16 v_load_half(const uint16_t *p)
{
    return from_halves(vld1q_u16(p), vld1q_u16(p + 8));
}

INLINE vec16 v_load_half_n(const uint16_t *p, int n)
{
    uint16_t all[16] = { 0 };
    if (n >= 16)
        return v_load_half(p);
    memcpy(all, p, (size_t)n * sizeof *p);
    return v_load_half(all);
}

INLINE void v_store_half_n(uint16_t *p, vec16 x, int n)
{
    uint16_t all[16];
    vst1_u16(all, vreinterpret_u16_f16(vcvt_f16_f32(x.a)));
    vst1_u16(all + 4, vreinterpret_u16_f16(vcvt_f16_f32(x.b)));
    vst1_u16(all + 8, vreinterpret_u16_f16(vcvt_f16_f32(x.c)));
    vst1_u16(all + 12, vreinterpret_u16_f16(vcvt_f16_f32(x.d)));
    memcpy(p, all, (size_t)n * sizeof *p);
}

INLINE vec16 v_load_bf16(const uint16_t *p)
{
    uint16x8_t low = vld1q_u16(p), high = vld1q_u16(p + 8);
    return (vec16){ vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(low), 16)),
                    vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(low), 16)),
                    vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(high), 16)),
                    vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(high), 16)) };
}

INLINE vec16 v_load_bf16_n(const uint16_t *p, int n)
{
    uint16_t all[16] = { 0 };
    memcpy(all, p, (size_t)n * sizeof *p);
    return v_load_bf16(all);
}

INLINE float32x4_t lower_bf16(float32x4_t x)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(x), 16));
}

INLINE float32x4_t upper_bf16(float32x4_t x)
{
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0xFFFF0000)));
}

/* Sixteen pairs of bf16: the lower, and the upper of each. */
INLINE vec16 v_load_even_bf16(const void *p)
{
    vec16 x = v_load(p);
    return OF_ONE(vec16, lower_bf16, x);
}

INLINE vec16 v_load_odd_bf16(const void *p)
{
    vec16 x = v_load(p);
    return OF_ONE(vec16, upper_bf16, x);
}

/* The numbers in the upper bytes of eight words as halves, times 2^-8. */
INLINE uint16x8_t halves_of_float8(int16x8_t words)
{
    return vandq_u16(vreinterpretq_u16_s16(vshrq_n_s16(words, 1)), vdupq_n_u16(0xBF80));
}

/* Sixteen pairs of 8-bit floats, times 2^-8: the lower, and the upper of each. */
INLINE vec16 v_load_even_float8(const uint8_t *p)
{
    int16x8_t low = vld1q_s16((const int16_t *)p), high = vld1q_s16((const int16_t *)p + 8);
    return from_halves(halves_of_float8(vshlq_n_s16(low, 8)), halves_of_float8(vshlq_n_s16(high, 8)));
}

INLINE vec16 v_load_odd_float8(const uint8_t *p)
{
    int16x8_t low = vld1q_s16((const int16_t *)p), high = vld1q_s16((const int16_t *)p + 8);
    return from_halves(halves_of_float8(low), halves_of_float8(high));
}

INLINE vec16 v_set_bits(uint32_t bits)
{
    float32x4_t x = vreinterpretq_f32_u32(vdupq_n_u32(bits));
    return (vec16){ x, x, x, x };
}

/* The low 16 bits of each of eight lanes. */
INLINE int16x8_t low_words(float32x4_t x, float32x4_t y)
{
    return vcombine_s16(vmovn_s32(vreinterpretq_s32_f32(x)), vmovn_s32(vreinterpretq_s32_f32(y)));
}

/* Stores the low 16 bits of each lane. */
INLINE void v_store_low_words(int16_t *p, vec16 x)
{
    vst1q_s16(p, low_words(x.a, x.b));
    vst1q_s16(p + 8, low_words(x.c, x.d));
}

/* Stores the low byte of each lane's bits, and returns the sum of those signed bytes. */
INLINE int v_store_low_bytes(int8_t *p, vec16 x)
{
    int8x16_t bytes = vcombine_s8(vmovn_s16(low_words(x.a, x.b)), vmovn_s16(low_words(x.c, x.d)));
    vst1q_s8(p, bytes);
    return vaddlvq_s8(bytes);
}

INLINE vec16 v_add(vec16 a, vec16 b)
{
    return OF_TWO(vec16, vaddq_f32, a, b);
}

INLINE vec16 v_sub(vec16 a, vec16 b)
{
    return OF_TWO(vec16, vsubq_f32, a, b);
}

INLINE vec16 v_mul(vec16 a, vec16 b)
{
    return OF_TWO(vec16, vmulq_f32, a, b);
}

INLINE vec16 v_div(vec16 a, vec16 b)
{
    return OF_TWO(vec16, vdivq_f32, a, b);
}

INLINE vec16 v_negate(vec16 x)
{
    return OF_ONE(vec16, vnegq_f32, x);
}

INLINE vec16 v_abs(vec16 x)
{
    return OF_ONE(vec16, vabsq_f32, x);
}

INLINE vec16 v_fma(vec16 a, vec16 b, vec16 c) /* a * b + c */
{
    return OF_THREE(vec16, vfmaq_f32, c, a, b);
}

INLINE vec16 v_fms(vec16 a, vec16 b, vec16 c) /* a * b - c */
{
    return v_fma(a, b, v_negate(c));
}

INLINE vec16 v_fma_sub_add(vec16 a, vec16 b, vec16 c) /* even lanes a * b - c, odd lanes a * b + c */
{
    const uint32x4_t signs = vreinterpretq_u32_u64(vdupq_n_u64(0x80000000));
#define FLIP(x) vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(x), signs))
    return v_fma(a, b, OF_ONE(vec16, FLIP, c));
#undef FLIP
}

INLINE float32x4_t larger(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

INLINE float32x4_t smaller(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}

INLINE vec16 v_max(vec16 a, vec16 b) /* b if either is NaN, or both are zero */
{
    return OF_TWO(vec16, larger, a, b);
}

INLINE vec16 v_min(vec16 a, vec16 b)
{
    return OF_TWO(vec16, smaller, a, b);
}

INLINE float32x4_t larger_bits(float32x4_t a, float32x4_t b)
{
    return vreinterpretq_f32_s32(vmaxq_s32(vreinterpretq_s32_f32(a), vreinterpretq_s32_f32(b)));
}

/* The maximum of non-negative numbers; NaN is the largest. */
INLINE vec16 v_max_bits(vec16 a, vec16 b)
{
    return OF_TWO(vec16, larger_bits, a, b);
}

INLINE mask16 v_less(vec16 a, vec16 b)
{
    return OF_TWO(mask16, vcltq_f32, a, b);
}

INLINE mask16 v_less_equal(vec16 a, vec16 b)
{
    return OF_TWO(mask16, vcleq_f32, a, b);
}

INLINE vec16 v_select(mask16 mask, vec16 yes, vec16 no)
{
    return OF_THREE(vec16, vbslq_f32, mask, yes, no);
}

/* One bit per lane. */
INLINE unsigned v_bits(mask16 mask)
{
    static const uint8_t BITS[16] = { 1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128 };
    uint16x8_t low = vcombine_u16(vmovn_u32(mask.a), vmovn_u32(mask.b));
    uint16x8_t high = vcombine_u16(vmovn_u32(mask.c), vmovn_u32(mask.d));
    uint8x16_t bits = vandq_u8(vcombine_u8(vmovn_u16(low), vmovn_u16(high)), vld1q_u8(BITS));
    return (unsigned)vaddv_u8(vget_low_u8(bits)) | (unsigned)vaddv_u8(vget_high_u8(bits)) << 8;
}

/* (x1, x0, x3, x2, ...) */
INLINE vec16 v_swap_pairs(vec16 x)
{
    return OF_ONE(vec16, vrev64q_f32, x);
}

/* (p0, p0, p1, p1, ...) of n_pairs floats, 0..8. */
INLINE vec16 v_load_twice(const float *p, int n_pairs)
{
    float all[8] = { 0 };
    memcpy(all, p, (size_t)n_pairs * sizeof *p);
    float32x4_t x = vld1q_f32(all), y = vld1q_f32(all + 4);
    return (vec16){ vzip1q_f32(x, x), vzip2q_f32(x, x), vzip1q_f32(y, y), vzip2q_f32(y, y) };
}

/* ---- integers ---- */

INLINE ivec16 iv_zero(void)
{
    int32x4_t x = vdupq_n_s32(0);
    return (ivec16){ x, x, x, x };
}

/* The same bits. */
INLINE ivec16 iv_cast(vec16 x)
{
    return OF_ONE(ivec16, vreinterpretq_s32_f32, x);
}

INLINE vec16 v_cast(ivec16 x)
{
    return OF_ONE(vec16, vreinterpretq_f32_s32, x);
}

INLINE vec16 v_from_int(ivec16 x)
{
    return OF_ONE(vec16, vcvtq_f32_s32, x);
}

/* Pairs of the same lanes of two rows. */
INLINE ivec16 pairs_of(int8x16_t first, int8x16_t second)
{
    return (ivec16){ vreinterpretq_s32_s16(vmovl_s8(vget_low_s8(first))),
                     vreinterpretq_s32_s16(vmovl_high_s8(first)),
                     vreinterpretq_s32_s16(vmovl_s8(vget_low_s8(second))),
                     vreinterpretq_s32_s16(vmovl_high_s8(second)) };
}

/* Thirty-two int8 as int16. */
INLINE ivec16 iv_load_bytes(const int8_t *p)
{
    int8x16x2_t x = vld2q_s8(p);
    return pairs_of(x.val[0], x.val[1]);
}

/* Sixteen int8 of each of two rows, as pairs of int16. */
INLINE ivec16 iv_load_two_rows(const int8_t *p, const int8_t *q)
{
    return pairs_of(vld1q_s8(p), vld1q_s8(q));
}

/* Thirty-two int16. */
INLINE ivec16 iv_load_words(const int16_t *p)
{
    int16x8x2_t low = vld2q_s16(p), high = vld2q_s16(p + 16);
    return (ivec16){ vreinterpretq_s32_s16(low.val[0]), vreinterpretq_s32_s16(high.val[0]),
                     vreinterpretq_s32_s16(low.val[1]), vreinterpretq_s32_s16(high.val[1]) };
}

/* p[0] and p[1] in each lane. */
INLINE ivec16 iv_set_pair(const int16_t *p)
{
    int32x4_t first = vreinterpretq_s32_s16(vdupq_n_s16(p[0])),
              second = vreinterpretq_s32_s16(vdupq_n_s16(p[1]));
    return (ivec16){ first, first, second, second };
}

INLINE int32x4_t add_low_products(int32x4_t sum, int32x4_t x, int32x4_t y)
{
    return vmlal_s16(sum, vget_low_s16(vreinterpretq_s16_s32(x)), vget_low_s16(vreinterpretq_s16_s32(y)));
}

INLINE int32x4_t add_high_products(int32x4_t sum, int32x4_t x, int32x4_t y)
{
    return vmlal_high_s16(sum, vreinterpretq_s16_s32(x), vreinterpretq_s16_s32(y));
}

/* sum + the two products of each lane's int16. */
INLINE ivec16 iv_dot(ivec16 x, ivec16 y, ivec16 sum)
{
    return (ivec16){ add_low_products(add_low_products(sum.a, x.a, y.a), x.c, y.c),
                     add_high_products(add_high_products(sum.b, x.a, y.a), x.c, y.c),
                     add_low_products(add_low_products(sum.c, x.b, y.b), x.d, y.d),
                     add_high_products(add_high_products(sum.d, x.b, y.b), x.d, y.d) };
}

/* The sum of the lanes. */
INLINE int iv_fold(ivec16 x)
{
    return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d)));
}

INLINE float32x4_t exponent_four(float32x4_t shifted)
{
    int32x4_t biased = vaddq_s32(vreinterpretq_s32_f32(shifted), vdupq_n_s32(127));
    return vreinterpretq_f32_s32(vshlq_n_s32(biased, 23));
}

/* 2^n from the float 1.5 * 2^23 + n: n is in its low bits. */
INLINE vec16 v_exponent(vec16 shifted)
{
    return OF_ONE(vec16, exponent_four, shifted);
}

/* The upper 24 bits of mix64(seed ^ (first + lane)). NEON has no products of 64 bits. */
INLINE vec16 v_mixed(uint64_t seed, uint32_t first)
{
    float x[16];
    for (uint32_t i = 0; i < 16; i++)
        x[i] = (float)(uint32_t)(mix64(seed ^ (uint32_t)(first + i)) >> 40);
    return v_load(x);
}

/* ---- folds ---- */

INLINE float32x4_t fold_to_four(vec16 x)
{
    return vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
}

/* Lanes i and i + 8, then 4, 2, 1. */
INLINE float v_fold(vec16 x)
{
    float32x4_t four = fold_to_four(x);
    float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

/* Stores v_fold() of each of four vectors. */
INLINE void v_fold_four(float *p, vec16 w, vec16 x, vec16 y, vec16 z)
{
    float32x4_t a = fold_to_four(w), b = fold_to_four(x), c = fold_to_four(y), d = fold_to_four(z);
    float32x4_t ab = vaddq_f32(vcombine_f32(vget_low_f32(a), vget_low_f32(b)),
                               vcombine_f32(vget_high_f32(a), vget_high_f32(b)));
    float32x4_t cd = vaddq_f32(vcombine_f32(vget_low_f32(c), vget_low_f32(d)),
                               vcombine_f32(vget_high_f32(c), vget_high_f32(d)));
    vst1q_f32(p, vpaddq_f32(ab, cd));
}

INLINE float v_fold_max(vec16 x)
{
    float32x4_t four = larger(larger(x.a, x.c), larger(x.b, x.d));
    float32x4_t two = larger(four, vextq_f32(four, four, 2));
    return vgetq_lane_f32(larger(two, vextq_f32(two, two, 1)), 0);
}

INLINE float v_fold_max_bits(vec16 x)
{
    float32x4_t four = larger_bits(larger_bits(x.a, x.b), larger_bits(x.c, x.d));
    int32_t bits = vmaxvq_s32(vreinterpretq_s32_f32(four));
    float max;
    memcpy(&max, &bits, sizeof max);
    return max;
}

#endif
