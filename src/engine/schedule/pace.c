#include "engine/schedule/pace.h"

#include <math.h>
#include <stdbool.h>

enum {
    MANY_ROWS =
        16, /* fewer say little about the cost of a row; also the first chunk, before any measurement */
    FEW_PREFILLS =
        4, /* consecutive steps with prefill, at least, even while the number of decoding rows changes */
    MANY_PREFILLS =
        16, /* and at most: a step without prefill takes half as long, so this costs 3 % of prefill */
};
static const double MARGIN = 0.95;                       /* of the allowed slowdown: steps vary */
static const double LEARNING = 1 / 8., BRAKING = 1 / 4.; /* BRAKING: after a step above the limit */

static bool is_close(int a, int b)
{
    int difference = a > b ? a - b : b - a;
    return difference <= 1 || difference * 8 <= b;
}

/* A step with more rows takes at most proportionally longer, and one with fewer rows no longer than
 * before: within these bounds a single measurement is accepted. */
static void note_decoding(struct pace *p, int n_decoding, double us)
{
    if (p->decode_us <= 0) {
        p->decode_us = us;
    } else if (is_close(n_decoding, p->decode_rows)) {
        if (n_decoding >= 8) /* then a row more or less changes little: scale proportionally */
            p->decode_us *= (double)n_decoding / p->decode_rows;
        /* A lone step between many with prefill weighs more than one of many alike. An outlier
         * changes little. */
        double capped = us < 1.5 * p->decode_us ? us : 1.5 * p->decode_us;
        p->decode_us += (capped - p->decode_us) * (p->n_prefills > 0 ? 0.5 : LEARNING);
    } else {
        double most = p->decode_us * (n_decoding > p->decode_rows ? (double)n_decoding / p->decode_rows : 1);
        p->decode_us = us < 1.25 * most ? us : 1.25 * most;
    }
    p->decode_rows = n_decoding;
    p->n_prefills = 0;
}

/* Lower estimate of the duration of a step with n_decoding rows and no prefill. */
static double decode_us(const struct pace *p, int n_decoding)
{
    return n_decoding < p->decode_rows ? p->decode_us * n_decoding / p->decode_rows : p->decode_us;
}

/* Time that prefill may add to a step; at least one row. */
static double allowance_us(const struct pace *p, int n_decoding)
{
    return fmax((MARGIN * p->max_slowdown - 1) * decode_us(p, n_decoding), 1e-3);
}

/* The error is divided between both parts of the cost in proportion to their inputs: normalized
 * least mean squares (Widrow and Hoff, 1960). */
static void note_prefill(struct pace *p, int n_decoding, double n, double distance, double us)
{
    double decode = decode_us(p, n_decoding), far = distance / PACE_FAR;
    double expected = p->prefill_us * n + p->far_us * far, most = 4 * (decode + expected);
    if (p->prefill_us <= 0) {
        p->prefill_us = fmax(us - decode, us / 8) / n;
        return;
    }
    double error = (us < most ? us : most) - decode - expected;
    /* The first rows may be free while the step is bound by memory bandwidth: few rows do not show
     * the cost of many. */
    if (error < 0 && expected < allowance_us(p, n_decoding) / 2)
        return;
    double step = error * (error > 0 ? BRAKING : LEARNING) / (n * n + far * far);
    p->prefill_us = fmax(p->prefill_us + step * n, 0.01 * us / n);
    p->far_us = fmax(p->far_us + step * far, 0);
}

void pace_note(struct pace *p, int n_decoding, int n_prefill, double distance, uint64_t us)
{
    int n_rows = n_decoding + n_prefill;
    double row_us = (double)us / n_rows;
    if (n_prefill == 0) {
        note_decoding(p, n_decoding, (double)us);
        return;
    }
    if (n_rows >= MANY_ROWS)
        p->row_us = p->row_us > 0 ? p->row_us + (fmin(row_us, 4 * p->row_us) - p->row_us) * LEARNING : row_us;
    if (n_decoding > 0 && p->decode_us > 0)
        note_prefill(p, n_decoding, n_prefill, distance, (double)us);
    p->n_prefills += n_decoding > 0;
}

double pace_budget(const struct pace *p, int n_decoding)
{
    if (p->max_slowdown <= 0)
        return INFINITY;
    bool is_known = p->decode_us > 0 && is_close(n_decoding, p->decode_rows);
    if (p->decode_us <= 0 || p->n_prefills >= (is_known ? MANY_PREFILLS : FEW_PREFILLS))
        return 0;
    return allowance_us(p, n_decoding);
}

static double cost(const struct pace *p, int n, int pos)
{
    return n * (p->prefill_us + p->far_us * pos / PACE_FAR);
}

int pace_rows(const struct pace *p, double budget_us, int pos)
{
    if (isinf(budget_us))
        return INT32_MAX;
    if (p->prefill_us <= 0)
        return MANY_ROWS;
    double n = budget_us / cost(p, 1, pos);
    return n < 1 ? 1 : n < INT32_MAX ? (int)n : INT32_MAX;
}

int pace_usual_rows(const struct pace *p, int n_decoding)
{
    if (p->max_slowdown <= 0 || p->decode_us <= 0 || n_decoding == 0)
        return INT32_MAX;
    return pace_rows(p, allowance_us(p, n_decoding), 0);
}

double pace_spend(const struct pace *p, double budget_us, int n, int pos)
{
    if (isinf(budget_us))
        return budget_us;
    return p->prefill_us > 0 ? budget_us - cost(p, n, pos) : 0;
}
