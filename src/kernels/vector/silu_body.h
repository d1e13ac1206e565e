/* The gates of SwiGLU with vec16: the optimized ref/silu.c. Included by a file of one instruction
 * set. */
#include "kernels/ref/silu.h"
#include "kernels/vector/exp_body.h"
#include "kernels/vector/vector.h"

INLINE vec16 silu_mul_one(vec16 gate, vec16 up)
{
    return v_mul(v_div(gate, v_add(v_set(1.0f), v_exp(v_negate(gate)))), up);
}

/* NaN stays: it is the second operand of v_min() and v_max(). */
INLINE vec16 silu_clamped_mul_one(vec16 gate, vec16 up)
{
    vec16 limit = v_set(SILU_CLAMPED_LIMIT), one = v_set(1.0f), g = v_min(limit, gate);
    vec16 u = v_min(limit, v_max(v_negate(limit), up));
    vec16 e = v_exp(v_negate(v_mul(v_set(SILU_CLAMPED_SLOPE), g)));
    return v_mul(v_div(g, v_add(one, e)), v_add(u, one));
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

void VARIANT(silu_clamped_mul)(float *y, const float *gate, const float *up, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(y + i, silu_clamped_mul_one(v_load(gate + i), v_load(up + i)));
    int rest = (int)(n - i);
    if (rest > 0)
        v_store_n(y + i, silu_clamped_mul_one(v_load_n(gate + i, rest), v_load_n(up + i, rest)), rest);
}
