/* GELU and its approximations, and the gate of GEGLU. */
#include "kernels/ref/gelu.h"
#include "kernels/ref/ref.h"

void gelu_tanh_ref(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = gelu_tanh_ref_one(x[i]);
}

void gelu_tanh_mul_ref(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gelu_tanh_ref_one(gate[i]) * up[i];
}

void gelu_sigmoid_ref(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = gelu_sigmoid_ref_one(x[i]);
}

void gelu_erf_ref(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = gelu_erf_ref_one(x[i]);
}
