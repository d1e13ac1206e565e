/* Scans over a row of logits, for sampling. */
#include "base/rng.h"
#include "kernels/ref/ref.h"

bool scan_max_ref(const float *x, int n, float *max)
{
    float top = -(float)INFINITY;
    bool is_finite = true;
    for (int i = 0; i < n; i++) {
        is_finite = is_finite && fabsf(x[i]) <= 3.40282347e38f;
        top = max_of(x[i], top);
    }
    *max = top + 0.0f; /* no negative zero, which would depend on the order */
    return is_finite;
}

float sum_exp_ref(const float *x, int n, float max, float scale)
{
    float sum[16] = { 0 };
    for (int i = 0; i < n; i++)
        sum[i % 16] += exp_ref((x[i] - max) * scale);
    return fold16(sum);
}

void exps_ref(const float *x, int n, float max, float scale, float *out)
{
    for (int i = 0; i < n; i++)
        out[i] = exp_ref((x[i] - max) * scale);
}

int find_above_ref(const float *x, int begin, int n, float bound)
{
    int i = begin;
    while (i < n && !(x[i] > bound))
        i++;
    return i;
}

int find_arrival_ref(const float *x, int begin, int n, const struct arrival_bound *r)
{
    float most = r->first * ARRIVAL_MARGIN;
    int i = begin;
    while (i < n) {
        float early = (float)(mix64(r->seed ^ (uint32_t)i) >> 40) * 0x1p-24f;
        if (early < most * exp_ref((x[i] - r->max) * r->scale))
            break;
        i++;
    }
    return i;
}
