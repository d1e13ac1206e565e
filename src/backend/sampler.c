/* The sampler of rows in host memory.
 *
 * Rows are long (100,000 logits), and few of them matter. Passes over a whole row are kernels,
 * whose bits are the same on every processor; the tokens that they select are handled one by one.
 * Only the reported log-probabilities are sorted. */
#include "backend/sampler.h"

#include "base/rng.h"
#include "kernels/kernels.h"
#include "kernels/race.h"
#include "kernels/ref/exp.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct candidate {
    float x; /* logit divided by the temperature */
    int32_t id;
};

struct sampler {
    int n_vocab;
    const struct kernels *kernels; /* borrowed */
    float *row;                    /* [n_vocab] the logits after bias and penalties */
    int32_t *counts;               /* [n_vocab] zero between calls */
    struct candidate *candidates;
};

enum tutti_status sampler_new(struct sampler **out, const struct kernels *kernels, int n_vocab,
                              struct tutti_error *err)
{
    struct sampler *s = calloc(1, sizeof *s);
    if (s) {
        s->kernels = kernels;
        s->n_vocab = n_vocab;
        s->row = calloc((size_t)n_vocab, sizeof *s->row);
        s->counts = calloc((size_t)n_vocab, sizeof *s->counts);
        s->candidates = malloc((size_t)n_vocab * sizeof *s->candidates);
    }
    if (!s || !s->row || !s->counts || !s->candidates) {
        sampler_free(s);
        return error_set(err, TUTTI_E_MEMORY, "sampler of %d tokens: out of memory", n_vocab);
    }
    *out = s;
    return TUTTI_OK;
}

void sampler_free(struct sampler *s)
{
    if (!s)
        return;
    free(s->candidates);
    free(s->counts);
    free(s->row);
    free(s);
}

/* ---- order of candidates: larger first, of equals the lower id ---- */

static inline bool is_before(struct candidate a, struct candidate b)
{
    return a.x > b.x || (a.x == b.x && a.id < b.id);
}

/* Restores the heap below index i; the top is the candidate that is last in order. */
static void sift_down(struct candidate *heap, int n, int i)
{
    struct candidate moved = heap[i];
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && is_before(heap[child], heap[child + 1]))
            child++;
        if (!is_before(moved, heap[child]))
            break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

/* Heapsort: in place, and O(n log n) for any input. (The C library's qsort may allocate.) */
static void sort_candidates(struct candidate *c, int n)
{
    for (int i = n / 2; i-- > 0;)
        sift_down(c, n, i);
    for (int last = n - 1; last > 0; last--) {
        struct candidate first = c[0];
        c[0] = c[last];
        c[last] = first;
        sift_down(c, last, 0);
    }
}

/* The k largest of x [n] into out, in no order; returns min(k, n). */
static int take_largest(const struct sampler *s, const float *x, int n, int k, struct candidate *out)
{
    if (k > n)
        k = n;
    if (k == 0)
        return 0;
    for (int i = 0; i < k; i++)
        out[i] = (struct candidate){ x[i], i };
    for (int i = k / 2; i-- > 0;)
        sift_down(out, k, i);
    for (int i = k; (i = s->kernels->find_above(x, i, n, out[0].x)) < n;
         i++) { /* an equal one has the higher id */
        out[0] = (struct candidate){ x[i], i };
        sift_down(out, k, 0);
    }
    return k;
}

/* ---- log-probabilities ---- */

/* Sum of exp((x - max) * scale). */
static double sum_exps(const struct sampler *s, const float *x, int n, float max, float scale)
{
    double sum = 0;
    for (int i = 0; i < n; i += RACE_TILE)
        sum += (double)s->kernels->sum_exp(x + i, n - i < RACE_TILE ? n - i : RACE_TILE, max, scale);
    return sum;
}

static double log_sum_exp(const struct sampler *s, const float *x, int n, float max)
{
    return (double)max + log(sum_exps(s, x, n, max, 1));
}

