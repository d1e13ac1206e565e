#include "kernels/arm/arm.h"

#include <arm_neon.h>
#include <string.h>

INLINE int32x4_t dot(int32x4_t sum, int8x16_t w, int8x16_t q, const int group)
{
    switch (group) { /* the instruction contains it */
    case 0:
        return vdotq_laneq_s32(sum, w, q, 0);
    case 1:
        return vdotq_laneq_s32(sum, w, q, 1);
    case 2:
        return vdotq_laneq_s32(sum, w, q, 2);
    default:
        return vdotq_laneq_s32(sum, w, q, 3);
    }
}

#include "kernels/arm/by_rows_body.h"

#define LINEAR(name, dtype) LINEAR_BY_ROWS(name, dtype, dotprod)
FOR_EACH_QUANTIZED(LINEAR)
