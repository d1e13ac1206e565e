/* Activations of feed-forward layers without a gate. */
#include "kernels/ref/gelu.h"
#include "kernels/ref/ref.h"

void gelu_tanh_ref(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float z = GELU_TANH_SLOPE * x[i] * fmaf(GELU_TANH_CUBE, x[i] * x[i], 1.0f);
        x[i] = x[i] / (1.0f + exp_ref(-z));
    }
}

void gelu_sigmoid_ref(float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = x[i] / (1.0f + exp_ref(-(GELU_SIGMOID_SLOPE * x[i])));
}