static void report_logprobs(struct sampler *s, const float *logits, const struct sample_input *in, float max,
                            struct sample *out)
{
    double total = log_sum_exp(s, logits, in->n_usable, max);
    bool is_usable = out->token < in->n_usable; /* a prompt may have others */
    out->logprob = is_usable ? (float)((double)logits[out->token] - total) : -INFINITY;
    out->n_top = take_largest(s, logits, in->n_usable, in->n_top, s->candidates);
    sort_candidates(s->candidates, out->n_top);
    for (int i = 0; i < out->n_top; i++)
        out->top[i] = (struct sample_top){ s->candidates[i].id, (float)((double)s->candidates[i].x - total) };
}

/* ---- bias and penalties ---- */

bool sampler_has_processors(const struct tutti_sampling *p)
{
    return p->n_logit_bias > 0 || p->repetition_penalty != 1.0f || p->presence_penalty != 0.0f ||
           p->frequency_penalty != 0.0f;
}

static void penalize_repetition(struct sampler *s, const struct sample_input *in)
{
    float penalty = in->sampling->repetition_penalty;
    for (int i = 0; i < in->n_ids; i++) {
        int32_t id = in->ids[i];
        if (s->counts[id]++ == 0)
            s->row[id] = s->row[id] < 0 ? s->row[id] * penalty : s->row[id] / penalty;
    }
    for (int i = 0; i < in->n_ids; i++)
        s->counts[in->ids[i]] = 0;
}

static void penalize_answer(struct sampler *s, const struct sample_input *in)
{
    for (int i = in->n_prompt; i < in->n_ids; i++)
        s->counts[in->ids[i]]++;
    for (int i = in->n_prompt; i < in->n_ids; i++) {
        int32_t id = in->ids[i];
        if (s->counts[id] == 0)
            continue;
        s->row[id] -= in->sampling->presence_penalty + in->sampling->frequency_penalty * (float)s->counts[id];
        s->counts[id] = 0;
    }
}

/* Avoids infinity, so that the distribution stays finite. */
static inline float clamp(float x)
{
    const float most = FLT_MAX / 2;
    return x > most ? most : x < -most ? -most : x;
}

/* Copies the allowed logits of one word of the mask. Most words of most masks are empty, or full. */
static void keep_word(float *row, const float *x, uint32_t word, int n)
{
    enum { WORD_BITS = 32 };
    if (word == 0) {
        for (int k = 0; k < n; k++)
            row[k] = -FLT_MAX;
    } else if (word == UINT32_MAX && n == WORD_BITS) {
        for (int k = 0; k < WORD_BITS; k++)
            row[k] = clamp(x[k]);
    } else {
        for (int k = 0; k < n; k++)
            row[k] = word >> k & 1 ? clamp(x[k]) : -FLT_MAX;
    }
}

/* Copies the logits x into the row, which may be x itself. Tokens that are not allowed get the
 * smallest float, which has no weight compared with an allowed one. */
static void keep_allowed(struct sampler *s, const struct sample_input *in, const float *x)
{
    float *row = s->row, kept[MAX_SAMPLE_STOPS];
    size_t n_kept = 0;
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < in->stops[k].n && n_kept < MAX_SAMPLE_STOPS; i++)
            kept[n_kept++] = in->stops[k].ids[i] < in->n_usable ? x[in->stops[k].ids[i]] : 0;
    for (int i = 0; i < in->n_usable; i += 32)
        keep_word(row + i, x + i, in->allowed[i >> 5], in->n_usable - i < 32 ? in->n_usable - i : 32);
    n_kept = 0;
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < in->stops[k].n && n_kept < MAX_SAMPLE_STOPS; i++, n_kept++) {
            if (in->stops[k].ids[i] < in->n_usable)
                row[in->stops[k].ids[i]] = in->stop_is_allowed ? clamp(kept[n_kept]) : -FLT_MAX;
        }
    }
}

