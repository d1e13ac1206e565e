#include "kernels/arm/arm.h"

#include <arm_neon.h>

uint64_t measure_int8_dotprod(int64_t rounds)
{
    int32x4_t acc[16];
    int8x16_t a = vdupq_n_s8(3), b = vdupq_n_s8(5);
    UNROLL
    for (int i = 0; i < 16; i++)
        acc[i] = vdupq_n_s32(i);
    for (int64_t r = 0; r < rounds; r++)
        UNROLL
    for (int i = 0; i < 16; i++)
        acc[i] = vdotq_s32(acc[i], a, b);
    for (int i = 1; i < 16; i++)
        acc[0] = vaddq_s32(acc[0], acc[i]);
    return (uint64_t)vaddvq_s32(acc[0]);
}
