#include "kernels/quantize/quantize_fit.h"

#include <math.h>

float fit_normalizer(float max, int *exponent)
{
    *exponent = 0;
    if (max > 0)
        frexpf(max, exponent);
    return ldexpf(1, *exponent < -126 ? 126 : -*exponent); /* 2^127 is the largest power */
}

/* Each step has its own loop of known length: one loop over the steps would be vectorized for any length. */
static float fit_fold(const float *lanes)
{
    float eight[8], four[4];
    for (int i = 0; i < 8; i++)
        eight[i] = lanes[i] + lanes[i + 8];
    for (int i = 0; i < 4; i++)
        four[i] = eight[i] + eight[i + 4];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

void fit_assign(struct fit_sums *out, const float *x, const float *w, int n, float inverse, float min,
                struct fit_range range, float *numbers)
{
    float sum_q[FIT_LANES] = { 0 }, sum_qq[FIT_LANES] = { 0 }, sum_xq[FIT_LANES] = { 0 };
    for (int i = 0; i < n; i += FIT_LANES) {
        for (int j = 0; j < FIT_LANES; j++) {
            float q = fit_nearest(fit_clamp((x[i + j] + min) * inverse, range.low, range.high));
            float weighted = w[i + j] * q;
            sum_q[j] += weighted;
            sum_qq[j] += weighted * q;
            sum_xq[j] += x[i + j] * weighted;
            if (numbers)
                numbers[i + j] = q;
        }
    }
    *out = (struct fit_sums){ fit_fold(sum_q), fit_fold(sum_qq), fit_fold(sum_xq) };
}

float fit_error(const float *x, const float *w, int n, struct fit fit, struct fit_range range)
{
    float sum[FIT_LANES] = { 0 }, inverse = fit.scale != 0 ? 1 / fit.scale : 0;
    for (int i = 0; i < n; i += FIT_LANES) {
        for (int j = 0; j < FIT_LANES; j++) {
            float q = fit_nearest(fit_clamp((x[i + j] + fit.min) * inverse, range.low, range.high));
            float error = x[i + j] - (fit.scale * q - fit.min);
            sum[j] += w[i + j] * (error * error);
        }
    }
    return fit_fold(sum);
}

/* ---- scale without minimum ---- */

/* Starting scales: the number that the largest magnitude maps to, relative to the larger bound.
 * Below 1 the range is not fully used, which pays if otherwise many weights were rounded badly;
 * above 1 the largest weights are clipped. */
static const float REACH[] = { 0.72f, 0.80f, 0.86f, 0.91f, 0.95f, 0.98f, 1.01f, 1.04f,
                               1.08f, 1.12f, 1.17f, 1.23f, 1.30f, 1.40f, 1.55f };
enum { N_REACH = sizeof REACH / sizeof *REACH, MOST_STEPS = 4 };

float fit_scale(const float *x, const float *w, int n, struct fit_range range)
{
    float max = 0;
    for (int i = 0; i < n; i++)
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    if (max == 0)
        return 0;
    float best = -1, scale = 0, bound = -range.low;
    for (int i = 0; i < 2 * N_REACH; i++) {
        float inverse = bound * REACH[i / 2] / max;
        struct fit_sums s;
        fit_assign(&s, x, w, n, i % 2 ? -inverse : inverse, 0, range, 0);
        if (s.qq > 0 && s.xq * s.xq > best * s.qq) {
            best = s.xq * s.xq / s.qq; /* reduction of the error compared with all zeros */
            scale = s.xq / s.qq;
        }
    }
    for (int step = 0; step < MOST_STEPS && scale != 0; step++) {
        struct fit_sums s;
        fit_assign(&s, x, w, n, 1 / scale, 0, range, 0);
        if (!(s.qq > 0 && s.xq * s.xq > best * s.qq))
            break;
        best = s.xq * s.xq / s.qq;
        scale = s.xq / s.qq;
    }
    return scale;
}

/* ---- scale and min ---- */

/* A run shifted so that its smallest weight is 0. */
struct moved {
    float z[32];
    const float *w;
    int n;
    float weight;        /* the sum of w */
    float lowest, range; /* of the weights; lowest is at most 0 if the min must be positive */
    float sum, squares;
    float high;
    bool is_min_positive;
};

/* Least squares for given numbers. Returns the error. fit->min: of z. */
static float solve(const struct moved *m, const struct fit_sums *s, struct fit *fit)
{
    float n = m->weight, det = n * s->qq - s->q * s->q;
    float scale = det > 0 ? (n * s->xq - m->sum * s->q) / det : 0;
    float offset = (m->sum - scale * s->q) / n;
    if (m->is_min_positive && offset + m->lowest > 0) {
        offset = -m->lowest;
        scale = s->qq > 0 ? (s->xq - offset * s->q) / s->qq : 0;
    }
    *fit = (struct fit){ scale, -offset };
    return m->squares + scale * scale * s->qq + n * offset * offset -
           2 * (scale * s->xq + offset * m->sum - scale * offset * s->q);
}

/* One start of the search: the number of steps between lowest and highest, and the position of
 * the first. */
static float search_from(const struct moved *m, float inverse, float min, int n_steps, struct fit *fit)
{
    struct fit_range range = { 0, m->high };
    float best = INFINITY;
    for (int step = 0; step < n_steps; step++) {
        struct fit_sums s;
        struct fit next;
        fit_assign(&s, m->z, m->w, m->n, inverse, min, range, 0);
        float error = solve(m, &s, &next);
        if (!(error < best))
            break;
        best = error;
        *fit = next;
        if (!(next.scale > 0))
            break;
        inverse = 1 / next.scale;
        min = next.min;
    }
    return best;
}

static void move(struct moved *m, const float *x, const float *w, int n, float high, bool is_min_positive)
{
    float lowest = x[0], highest = x[0], sum[FIT_LANES] = { 0 }, squares[FIT_LANES] = { 0 },
          weight[FIT_LANES] = { 0 };
    for (int i = 1; i < n; i++) {
        lowest = x[i] < lowest ? x[i] : lowest;
        highest = x[i] > highest ? x[i] : highest;
    }
    if (is_min_positive && lowest > 0)
        lowest = 0;
    for (int i = 0; i < n; i++) {
        m->z[i] = x[i] - lowest;
        sum[i % FIT_LANES] += w[i] * m->z[i];
        squares[i % FIT_LANES] += w[i] * (m->z[i] * m->z[i]);
        weight[i % FIT_LANES] += w[i];
    }
    m->w = w;
    m->n = n;
    m->weight = fit_fold(weight);
    m->lowest = lowest;
    m->range = highest - lowest;
    m->sum = fit_fold(sum);
    m->squares = fit_fold(squares);
    m->high = high;
    m->is_min_positive = is_min_positive;
}

struct fit fit_affine(const float *x, const float *w, int n, float high, bool is_min_positive)
{
    /* The fractions of the range below and above all numbers. */
    static const float OUTSIDE[] = { -0.02f, 0.05f, 0.13f };
    enum { N_OUTSIDE = sizeof OUTSIDE / sizeof *OUTSIDE };
    struct moved m;
    move(&m, x, w, n, high, is_min_positive);
    struct fit best = { 0, -m.lowest };
    if (!(m.range > 0))
        return best;
    float least = INFINITY, step = 3.0f / high; /* the fewer the numbers, the more weights may be outside */
    for (int i = 0; i < N_OUTSIDE; i++) {
        for (int j = 0; j < N_OUTSIDE; j++) {
            float below = OUTSIDE[i] * step, above = OUTSIDE[j] * step;
            struct fit fit = best;
            float inverse = high / (m.range * (1 - below - above));
            float error = search_from(&m, inverse, -below * m.range, 2, &fit);
            if (error < least) {
                least = error;
                best = fit;
            }
        }
    }
    struct fit finer = best;
    if (best.scale > 0 && search_from(&m, 1 / best.scale, best.min, MOST_STEPS, &finer) < least)
        best = finer;
    best.min -= m.lowest;
    return best;
}