/* The row after bias, penalties and token mask; the logits themselves if there are none. */
static const float *apply_processors(struct sampler *s, const float *logits, const struct sample_input *in)
{
    const struct tutti_sampling *p = in->sampling;
    if (!sampler_has_processors(p) && !in->allowed)
        return logits;
    if (!sampler_has_processors(p)) {
        keep_allowed(s, in, logits);
        return s->row;
    }
    memcpy(s->row, logits, (size_t)in->n_usable * sizeof *s->row);
    for (size_t i = 0; i < p->n_logit_bias; i++)
        if (p->logit_bias[i].token < in->n_usable)
            s->row[p->logit_bias[i].token] += p->logit_bias[i].bias;
    if (p->repetition_penalty != 1.0f)
        penalize_repetition(s, in);
    if (p->presence_penalty != 0.0f || p->frequency_penalty != 0.0f)
        penalize_answer(s, in);
    if (in->allowed)
        keep_allowed(s, in, s->row);
    return s->row;
}

/* ---- truncation and draw ---- */

/* Factor for differences of logits, where an error of a few units in the last place does not matter. */
static float reciprocal(float temperature)
{
    return 1 / temperature < FLT_MAX ? 1 / temperature : FLT_MAX;
}

/* The logits of a draw, and how their weights are measured to decide what is kept: exp((x - max) * scale). */
struct measure {
    const float *row;
    float max, scale;
};

static inline float log_weight(const struct measure *m, float x)
{
    return (x - m->max) * m->scale;
}

static inline uint64_t units_of(const struct measure *m, float x)
{
    return race_units(exp_ref(log_weight(m, x)));
}

static uint64_t units_of_all(const struct measure *m, const struct candidate *c, int n)
{
    uint64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += units_of(m, m->row[c[i].id]);
    return sum;
}

/* The candidates that top-p may keep: widens a window below the maximum until it has the mass. If all candidates have less,
 * all are taken. */
static int take_window(const struct sampler *s, const struct measure *m, int n, float temperature,
                       uint64_t mass, struct candidate *out)
{
    const float *x = m->row;
    for (float width = 4.0f;; width *= 2) { /* beyond the last one, no candidate has a unit */
        float floor = width > 64.0f ? -INFINITY : m->max - width * temperature;
        uint64_t held = 0;
        int n_held = 0;
        float below = nextafterf(floor, -INFINITY);
        for (int i = 0; (i = s->kernels->find_above(x, i, n, below)) < n; i++) {
            held += units_of(m, x[i]);
            out[n_held++] = (struct candidate){ x[i], i };
        }
        if (held >= mass || n_held == n || width > 64.0f)
            return n_held;
    }
}

/* Moves the candidates that come before c[pivot] in order to the front, then the pivot; returns the
 * pivot's new index. */
static int partition(struct candidate *c, int n, int pivot)
{
    struct candidate middle = c[pivot];
    c[pivot] = c[n - 1];
    int n_before = 0;
    for (int i = 0; i < n - 1; i++) {
        if (is_before(c[i], middle)) {
            struct candidate moved = c[i];
            c[i] = c[n_before];
            c[n_before++] = moved;
        }
    }
    c[n - 1] = c[n_before];
    c[n_before] = middle;
    return n_before;
}

/* Moves the smallest set of first candidates that has the mass to the front, unsorted; returns its size, at least 1.
 * Quickselect by weight; the pivots are pseudo-random, so no row of logits makes it slow. */
static int cut_by_mass(const struct measure *m, struct candidate *c, int n, uint64_t mass)
{
    int begin = 0, end = n;
    while (begin < end) {
        int pivot = (int)(mix64((uint64_t)begin << 32 | (uint64_t)end) % (uint64_t)(end - begin));
        pivot = begin + partition(c + begin, end - begin, pivot);
        uint64_t held = units_of_all(m, c + begin, pivot - begin);
        if (held >= mass) {
            end = pivot;
            continue;
        }
        held += units_of(m, m->row[c[pivot].id]);
        begin = pivot + 1;
        if (held >= mass)
            break;
        mass -= held;
    }
    return begin;
}

