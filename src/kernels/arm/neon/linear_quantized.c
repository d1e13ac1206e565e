/* For processors without SDOT. */
#include "kernels/arm/neon/vec16.h"

/* Two products of int8 fit 16 bits: numbers are within -128..127, inputs within -127..127. */
INLINE int32x4_t dot(int32x4_t sum, int8x16_t w, int8x16_t q, const int group)
{
    int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(vreinterpretq_s32_s8(q)[group]));
    int16x8_t low = vmull_s8(vget_low_s8(w), vget_low_s8(four)), high = vmull_high_s8(w, four);
    return vpadalq_s16(sum, vpaddq_s16(low, high));
}

#include "kernels/arm/by_rows_body.h"

#define LINEAR(name, dtype) LINEAR_BY_ROWS(name, dtype, neon)
FOR_EACH_QUANTIZED(LINEAR)
