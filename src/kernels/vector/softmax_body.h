/* Softmax of a row with vec16: the optimized ref/softmax.c. Included by a file of one instruction
 * set. */
#include "kernels/vector/exp_body.h"
#include "kernels/vector/vector.h"

#include <math.h>

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
