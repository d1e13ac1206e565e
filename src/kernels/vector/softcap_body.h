/* A soft bound with vec16: the optimized ref/softcap.h. */
#include "kernels/vector/exp_body.h"
#include "kernels/vector/vector.h"

INLINE vec16 v_softcap(vec16 x, float cap)
{
    vec16 e = v_exp(v_mul(x, v_set(2.0f / cap)));
    return v_sub(v_set(cap), v_div(v_set(2.0f * cap), v_add(e, v_set(1.0f))));
}
