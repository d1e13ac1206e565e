/* float32 to half precision, with vec16: the optimized ref/half.c. Included by a file of one
 * instruction set. */
#include "kernels/vector/vector.h"

void VARIANT(to_half)(uint16_t *y, const float *x, int n)
{
    for (int i = 0; i < n; i += 16)
        v_store_half_n(y + i, v_load_n(x + i, lanes_left(i, n)), lanes_left(i, n));
}
