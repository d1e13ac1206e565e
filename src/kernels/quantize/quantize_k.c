/* Quantizes K-quants: blocks of 256 in runs with their own scales, which are integer multiples of
 * one float16 for the block.
 *
 * First each run is fitted separately. Then the block's float16 scale and min are chosen so that their
 * multiples are near the fitted values of the runs. Each run takes the multiple with the least
 * error, and the block's scale and min are fitted again to the resulting numbers. */
#include "kernels/quantize/quantize_blocks.h"
#include "kernels/quantize/quantize_fit.h"

#include <math.h>

enum { ELEMS = 256, MAX_RUNS = 16, ROUNDS = 2 };

struct form {
    int run;                   /* elements */
    int zero;                  /* is subtracted from a stored number */
    struct fit_range numbers;  /* after subtracting zero */
    int low_scale, high_scale; /* of the multiples */
    int high_min;              /* 0: no mins */
};

static struct form form_of(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_Q2_K:
        return (struct form){ 16, 0, { 0, 3 }, 0, 15, 15 };
    case DTYPE_Q3_K:
        return (struct form){ 16, 4, { -4, 3 }, -32, 31, 0 };
    case DTYPE_Q4_K:
        return (struct form){ 32, 0, { 0, 15 }, 0, 63, 63 };
    case DTYPE_Q5_K:
        return (struct form){ 32, 0, { 0, 31 }, 0, 63, 63 };
    default: /* Q6_K */
        return (struct form){ 16, 32, { -32, 31 }, -128, 127, 0 };
    }
}

/* A block while it is being fitted. */
struct k_block {
    struct form form;
    int n_runs, exponent;
    float x[ELEMS], w[ELEMS];  /* w: of the squared errors */
    struct fit want[MAX_RUNS]; /* the fit of each run, separately */
    float weight[MAX_RUNS];    /* cost of an error of the scale: the sum of squared numbers */
};

/* The block's scale and min, and each run's multiples of them. */
struct k_choice {
    uint16_t d, dmin;
    float scale, min; /* float16 values, for normalized weights */
    int scales[MAX_RUNS], mins[MAX_RUNS];
    float error;
};

static int nearest_in(float x, int low, int high)
{
    return (int)fit_nearest(fit_clamp(x, (float)low, (float)high));
}

static void fit_runs(struct k_block *b)
{
    const struct form *f = &b->form;
    for (int r = 0; r < b->n_runs; r++) {
        const float *x = b->x + r * f->run, *w = b->w + r * f->run;
        struct fit *want = &b->want[r];
        if (f->high_min > 0)
            *want = fit_affine(x, w, f->run, f->numbers.high, true);
        else
            *want = (struct fit){ .scale = fit_scale(x, w, f->run, f->numbers) };
        struct fit_sums s;
        fit_assign(&s, x, w, f->run, want->scale != 0 ? 1 / want->scale : 0, want->min, f->numbers, 0);
        b->weight[r] = s.qq;
    }
}

static uint16_t stored_half(const struct k_block *b, float x, float *value)
{
    uint16_t half = finite_half(ldexpf(x, b->exponent));
    *value = ldexpf(half_to_float(half), -b->exponent);
    return half;
}

/* The target multiples of all runs, and the cost of a squared distance from each. */
struct targets {
    float values[MAX_RUNS], weights[MAX_RUNS];
    int n, low, high; /* of the multiples */
};

static float target_error(const struct targets *w, float value)
{
    float error = 0;
    for (int r = 0; r < w->n; r++) {
        float lost = w->values[r] - value * (float)nearest_in(w->values[r] / value, w->low, w->high);
        error += w->weights[r] * lost * lost;
    }
    return error;
}

/* The least-squares value for the multiples that are nearest under another value; 0: all of them
 * are 0. */
static float target_refit(const struct targets *w, float value)
{
    float sum_vk = 0, sum_kk = 0;
    for (int r = 0; r < w->n; r++) {
        float k = (float)nearest_in(w->values[r] / value, w->low, w->high);
        sum_vk += w->weights[r] * w->values[r] * k;
        sum_kk += w->weights[r] * k * k;
    }
    return sum_kk > 0 ? sum_vk / sum_kk : 0;
}

/* The float16 whose multiples are nearest to the targets. The largest target maps to the last
 * multiple, or to one of the quarter steps around it; the coarser the multiples, the further
 * below the search goes. */
static uint16_t choose_half(const struct k_block *b, const struct targets *w, float *chosen)
{
    float largest = 0, least = INFINITY;
    uint16_t best = 0;
    *chosen = 0;
    for (int r = 0; r < w->n; r++)
        if (w->values[r] > fabsf(largest) || (w->low < 0 && w->values[r] < -fabsf(largest)))
            largest = w->values[r];
    int n_ends = w->low < 0 ? 2 : 1, n_steps = w->high > 40 ? 8 : w->high > 20 ? 12 : 24;
    for (int i = 0; largest != 0 && i < n_ends * n_steps; i++) {
        int n_quarters = i / n_ends;
        float below = 0.25f * (float)n_quarters - 0.4f, value;
        stored_half(b, largest / (i % 2 < n_ends - 1 ? (float)w->low + below : (float)w->high - below),
                    &value);
        for (int pass = 0; pass < 2 && value != 0; pass++)
            stored_half(b, target_refit(w, value), &value);
        float error = value != 0 ? target_error(w, value) : INFINITY;
        if (error < least) {
            least = error;
            best = stored_half(b, value, chosen);
        }
    }
    return best;
}

