#include "kernels/arm/neon/vec16.h"

#include "kernels/vector/softcap_body.h"

void VARIANT(softcap)(float *x, float cap, int64_t n)
{
    int64_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(x + i, v_softcap(v_load(x + i), cap));
    int rest = (int)(n - i);
    if (rest > 0)
        v_store_n(x + i, v_softcap(v_load_n(x + i, rest), cap), rest);
}
