/* exp of sixteen floats: the operations of exp_ref() one by one. */
#include "kernels/ref/exp.h"

INLINE vec16 v_exp(vec16 x)
{
    vec16 clamped = v_min(v_set(EXP_HIGH),
                          v_max(v_set(EXP_LOW), x)); /* NaN stays: it is the second operand */
    vec16 shifted = v_fma(clamped, v_set(EXP_LOG2E), v_set(EXP_MAGIC));
    vec16 n = v_sub(shifted, v_set(EXP_MAGIC));
    vec16 r = v_fma(n, v_set(-EXP_LN2_H), clamped);
    r = v_fma(n, v_set(-EXP_LN2_L), r);
    vec16 p = v_fma(v_set(EXP_C6), r, v_set(EXP_C5));
    p = v_fma(p, r, v_set(EXP_C4));
    p = v_fma(p, r, v_set(EXP_C3));
    p = v_fma(p, r, v_set(EXP_C2));
    p = v_fma(p, r, v_set(1.0f));
    p = v_fma(p, r, v_set(1.0f));
    vec16 y = v_mul(p, v_exponent(shifted));
    y = v_select(v_less(x, v_set(EXP_LOW)), v_set(0.0f), y);
    return v_select(v_less(v_set(EXP_HIGH), x), v_set(__builtin_inff()), y);
}