/* Chooses the multiples of one run, among those near its target. Returns the error. */
static float choose_multiples(const struct k_block *b, struct k_choice *c, int r)
{
    const struct form *f = &b->form;
    const float *x = b->x + r * f->run, *w = b->w + r * f->run;
    const struct fit *want = &b->want[r];
    float least = INFINITY;
    int middle = c->scale != 0 ? nearest_in(want->scale / c->scale, f->low_scale, f->high_scale) : 0;
    int around = c->min != 0 ? nearest_in(want->min / c->min, 0, f->high_min) : 0;
    for (int k = middle - 1; k <= middle + 1; k++) {
        for (int m = around - 1; m <= around + 1; m++) {
            if (k < f->low_scale || k > f->high_scale || m < 0 || m > f->high_min)
                continue;
            struct fit fit = { c->scale * (float)k, c->min * (float)m };
            float error = fit_error(x, w, f->run, fit, f->numbers);
            if (error < least) {
                least = error;
                c->scales[r] = k;
                c->mins[r] = m;
            }
        }
    }
    return least;
}

static void choose_all(const struct k_block *b, struct k_choice *c)
{
    c->error = 0;
    for (int r = 0; r < b->n_runs; r++)
        c->error += choose_multiples(b, c, r);
}

/* The numbers of a run under a choice; [run], zero subtracted. */
static void assign_run(const struct k_block *b, const struct k_choice *c, int r, struct fit_sums *sums,
                       float *numbers)
{
    const struct form *f = &b->form;
    float scale = c->scale * (float)c->scales[r], min = c->min * (float)c->mins[r];
    fit_assign(sums, b->x + r * f->run, b->w + r * f->run, f->run, scale != 0 ? 1 / scale : 0, min,
               f->numbers, numbers);
}

/* The least-squares scale and min for the numbers and multiples of a choice: x = d u - dmin v.
 * False: not solvable. */
static bool refit(const struct k_block *b, const struct k_choice *c, struct k_choice *out)
{
    double uu = 0, uv = 0, vv = 0, xu = 0, xv = 0;
    for (int r = 0; r < b->n_runs; r++) {
        const float *x = b->x + r * b->form.run, *w = b->w + r * b->form.run;
        struct fit_sums s;
        double k = c->scales[r], m = c->mins[r], sum = 0, weight = 0;
        assign_run(b, c, r, &s, NULL);
        for (int i = 0; i < b->form.run; i++)
            sum += (double)w[i] * (double)x[i];
        for (int i = 0; i < b->form.run; i++)
            weight += (double)w[i];
        uu += k * k * (double)s.qq;
        uv += k * m * (double)s.q;
        vv += m * m * weight;
        xu += k * (double)s.xq;
        xv += m * sum;
    }
    double det = uu * vv - uv * uv, d = 0, dmin = 0;
    if (det > 1e-12 * uu * vv) {
        d = (xu * vv - xv * uv) / det;
        dmin = (xu * uv - xv * uu) / det;
    } else if (uu > 0) {
        d = xu / uu;
        dmin = (double)c->min;
    }
    if (d == 0 || (b->form.high_min > 0 && (d < 0 || dmin < 0)))
        return false;
    out->d = stored_half(b, (float)d, &out->scale);
    out->dmin = stored_half(b, (float)dmin, &out->min);
    return out->scale != 0 && (out->d != c->d || out->dmin != c->dmin);
}

static void choose(const struct k_block *b, struct k_choice *best)
{
    struct targets scales = { .n = b->n_runs, .low = b->form.low_scale, .high = b->form.high_scale };
    struct targets mins = { .n = b->n_runs, .high = b->form.high_min };
    for (int r = 0; r < b->n_runs; r++) {
        scales.values[r] = b->want[r].scale;
        scales.weights[r] = b->weight[r];
        mins.values[r] = b->want[r].min;
        mins.weights[r] = 0;
        for (int i = 0; i < b->form.run; i++)
            mins.weights[r] += b->w[r * b->form.run + i];
        mins.weights[r] /= (float)b->form.run;
    }
    *best = (struct k_choice){ 0 };
    best->d = choose_half(b, &scales, &best->scale);
    if (b->form.high_min > 0)
        best->dmin = choose_half(b, &mins, &best->min);
    choose_all(b, best);
    for (int round = 0; round < ROUNDS; round++) {
        struct k_choice next = { 0 };
        if (!refit(b, best, &next))
            break;
        choose_all(b, &next);
        if (!(next.error < best->error))
            break;
        *best = next;
    }
}

