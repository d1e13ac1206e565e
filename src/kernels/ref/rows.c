/* Operations on whole rows: norm, addition, SwiGLU, softmax, rotary embedding, looks at logits. */
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

void silu_mul_ref(float *y, const float *gate, const float *up, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = gate[i] / (1.0f + exp_ref(-gate[i])) * up[i];
}

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

static inline void rotate(float *u, float *v, float cos, float sin)
{
    float a = *u, b = *v;
    *u = fmaf(a, cos, -(b * sin));
    *v = fmaf(b, cos, a * sin);
}

void rope_interleaved_ref(float *x, const float *cos_sin, int n_heads, int head_dim, int rotary_dim)
{
    int n_pairs = rotary_dim / 2;
    for (int h = 0; h < n_heads; h++, x += head_dim)
        for (int j = 0; j < n_pairs; j++)
            rotate(&x[2 * j], &x[2 * j + 1], cos_sin[j], cos_sin[n_pairs + j]);
}

void rope_half_ref(float *x, const float *cos_sin, int n_heads, int head_dim, int rotary_dim)
{
    int n_pairs = rotary_dim / 2;
    for (int h = 0; h < n_heads; h++, x += head_dim)
        for (int j = 0; j < n_pairs; j++)
            rotate(&x[j], &x[j + n_pairs], cos_sin[j], cos_sin[n_pairs + j]);
}

bool scan_max_ref(const float *x, int n, float *max)
{
    float top = -(float)INFINITY;
    bool is_finite = true;
    for (int i = 0; i < n; i++) {
        is_finite = is_finite && fabsf(x[i]) <= 3.40282347e38f;
        top = max_of(x[i], top);
    }
    *max = top + 0.0f; /* no negative zero, whose place among equals depends on the order */
    return is_finite;
}

float sum_exp_ref(const float *x, int n, float max)
{
    float sum[16] = { 0 };
    for (int i = 0; i < n; i++)
        sum[i % 16] += exp_ref(x[i] - max);
    return fold16(sum);
}

int find_above_ref(const float *x, int begin, int n, float bound)
{
    int i = begin;
    while (i < n && !(x[i] > bound))
        i++;
    return i;
}

void to_half_ref(uint16_t *y, const float *x, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = float_to_half(x[i]);
}
