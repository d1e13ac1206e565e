/* GELU's approximations, and the gate of GEGLU. */
#include "kernels/ref/gelu.h"
#include "kernels/ref/ref.h"

static float gelu_tanh(float x)
{
    float z = GELU_TANH_SLOPE * x * fmaf(GELU_TANH_CUBE, x * x, 1.0f);
    return x / (1.0f + exp_ref(-z));
}

void gelu_tanh_ref(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = gelu_tanh(x[i]);
}

void gelu_tanh_mul_ref(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gelu_tanh(gate[i]) * up[i];
}

void gelu_sigmoid_ref(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] / (1.0f + exp_ref(-(GELU_SIGMOID_SLOPE * x[i])));
}
