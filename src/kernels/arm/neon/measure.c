#include "kernels/arm/arm.h"

#include <arm_neon.h>

uint64_t measure_read_neon(const uint8_t *bytes, size_t n)
{
    uint8x16_t a = vdupq_n_u8(0), b = a, c = a, d = a;
    for (size_t i = 0; i < n; i += 64) {
        prefetch(bytes + i + 8192);
        a = veorq_u8(a, vld1q_u8(bytes + i));
        b = veorq_u8(b, vld1q_u8(bytes + i + 16));
        c = veorq_u8(c, vld1q_u8(bytes + i + 32));
        d = veorq_u8(d, vld1q_u8(bytes + i + 48));
    }
    a = veorq_u8(veorq_u8(a, b), veorq_u8(c, d));
    return vgetq_lane_u64(vreinterpretq_u64_u8(a), 0) ^ vgetq_lane_u64(vreinterpretq_u64_u8(a), 1);
}

/* Sixteen products: two long multiplications, and two additions of neighbours. */
uint64_t measure_int8_neon(int64_t rounds)
{
    int32x4_t acc[4] = { vdupq_n_s32(0), vdupq_n_s32(1), vdupq_n_s32(2), vdupq_n_s32(3) };
    int8x16_t a = vdupq_n_s8(15), b = vdupq_n_s8(-127);
    for (int64_t r = 0; r < rounds; r++)
        UNROLL
    for (int i = 0; i < 4; i++) {
        __asm__("" : "+w"(a)); /* keeps the product inside the loop */
        int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
        acc[i] = vpadalq_s16(acc[i], vpaddq_s16(low, high));
    }
    return (uint64_t)vaddvq_s32(vaddq_s32(vaddq_s32(acc[0], acc[1]), vaddq_s32(acc[2], acc[3])));
}

uint64_t measure_f32_neon(int64_t rounds)
{
    float32x4_t acc[16], a = vdupq_n_f32(0.5f), b = vdupq_n_f32(0.25f);
    UNROLL
    for (int i = 0; i < 16; i++)
        acc[i] = vdupq_n_f32((float)i);
    for (int64_t r = 0; r < rounds; r++)
        UNROLL
    for (int i = 0; i < 16; i++)
        acc[i] = vfmaq_f32(acc[i], a, b);
    for (int i = 1; i < 16; i++)
        acc[0] = vaddq_f32(acc[0], acc[i]);
    return (uint64_t)vaddvq_f32(acc[0]);
}
