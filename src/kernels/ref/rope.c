/* Rotary embedding. */
#include "kernels/ref/ref.h"

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
