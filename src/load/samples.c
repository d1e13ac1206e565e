#include "load/samples.h"

#include "base/containers/array.h"

#include <math.h>
#include <stdlib.h>

bool samples_add(struct load_samples *s, uint64_t us)
{
    if (!array_grow(&s->us, s->n, &s->capacity, sizeof *s->us))
        return false;
    s->us[s->n++] = us > UINT32_MAX ? UINT32_MAX : (uint32_t)us;
    s->is_sorted = false;
    return true;
}

void samples_clear(struct load_samples *s)
{
    free(s->us);
    *s = (struct load_samples){ 0 };
}

static int compare_us(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void sort(struct load_samples *s)
{
    if (!s->is_sorted && s->n > 1)
        qsort(s->us, s->n, sizeof *s->us, compare_us);
    s->is_sorted = true;
}

double samples_quantile(struct load_samples *s, double part)
{
    if (s->n == 0)
        return NAN;
    sort(s);
    double place = part * (double)(s->n - 1);
    size_t below = (size_t)place;
    if (below >= s->n - 1)
        return s->us[s->n - 1] / 1e3;
    double low = s->us[below], high = s->us[below + 1];
    return (low + (high - low) * (place - (double)below)) / 1e3;
}

size_t samples_within(struct load_samples *s, double limit_ms)
{
    size_t low = 0, high = s->n;
    sort(s);
    while (low < high) { /* the first sample above the limit */
        size_t middle = low + (high - low) / 2;
        if (s->us[middle] / 1e3 <= limit_ms)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct sample_summary samples_summarize(struct load_samples *s)
{
    struct sample_summary out = { s->n, NAN, NAN, NAN, NAN, NAN, NAN, NAN };
    if (s->n == 0)
        return out;
    double sum = 0, squares = 0; /* sums of whole microseconds: exact up to 2^53 */
    for (size_t i = 0; i < s->n; i++)
        sum += s->us[i];
    double mean = sum / (double)s->n;
    for (size_t i = 0; i < s->n; i++)
        squares += (s->us[i] - mean) * (s->us[i] - mean);
    out.mean = mean / 1e3;
    out.deviation = sqrt(squares / (double)s->n) / 1e3;
    out.min = samples_quantile(s, 0);
    out.p50 = samples_quantile(s, 0.5);
    out.p90 = samples_quantile(s, 0.9);
    out.p99 = samples_quantile(s, 0.99);
    out.max = samples_quantile(s, 1);
    return out;
}
