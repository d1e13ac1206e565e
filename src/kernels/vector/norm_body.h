/* RMSNorm, LayerNorm, and the residual additions before them, with vec16: the optimized
 * ref/norm.c. Included by a file of one instruction set. */
#include "kernels/vector/vector.h"

#include <math.h>

void VARIANT(rmsnorm)(float *y, const float *x, const float *w, int n_rows, int n, float eps)
{
    int whole = n / 16 * 16, rest = n - whole;
    for (int row = 0; row < n_rows; row++, x += n, y += n) {
        vec16 sum = v_set(0);
        for (int i = 0; i < whole; i += 16)
            sum = v_fma(v_load(x + i), v_load(x + i), sum);
        if (rest > 0) {
            vec16 last = v_load_n(x + whole, rest);
            sum = v_fma(last, last, sum);
        }
        vec16 scale = v_set(1.0f / sqrtf(v_fold(sum) / (float)n + eps));
        for (int i = 0; i < whole; i += 16)
            v_store(y + i, v_mul(v_mul(v_load(x + i), scale), v_load(w + i)));
        if (rest > 0)
            v_store_n(y + whole, v_mul(v_mul(v_load_n(x + whole, rest), scale), v_load_n(w + whole, rest)),
                      rest);
    }
}

INLINE vec16 norm_one(vec16 x, vec16 mean, vec16 scale, vec16 w, vec16 b)
{
    return v_fma(v_mul(v_sub(x, mean), scale), w, b);
}

void VARIANT(layernorm)(float *y, const float *x, const float *w, const float *b, int n_rows, int n,
                        float eps)
{
    int whole = n / 16 * 16, rest = n - whole;
    for (int row = 0; row < n_rows; row++, x += n, y += n) {
        vec16 sum = v_set(0), squares = v_set(0);
        for (int i = 0; i < whole; i += 16)
            sum = v_add(sum, v_load(x + i));
        if (rest > 0)
            sum = v_add(sum, v_load_n(x + whole, rest));
        vec16 mean = v_set(v_fold(sum) / (float)n);
        for (int i = 0; i < whole; i += 16) {
            vec16 d = v_sub(v_load(x + i), mean);
            squares = v_fma(d, d, squares);
        }
        if (rest > 0) {
            vec16 d = v_sub(v_load_n(x + whole, rest), mean);
            squares = v_select(first_lanes(rest), v_fma(d, d, squares), squares);
        }
        vec16 scale = v_set(1.0f / sqrtf(v_fold(squares) / (float)n + eps));
        for (int i = 0; i < whole; i += 16)
            v_store(y + i, norm_one(v_load(x + i), mean, scale, v_load(w + i), v_load(b + i)));
        if (rest > 0)
            v_store_n(y + whole,
                      norm_one(v_load_n(x + whole, rest), mean, scale, v_load_n(w + whole, rest),
                               v_load_n(b + whole, rest)),
                      rest);
    }
}

void VARIANT(add)(float *x, const float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(x + i, v_add(v_load(x + i), v_load(y + i)));
    if (i < n)
        v_store_n(x + i, v_add(v_load_n(x + i, (int)(n - i)), v_load_n(y + i, (int)(n - i))), (int)(n - i));
}

void VARIANT(scale)(float *y, const float *x, float factor, int64_t n)
{
    vec16 f = v_set(factor);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(y + i, v_mul(v_load(x + i), f));
    if (i < n)
        v_store_n(y + i, v_mul(v_load_n(x + i, (int)(n - i)), f), (int)(n - i));
}

void VARIANT(scale_add)(float *x, const float *base, float scale, const float *add, int64_t n)
{
    vec16 s = v_set(scale);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(x + i, v_fma(s, v_load(base + i), v_load(add + i)));
    int rest = (int)(n - i);
    if (rest > 0)
        v_store_n(x + i, v_fma(s, v_load_n(base + i, rest), v_load_n(add + i, rest)), rest);
}