bool sampler_has_typical(const struct tutti_sampling *p)
{
    return p->typical_p > 0.0f && p->typical_p < 1.0f;
}

static bool is_over_min_p(const struct tutti_sampling *p, float x, float max)
{
    return p->min_p <= 0.0f || race_weight(x, max, p->temperature) >= (double)p->min_p;
}

/* Keeps, of the candidates after min-p, the smallest set nearest to the entropy that has typical_p
 * of their weight, and all ties with its last one, as transformers' TypicalLogitsWarper does.
 * Returns its size, at least 1. */
static int cut_typical(const struct measure *m, struct candidate *c, int n, const struct tutti_sampling *p)
{
    uint64_t sum = 0, energy = 0;
    int n_left = 0;
    for (int i = 0; i < n; i++) {
        float y = log_weight(m, c[i].x), w = exp_ref(y);
        if (!is_over_min_p(p, c[i].x, m->max))
            continue;
        sum += race_units(w);
        energy += w > 0 ? race_units(w * -y) : 0;
        c[n_left++] = c[i];
    }
    /* -log p = log(sum) - y; the entropy is its mean. */
    float mean = -(float)((double)energy / (double)sum);
    for (int i = 0; i < n_left; i++)
        c[i].x = -fabsf(mean - log_weight(m, c[i].x));
    int n_kept = cut_by_mass(m, c, n_left, race_mass((double)p->typical_p * (double)sum));
    float last = c[0].x;
    for (int i = 1; i < n_kept; i++)
        last = c[i].x < last ? c[i].x : last;
    for (int i = n_kept; i < n_left; i++)
        if (c[i].x == last)
            c[n_kept++] = c[i];
    for (int i = 0; i < n_kept; i++)
        c[i].x = m->row[c[i].id];
    return n_kept;
}

static int32_t draw_candidate(const struct candidate *c, int n, float max, const struct tutti_sampling *p,
                              struct race race)
{
    double floor = (double)p->min_p;
    for (int i = 0; i < n; i++) {
        double w = race_weight(c[i].x, max, p->temperature);
        if (w >= floor)
            race_join(&race, c[i].id, w);
    }
    return race.winner;
}

static int32_t draw_truncated(struct sampler *s, const float *x, int n, int best,
                              const struct tutti_sampling *p, struct race race)
{
    const struct measure m = { x, x[best], reciprocal(p->temperature) };
    struct candidate *c = s->candidates;
    uint64_t mass = 0;
    int n_kept;
    if (p->top_k > 0) {
        n_kept = take_largest(s, x, n, p->top_k, c);
        mass = race_mass((double)p->top_p * (double)units_of_all(&m, c, n_kept));
    } else if (p->top_p >= 1.0f) {
        n_kept = n;
        for (int i = 0; i < n; i++)
            c[i] = (struct candidate){ x[i], i };
    } else {
        mass = race_mass_of((double)p->top_p * sum_exps(s, x, n, m.max, m.scale));
        n_kept = take_window(s, &m, n, p->temperature, mass, c);
    }
    if (p->top_p < 1.0f)
        n_kept = cut_by_mass(&m, c, n_kept, mass);
    if (sampler_has_typical(p))
        n_kept = cut_typical(&m, c, n_kept, p);
    return draw_candidate(c, n_kept, m.max, p, race);
}

/* Without top-k and top-p no order is needed: only tokens that may arrive before the earliest one
 * so far are weighed. */
