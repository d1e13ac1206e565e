/* RMSNorm, and the addition that goes before it. */
#include "kernels/ref/ref.h"

void rmsnorm_ref(float *y, const float *x, const float *w, int n_rows, int n, float eps)
{
    for (int row = 0; row < n_rows; row++, x += n, y += n) {
        float sum[16] = { 0 };
        for (int i = 0; i < n; i++)
            sum[i % 16] = fmaf(x[i], x[i], sum[i % 16]);
        float scale = 1.0f / sqrtf(fold16(sum) / (float)n + eps);
        for (int i = 0; i < n; i++)
            y[i] = x[i] * scale * w[i];
    }
}

void add_ref(float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i];
}
