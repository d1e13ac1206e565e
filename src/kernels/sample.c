/* What sampling asks of a row of logits, over the kernels of the table. */
#include "kernels/kernels.h"

#include <math.h>

struct logits_scan logits_scan(const struct kernels *k, const float *x, int n)
{
    struct logits_scan scan = { 0 };
    scan.is_finite = k->scan_max(x, n, &scan.max);
    if (!scan.is_finite)
        return scan;
    scan.argmax = k->find_above(x, 0, n, nextafterf(scan.max, -INFINITY));
    scan.log_sum_exp = (float)((double)scan.max + log((double)k->sum_exp(x, n, scan.max, 1)));
    return scan;
}