static int32_t draw_plain(const struct sampler *s, const float *x, int n, int best,
                          const struct tutti_sampling *p, struct race race)
{
    float max = x[best];
    race_join(&race, best, 1);
    struct arrival_bound bound = { .seed = race.seed, .max = max, .scale = reciprocal(p->temperature) };
    for (int i = 0;; i++) {
        bound.first = (float)race.first;
        if ((i = s->kernels->find_arrival(x, i, n, &bound)) >= n)
            return race.winner;
        double w = race_weight(x[i], max, p->temperature);
        if (w >= (double)p->min_p)
            race_join(&race, i, w);
    }
}

/* Index of the largest logit. -1: a logit is NaN or infinite; out->token is then its id. */
static int find_largest(const struct sampler *s, const float *logits, const struct sample_input *in,
                        struct sample *out)
{
    *out = (struct sample){ 0 };
    int largest = logits_argmax(s->kernels, logits, in->n_usable);
    while (largest < 0 && isfinite(logits[out->token]))
        out->token++;
    return largest;
}

bool sampler_score(struct sampler *s, const float *logits, const struct sample_input *in, struct sample *out)
{
    int largest = find_largest(s, logits, in, out);
    if (largest < 0)
        return false;
    out->token = in->token;
    report_logprobs(s, logits, in, logits[largest], out);
    return true;
}

bool sampler_draw(struct sampler *s, const float *logits, const struct sample_input *in, struct sample *out)
{
    const struct tutti_sampling *p = in->sampling;
    int largest = find_largest(s, logits, in, out);
    if (largest < 0)
        return false;
    const float *x = apply_processors(s, logits, in);
    int best = x == logits ? largest : logits_argmax(s->kernels, x, in->n_usable);
    if (best < 0) /* a penalty has made a huge logit infinite */
        best = largest;
    if (p->temperature <= 0.0f) {
        out->token = best;
    } else {
        uint64_t index = (uint64_t)(in->n_ids - in->n_prompt);
        struct race race = { rng_bits(in->seed, (uint64_t)in->choice, index), INFINITY, best };
        bool is_truncated = p->top_k > 0 || p->top_p < 1.0f || sampler_has_typical(p);
        out->token = is_truncated ? draw_truncated(s, x, in->n_usable, best, p, race)
                                  : draw_plain(s, x, in->n_usable, best, p, race);
    }
    if (in->logprobs)
        report_logprobs(s, logits, in, logits[largest], out);
    return true;
}

bool sampler_best(struct sampler *s, float *row, const struct sample_input *in, int32_t *bad_id)
{
    int largest = logits_argmax(s->kernels, row, in->n_usable);
    if (largest < 0) {
        for (*bad_id = 0; isfinite(row[*bad_id]);)
            ++*bad_id;
        return false;
    }
    double total = log_sum_exp(s, row, in->n_usable, row[largest]);
    for (int i = 0; i < in->n_usable; i++)
        row[i] = (float)((double)row[i] - total);
    const float *x = apply_processors(s, row, in);
    take_largest(s, x, in->n_usable, in->n_best, s->candidates);
    sort_candidates(s->candidates, in->n_best);
    for (int i = 0; i < in->n_best; i++)
        in->best[i] = (struct sample_candidate){ s->candidates[i].id, s->candidates[i].x,
                                                 row[s->candidates[i].id] };
    return true;
}

void sampler_run(struct sampler *s, float *logits, int n_vocab, struct sample_input *in)
{
    float *row = logits + (size_t)in->row * (size_t)n_vocab;
    in->n_out = 1;
    if (in->kind == SAMPLE_SCORE) {
        in->is_finite = sampler_score(s, row, in, in->out);
        return;
    }
    if (in->kind == SAMPLE_BEST) {
        in->is_finite = sampler_best(s, row, in, &in->out->token);
        return;
    }
    struct sample_input next = *in;
    for (in->n_out = 0; in->n_out <= in->n_drafts; row += n_vocab) {
        struct sample *out = &in->out[in->n_out++];
        in->is_finite = sampler_draw(s, row, &next, out);
        if (!in->is_finite || in->n_out > in->n_drafts || out->token != in->ids[next.n_ids++])
            return;
    }
}
