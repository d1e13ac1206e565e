/* The gate of SwiGLU. */
#include "kernels/ref/ref.h"

void silu_mul_ref(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gate[i] / (1.0f + exp_ref(-gate[i])) * up[i];
}
