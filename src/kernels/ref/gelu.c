/* GELU and its approximations, and the gate of GEGLU. */
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

static float gelu_erf(float x)
{
    float z = fabsf(x) * GELU_ERF_SCALE, t = 1.0f / fmaf(GELU_ERF_P, z, 1.0f);
    float p = fmaf(t, GELU_ERF_A5, GELU_ERF_A4);
    p = fmaf(t, p, GELU_ERF_A3);
    p = fmaf(t, p, GELU_ERF_A2);
    p = fmaf(t, p, GELU_ERF_A1);
    float half = 0.5f * (t * p * exp_ref(-(z * z)));
    return x * (x < 0 ? half : 1.0f - half);
}

void gelu_erf_ref(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = gelu_erf(x[i]);
}
