/* The gates of SwiGLU. */
#include "kernels/ref/silu.h"
#include "kernels/ref/ref.h"

void silu_mul_ref(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gate[i] / (1.0f + exp_ref(-gate[i])) * up[i];
}

void silu_clamped_mul_ref(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float g = SILU_CLAMPED_LIMIT < gate[i] ? SILU_CLAMPED_LIMIT : gate[i];
        float u = -SILU_CLAMPED_LIMIT > up[i] ? -SILU_CLAMPED_LIMIT : up[i];
        u = SILU_CLAMPED_LIMIT < u ? SILU_CLAMPED_LIMIT : u;
        y[i] = g / (1.0f + exp_ref(-(SILU_CLAMPED_SLOPE * g))) * (u + 1.0f);
    }
}
