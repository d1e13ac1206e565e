/* float32 to half precision. */
#include "kernels/ref/ref.h"

void to_half_ref(uint16_t *y, const float *x, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = float_to_half(x[i]);
}
