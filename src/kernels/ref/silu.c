/* The gates of SwiGLU. */
#include "kernels/ref/silu.h"
#include "kernels/ref/ref.h"

void silu_mul_ref(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = silu_ref_one(gate[i]) * up[i];
}

void silu_clamped_mul_ref(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = silu_clamped_ref_one(gate[i], up[i]);
}
