#include "offline/perplexity.h"

#include "base/containers/array.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LOG_RANGE = 16, TOP_CODE = 65535 };

enum tutti_status perplexity_init(struct perplexity *p, int n_vocab, bool has_base, struct tutti_error *err)
{
    unsigned cpu;
    *p = (struct perplexity){ .n_vocab = n_vocab, .has_base = has_base };
    enum tutti_status st = cpu_find(&cpu, NULL, err);
    if (st == TUTTI_OK)
        kernels_init(&p->kernels, cpu);
    return st;
}

void perplexity_clear(struct perplexity *p)
{
    free(p->kls);
    p->kls = NULL;
}

bool perplexity_encode(const struct perplexity *p, const float *logits, float *scale, float *min,
                       uint16_t *codes)
{
    struct logits_scan scan = logits_scan(&p->kernels, logits, p->n_vocab);
    if (!scan.is_finite)
        return false;
    float lowest = 0; /* all relative to the largest, which may be beyond counting by ones */
    for (int i = 0; i < p->n_vocab; i++)
        lowest = logits[i] - scan.max < lowest ? logits[i] - scan.max : lowest;
    lowest = lowest > -LOG_RANGE ? lowest : -LOG_RANGE;
    *scale = -lowest / TOP_CODE;
    *min = lowest + (scan.max - scan.log_sum_exp);
    float inverse = *scale > 0 ? 1 / *scale : 0;
    for (int i = 0; i < p->n_vocab; i++) {
        float code = (logits[i] - scan.max - lowest) * inverse + 0.5f;
        codes[i] = (uint16_t)(code < 0 ? 0 : code > TOP_CODE ? TOP_CODE : (int)code);
    }
    return true;
}

enum tutti_status perplexity_code(const struct perplexity *p, const float *logits, int32_t target,
                                  uint16_t *codes, struct coded_row *out, struct tutti_error *err)
{
    *out = (struct coded_row){ .codes = codes, .has_nll = true };
    if (!perplexity_encode(p, logits, &out->scale, &out->min, codes))
        return error_set(err, TUTTI_E_NUMERIC, "the model's logits are not finite at scored token %llu",
                         (unsigned long long)p->n);
    out->nll = logits_scan(&p->kernels, logits, p->n_vocab).log_sum_exp - logits[target];
    return TUTTI_OK;
}

static bool keep_kl(struct perplexity *p, double kl)
{
    if (!array_grow(&p->kls, p->n, &p->capacity, sizeof *p->kls))
        return false;
    p->kls[p->n] = (float)kl;
    return true;
}

/* The divergence of a row, and whether both have the same most probable token. */
static double compare_rows(const struct perplexity *p, const float *logits, const struct logits_scan *scan,
                           const struct coded_row *base, bool *is_same_top)
{
    double sum = 0;
    int top = 0;
    for (int i = 0; i < p->n_vocab; i++) {
        float log_p = base->scale * (float)base->codes[i] + base->min;
        top = base->codes[i] > base->codes[top] ? i : top;
        if (log_p > -LOG_RANGE)
            sum += (double)(expf(log_p) * (log_p - (logits[i] - scan->log_sum_exp)));
    }
    *is_same_top = top == scan->argmax;
    return sum;
}

enum tutti_status perplexity_add(struct perplexity *p, const float *logits, int32_t target,
                                 const struct coded_row *base, struct tutti_error *err)
{
    struct logits_scan scan = logits_scan(&p->kernels, logits, p->n_vocab);
    if (!scan.is_finite)
        return error_set(err, TUTTI_E_NUMERIC, "the model's logits are not finite at scored token %llu",
                         (unsigned long long)p->n);
    double nll = (double)scan.log_sum_exp - (double)logits[target];
    if (base) {
        bool is_same_top;
        double base_nll = base->has_nll ? (double)base->nll
                                        : -(double)(base->scale * (float)base->codes[target] + base->min);
        double kl = compare_rows(p, logits, &scan, base, &is_same_top), change = exp(-nll) - exp(-base_nll);
        if (!keep_kl(p, kl))
            return error_set(err, TUTTI_E_MEMORY, "out of memory for the divergences of %zu tokens",
                             p->capacity);
        p->base_nll += base_nll;
        p->base_nll_squares += base_nll * base_nll;
        p->cross += nll * base_nll;
        p->kl += kl;
        p->kl_squares += kl * kl;
        p->change_squares += change * change;
        p->change_fourths += change * change * change * change;
        p->n_same_top += is_same_top;
    }
    p->nll += nll;
    p->nll_squares += nll * nll;
    p->n++;
    return TUTTI_OK;
}

/* ---- figures ---- */

static struct mean mean_of(double sum, double squares, uint64_t n)
{
    double mean = sum / (double)n, variance = squares / (double)n - mean * mean;
    return (struct mean){ mean, n > 1 && variance > 0 ? sqrt(variance / (double)(n - 1)) : 0 };
}

/* The covariance of two means over the same tokens. */
static double covariance(const struct perplexity *p)
{
    double n = (double)p->n;
    return n > 1 ? (p->cross / n - p->nll / n * (p->base_nll / n)) / (n - 1) : 0;
}

static double root(double x)
{
    return x > 0 ? sqrt(x) : 0;
}

static struct mean exponential(struct mean x)
{
    double value = exp(x.value);
    return (struct mean){ value, value * x.error };
}

struct mean perplexity_value(const struct perplexity *p)
{
    return exponential(mean_of(p->nll, p->nll_squares, p->n));
}

struct mean perplexity_base_value(const struct perplexity *p)
{
    return exponential(mean_of(p->base_nll, p->base_nll_squares, p->n));
}

struct mean perplexity_log_ratio(const struct perplexity *p)
{
    struct mean a = mean_of(p->nll, p->nll_squares, p->n),
                b = mean_of(p->base_nll, p->base_nll_squares, p->n);
    return (struct mean){ a.value - b.value,
                          root(a.error * a.error + b.error * b.error - 2 * covariance(p)) };
}

struct mean perplexity_difference(const struct perplexity *p)
{
    struct mean a = perplexity_value(p), b = perplexity_base_value(p);
    double both = a.value * b.value * covariance(p);
    return (struct mean){ a.value - b.value, root(a.error * a.error + b.error * b.error - 2 * both) };
}

struct mean perplexity_kl(const struct perplexity *p)
{
    return mean_of(p->kl, p->kl_squares, p->n);
}

struct mean perplexity_same_top(const struct perplexity *p)
{
    double part = (double)p->n_same_top / (double)p->n;
    return (struct mean){ part, p->n > 1 ? sqrt(part * (1 - part) / (double)(p->n - 1)) : 0 };
}

struct mean perplexity_change(const struct perplexity *p)
{
    struct mean squares = mean_of(p->change_squares, p->change_fourths, p->n);
    double rms = root(squares.value);
    return (struct mean){ rms, rms > 0 ? 0.5 / rms * squares.error : 0 };
}

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

double perplexity_kl_quantile(struct perplexity *p, double part)
{
    qsort(p->kls, p->n, sizeof *p->kls, by_size);
    double at = part * (double)(p->n - 1);
    size_t below = (size_t)at, above = below + 1 < p->n ? below + 1 : below;
    double rest = at - (double)below;
    return (1 - rest) * (double)p->kls[below] + rest * (double)p->kls[above];
}
