/* Scans over a row of logits with vec16: the optimized ref/logits.c. Included by a file of one
 * instruction set. */
#include "kernels/vector/exp_body.h"
#include "kernels/vector/vector.h"

#include <math.h>

bool VARIANT(scan_max)(const float *x, int n, float *max)
{
    vec16 top = v_set(-(float)INFINITY);
    unsigned finite = 0xFFFF;
    for (int i = 0; i < n; i += 16) {
        int lanes = lanes_left(i, n);
        vec16 v = lanes == 16 ? v_load(x + i) : v_load_n(x + i, lanes);
        finite &= v_bits(v_less_equal(v_abs(v), v_set(3.40282347e38f)));
        top = lanes == 16 ? v_max(v, top) : v_select(first_lanes(lanes), v_max(v, top), top);
    }
    *max = v_fold_max(top) + 0.0f;
    return finite == 0xFFFF;
}

float VARIANT(sum_exp)(const float *x, int n, float max, float scale)
{
    vec16 sum = v_set(0);
    for (int i = 0; i < n; i += 16) {
        int lanes = lanes_left(i, n);
        vec16 e = v_exp(v_mul(v_sub(v_load_n(x + i, lanes), v_set(max)), v_set(scale)));
        sum = lanes == 16 ? v_add(sum, e) : v_select(first_lanes(lanes), v_add(sum, e), sum);
    }
    return v_fold(sum);
}

void VARIANT(exps)(const float *x, int n, float max, float scale, float *out)
{
    for (int i = 0; i < n; i += 16) {
        int lanes = lanes_left(i, n);
        vec16 e = v_exp(v_mul(v_sub(v_load_n(x + i, lanes), v_set(max)), v_set(scale)));
        v_store_n(out + i, e, lanes);
    }
}

int VARIANT(find_above)(const float *x, int begin, int n, float bound)
{
    vec16 limit = v_set(bound);
    for (int i = begin; i < n; i += 16) {
        int lanes = lanes_left(i, n);
        unsigned found = v_bits(v_less(limit, lanes == 16 ? v_load(x + i) : v_load_n(x + i, lanes)));
        found &= (1u << lanes) - 1; /* lanes after the end read as zero */
        if (found != 0)
            return i + __builtin_ctz(found);
    }
    return n;
}

int VARIANT(find_arrival)(const float *x, int begin, int n, const struct arrival_bound *r)
{
    vec16 most = v_set(r->first * ARRIVAL_MARGIN), max = v_set(r->max), scale = v_set(r->scale);
    for (int i = begin; i < n; i += 16) {
        int lanes = lanes_left(i, n);
        vec16 v = lanes == 16 ? v_load(x + i) : v_load_n(x + i, lanes);
        vec16 early = v_mul(v_mixed(r->seed, (uint32_t)i), v_set(0x1p-24f));
        unsigned found = v_bits(v_less(early, v_mul(most, v_exp(v_mul(v_sub(v, max), scale)))));
        found &= (1u << lanes) - 1;
        if (found != 0)
            return i + __builtin_ctz(found);
    }
    return n;
}
