/* GELU and the gate of GEGLU with vec16: the optimized ref/gelu.c. Included by a file of one
 * instruction set. */
#include "kernels/ref/gelu.h"
#include "kernels/vector/exp_body.h"
#include "kernels/vector/vector.h"

INLINE vec16 sigmoid_times(vec16 x, vec16 z)
{
    return v_div(x, v_add(v_set(1.0f), v_exp(v_negate(z))));
}

INLINE vec16 gelu_tanh_one(vec16 x)
{
    vec16 cube = v_fma(v_set(GELU_TANH_CUBE), v_mul(x, x), v_set(1.0f));
    return sigmoid_times(x, v_mul(v_mul(v_set(GELU_TANH_SLOPE), x), cube));
}

INLINE vec16 gelu_sigmoid_one(vec16 x)
{
    return sigmoid_times(x, v_mul(v_set(GELU_SIGMOID_SLOPE), x));
}

void VARIANT(gelu_tanh)(float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(x + i, gelu_tanh_one(v_load(x + i)));
    int rest = (int)(n - i);
    if (rest > 0)
        v_store_n(x + i, gelu_tanh_one(v_load_n(x + i, rest)), rest);
}

void VARIANT(gelu_tanh_mul)(float *y, const float *gate, const float *up, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(y + i, v_mul(gelu_tanh_one(v_load(gate + i)), v_load(up + i)));
    int rest = (int)(n - i);
    if (rest > 0)
        v_store_n(y + i, v_mul(gelu_tanh_one(v_load_n(gate + i, rest)), v_load_n(up + i, rest)), rest);
}

void VARIANT(gelu_sigmoid)(float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(x + i, gelu_sigmoid_one(v_load(x + i)));
    int rest = (int)(n - i);
    if (rest > 0)
        v_store_n(x + i, gelu_sigmoid_one(v_load_n(x + i, rest)), rest);
}

INLINE vec16 gelu_erf_one(vec16 x)
{
    vec16 z = v_mul(v_abs(x), v_set(GELU_ERF_SCALE)), one = v_set(1.0f);
    vec16 t = v_div(one, v_fma(v_set(GELU_ERF_P), z, one));
    vec16 p = v_fma(t, v_set(GELU_ERF_A5), v_set(GELU_ERF_A4));
    p = v_fma(t, p, v_set(GELU_ERF_A3));
    p = v_fma(t, p, v_set(GELU_ERF_A2));
    p = v_fma(t, p, v_set(GELU_ERF_A1));
    vec16 half = v_mul(v_set(0.5f), v_mul(v_mul(t, p), v_exp(v_negate(v_mul(z, z)))));
    return v_mul(x, v_select(v_less(x, v_set(0)), half, v_sub(one, half)));
}

void VARIANT(gelu_erf)(float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(x + i, gelu_erf_one(v_load(x + i)));
    int rest = (int)(n - i);
    if (rest > 0)
        v_store_n(x + i, gelu_erf_one(v_load_n(x + i, rest)), rest);
}
