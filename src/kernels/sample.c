/* Argmax and log-sum-exp of a row of logits, with the kernels of the table. */
#include "kernels/kernels.h"

#include <math.h>

int logits_argmax(const struct kernels *k, const float *x, int n)
{
    float max;
    return k->scan_max(x, n, &max) ? k->find_above(x, 0, n, nextafterf(max, -INFINITY)) : -1;
}

struct logits_scan logits_scan(const struct kernels *k, const float *x, int n)
{
    struct logits_scan scan = { .argmax = logits_argmax(k, x, n) };
    scan.is_finite = scan.argmax >= 0;
    if (!scan.is_finite)
        return scan;
    scan.max = x[scan.argmax] + 0.0f; /* no negative zero */
    scan.log_sum_exp = (float)((double)scan.max + log((double)k->sum_exp(x, n, scan.max, 1)));
    return scan;
}
