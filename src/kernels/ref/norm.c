/* RMSNorm, LayerNorm, and the residual additions before them. */
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

void layernorm_ref(float *y, const float *x, const float *w, const float *b, int n_rows, int n, float eps)
{
    for (int row = 0; row < n_rows; row++, x += n, y += n) {
        float sum[16] = { 0 }, squares[16] = { 0 };
        for (int i = 0; i < n; i++)
            sum[i % 16] += x[i];
        float mean = fold16(sum) / (float)n;
        for (int i = 0; i < n; i++)
            squares[i % 16] = fmaf(x[i] - mean, x[i] - mean, squares[i % 16]);
        float scale = 1.0f / sqrtf(fold16(squares) / (float)n + eps);
        for (int i = 0; i < n; i++)
            y[i] = fmaf((x[i] - mean) * scale, w[i], b[i]);
    }
}

void add_ref(float *x, const float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i];
}

void scale_ref(float *y, const float *x, float factor, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] * factor;
}

void scale_add_ref(float *x, const float *base, float scale, const float *add, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = fmaf(scale, base[i], add[i]);
}
