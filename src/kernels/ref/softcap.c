/* The soft bound of logits. */
#include "kernels/ref/softcap.h"
#include "kernels/ref/ref.h"

void softcap_ref(float *x, float cap, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = softcap_one(x[i], cap);
}
