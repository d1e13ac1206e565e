/* The gate of SwiGLU with vec16: the optimized ref/silu.c. Included by a file of one instruction
 * set. */
#include "kernels/x86/exp_body.h"
#include "kernels/x86/x86.h"

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
