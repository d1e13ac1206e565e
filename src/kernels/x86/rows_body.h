/* Operations on whole rows over vec16: the twins of ref/rows.c. Included by a file of one instruction set. */
#include "kernels/x86/exp_body.h"
#include "kernels/x86/x86.h"

#include <math.h>

INLINE int lanes_left(int64_t i, int64_t n)
{
    return n - i < 16 ? (int)(n - i) : 16;
}

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

void VARIANT(add)(float *x, const float *y, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(x + i, v_add(v_load(x + i), v_load(y + i)));
    if (i < n)
        v_store_n(x + i, v_add(v_load_n(x + i, (int)(n - i)), v_load_n(y + i, (int)(n - i))), (int)(n - i));
}

INLINE vec16 silu_mul_one(vec16 gate, vec16 up)
{
    return v_mul(v_div(gate, v_add(v_set(1.0f), v_exp(v_negate(gate)))), up);
}

void VARIANT(silu_mul)(float *y, const float *gate, const float *up, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(y + i, silu_mul_one(v_load(gate + i), v_load(up + i)));
    int rest = (int)(n - i);
    if (rest > 0)
        v_store_n(y + i, silu_mul_one(v_load_n(gate + i, rest), v_load_n(up + i, rest)), rest);
}

void VARIANT(softmax)(float *y, const float *x, int n)
{
    vec16 max = v_set(-(float)INFINITY), sum = v_set(0);
    for (int i = 0; i < n; i += 16) {
        int lanes = lanes_left(i, n);
        max = v_select(first_lanes(lanes), v_max(v_load_n(x + i, lanes), max), max);
    }
    vec16 top = v_set(v_fold_max(max));
    for (int i = 0; i < n; i += 16) {
        int lanes = lanes_left(i, n);
        vec16 e = v_exp(v_sub(v_load_n(x + i, lanes), top));
        sum = v_select(first_lanes(lanes), v_add(sum, e), sum);
        v_store_n(y + i, e, lanes);
    }
    vec16 total = v_set(v_fold(sum));
    for (int i = 0; i < n; i += 16) {
        int lanes = lanes_left(i, n);
        v_store_n(y + i, v_div(v_load_n(y + i, lanes), total), lanes);
    }
}

void VARIANT(rope_interleaved)(float *x, const float *cos_sin, int n_heads, int head_dim, int rotary_dim)
{
    int n_pairs = rotary_dim / 2;
    for (int h = 0; h < n_heads; h++, x += head_dim)
        for (int j = 0; j < n_pairs; j += 8) {
            int pairs = n_pairs - j < 8 ? n_pairs - j : 8;
            vec16 u = v_load_n(x + 2 * j, 2 * pairs);
            vec16 crossed = v_mul(v_swap_pairs(u), v_load_twice(cos_sin + n_pairs + j, pairs));
            v_store_n(x + 2 * j, v_fma_sub_add(u, v_load_twice(cos_sin + j, pairs), crossed), 2 * pairs);
        }
}

void VARIANT(rope_half)(float *x, const float *cos_sin, int n_heads, int head_dim, int rotary_dim)
{
    int n_pairs = rotary_dim / 2;
    for (int h = 0; h < n_heads; h++, x += head_dim)
        for (int j = 0; j < n_pairs; j += 16) {
            int lanes = lanes_left(j, n_pairs);
            vec16 u = v_load_n(x + j, lanes), v = v_load_n(x + n_pairs + j, lanes);
            vec16 cos = v_load_n(cos_sin + j, lanes), sin = v_load_n(cos_sin + n_pairs + j, lanes);
            v_store_n(x + j, v_fms(u, cos, v_mul(v, sin)), lanes);
            v_store_n(x + n_pairs + j, v_fma(v, cos, v_mul(u, sin)), lanes);
        }
}

bool VARIANT(scan_max)(const float *x, int n, float *max)
{
    vec16 top = v_set(-(float)INFINITY);
    unsigned finite = 0xFFFF;
    for (int i = 0; i < n; i += 16) {
        int lanes = lanes_left(i, n);
        vec16 v = lanes == 16 ? v_load(x + i) : v_load_n(x + i, lanes);
        finite &= v_bits(v_less_equal(v_abs(v), v_set(3.40282347e38f)));
        top = lanes == 16 ? v_max(v, top) : v_select(first_lanes(lanes), v_max(v, top), top);
    }
    *max = v_fold_max(top) + 0.0f;
    return finite == 0xFFFF;
}

float VARIANT(sum_exp)(const float *x, int n, float max)
{
    vec16 sum = v_set(0);
    for (int i = 0; i < n; i += 16) {
        int lanes = lanes_left(i, n);
        vec16 e = v_exp(v_sub(v_load_n(x + i, lanes), v_set(max)));
        sum = lanes == 16 ? v_add(sum, e) : v_select(first_lanes(lanes), v_add(sum, e), sum);
    }
    return v_fold(sum);
}

int VARIANT(find_above)(const float *x, int begin, int n, float bound)
{
    vec16 limit = v_set(bound);
    for (int i = begin; i < n; i += 16) {
        int lanes = lanes_left(i, n);
        unsigned found = v_bits(v_less(limit, lanes == 16 ? v_load(x + i) : v_load_n(x + i, lanes)));
        found &= (1u << lanes) - 1; /* what lies behind the end reads as zero */
        if (found != 0)
            return i + __builtin_ctz(found);
    }
    return n;
}

void VARIANT(to_half)(uint16_t *y, const float *x, int n)
{
    for (int i = 0; i < n; i += 16)
        v_store_half_n(y + i, v_load_n(x + i, lanes_left(i, n)), lanes_left(i, n));
}
