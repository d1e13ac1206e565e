/* Softmax of a row. */
#include "kernels/ref/ref.h"

void softmax_ref(float *y, const float *x, int n)
{
    float max[16], sum[16] = { 0 };
    for (int i = 0; i < 16; i++)
        max[i] = -(float)INFINITY;
    for (int i = 0; i < n; i++)
        max[i % 16] = max_of(x[i], max[i % 16]);
    float top = fold16_max(max);
    for (int i = 0; i < n; i++) {
        y[i] = exp_ref(x[i] - top);
        sum[i % 16] += y[i];
    }
    float total = fold16(sum);
    for (int i = 0; i < n; i++)
        y[i] /= total;
}