/* ---- the forms on disk: base/dtype.h ---- */

static void store_two_bits(uint8_t *dst, const uint8_t *numbers)
{
    for (int i = 0; i < 64; i++) {
        const uint8_t *q = numbers + i / 32 * 128 + i % 32;
        dst[i] = (uint8_t)((q[0] & 3) | (q[32] & 3) << 2 | (q[64] & 3) << 4 | (q[96] & 3) << 6);
    }
}

/* Bit r of byte l: the given bit of number 32 r + l. */
static void store_bit(uint8_t *dst, const uint8_t *numbers, int bit)
{
    for (int l = 0; l < 32; l++) {
        unsigned byte = 0;
        for (int r = 0; r < 8; r++)
            byte |= (unsigned)(numbers[32 * r + l] >> bit & 1) << r;
        dst[l] = (uint8_t)byte;
    }
}

static void store_q2_k(uint8_t *dst, const struct k_choice *c, const uint8_t *numbers)
{
    for (int r = 0; r < 16; r++)
        dst[r] = (uint8_t)(c->scales[r] | c->mins[r] << 4);
    store_two_bits(dst + 16, numbers);
    store_half(dst + 80, c->d);
    store_half(dst + 82, c->dmin);
}

static void store_q3_k(uint8_t *dst, const struct k_choice *c, const uint8_t *numbers)
{
    store_bit(dst, numbers, 2);
    store_two_bits(dst + 32, numbers);
    memset(dst + 96, 0, 12);
    for (int r = 0; r < 16; r++) {
        int scale = c->scales[r] + 32;
        dst[96 + r % 8] |= (uint8_t)((scale & 15) << (r / 8 * 4));
        dst[104 + r % 4] |= (uint8_t)((scale >> 4) << (r / 4 * 2));
    }
    store_half(dst + 108, c->d);
}

static void store_q45_k(uint8_t *dst, const struct k_choice *c, const uint8_t *numbers, bool has_high)
{
    uint8_t *six = dst + 4, *q = dst + (has_high ? 48 : 16);
    store_half(dst, c->d);
    store_half(dst + 2, c->dmin);
    for (int r = 0; r < 4; r++) {
        six[r] = (uint8_t)(c->scales[r] | (c->scales[r + 4] >> 4) << 6);
        six[r + 4] = (uint8_t)(c->mins[r] | (c->mins[r + 4] >> 4) << 6);
        six[r + 8] = (uint8_t)((c->scales[r + 4] & 15) | (c->mins[r + 4] & 15) << 4);
    }
    if (has_high)
        store_bit(dst + 16, numbers, 4);
    for (int i = 0; i < 128; i++) {
        const uint8_t *two = numbers + i / 32 * 64 + i % 32;
        q[i] = (uint8_t)((two[0] & 15) | (two[32] & 15) << 4);
    }
}

static void store_q6_k(uint8_t *dst, const struct k_choice *c, const uint8_t *numbers)
{
    for (int half = 0; half < 2; half++, numbers += 128) {
        for (int i = 0; i < 64; i++)
            dst[64 * half + i] = (uint8_t)((numbers[i] & 15) | (numbers[i + 64] & 15) << 4);
        for (int i = 0; i < 32; i++)
            dst[128 + 32 * half + i] = (uint8_t)(numbers[i] >> 4 | (numbers[i + 32] >> 4) << 2 |
                                                 (numbers[i + 64] >> 4) << 4 | (numbers[i + 96] >> 4) << 6);
    }
    for (int r = 0; r < 16; r++)
        dst[192 + r] = (uint8_t)(int8_t)c->scales[r];
    store_half(dst + 208, c->d);
}

void quantize_k(uint8_t *dst, const float *x, enum dtype dtype, const float *weights)
{
    struct k_block b = { .form = form_of(dtype) };
    struct k_choice c;
    float numbers[ELEMS] = { 0 };
    uint8_t stored[ELEMS];
    struct fit_sums sums;
    b.n_runs = ELEMS / b.form.run;
    b.exponent = quantize_normalize(b.x, x, ELEMS);
    quantize_weights(b.w, weights, ELEMS);
    fit_runs(&b);
    choose(&b, &c);
    for (int r = 0; r < b.n_runs; r++)
        assign_run(&b, &c, r, &sums, numbers + r * b.form.run);
    for (int i = 0; i < ELEMS; i++)
        stored[i] = (uint8_t)((int)numbers[i] + b.form.zero);
    switch (dtype) {
    case DTYPE_Q2_K:
        store_q2_k(dst, &c, stored);
        break;
    case DTYPE_Q3_K:
        store_q3_k(dst, &c, stored);
        break;
    case DTYPE_Q4_K:
    case DTYPE_Q5_K:
        store_q45_k(dst, &c, stored, dtype == DTYPE_Q5_K);
        break;
    default:
        store_q6_k(dst, &c, stored);
    }
}
