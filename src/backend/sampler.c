/* The sampler of rows in host memory.
 *
 * Rows are long (100,000 logits), and few of them matter. Passes over a whole row are kernels,
 * whose bits are the same on every processor; the tokens that they select are handled one by one.
 * Any row of logits and any settings take a few passes: nothing is sorted but the reported
 * log-probabilities. */
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
    float x; /* its logit, or what else the order is by */
    int32_t id;
};

enum { TALLY_BITS = 11, N_TALLIES = 1 << TALLY_BITS };

struct sampler {
    int n_vocab;
    const struct kernels *kernels; /* borrowed */
    float *row;                    /* [n_vocab] the logits after bias and penalties */
    int32_t *counts;               /* [n_vocab] zero between calls */
    struct candidate *candidates;
    float weights[RACE_TILE];  /* of one tile of the row */
    uint64_t tally[N_TALLIES]; /* by the upper bits of the order, how much there is of them */
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

/* ---- what is kept ---- */

/* What a draw chooses from: the tokens of a row that no cut has removed. */
struct kept {
    const float *row; /* [n] */
    int n;
    float max, temperature;
    float scale;           /* cuts add up exp((x - max) * scale) */
    struct candidate last; /* in order: those after it are removed */
    float min_p;           /* those of a smaller weight are removed; 0: none */
    /* min_p: logits from over on have that weight, those below under have not; between them it is computed. */
    float over, under;
    bool is_typical;
    float mean, least; /* is_typical: those whose closeness to the mean is below least are removed */
};

/* Factor for differences of logits, where an error of a few units in the last place does not matter. */
static float reciprocal(float temperature)
{
    return 1 / temperature < FLT_MAX ? 1 / temperature : FLT_MAX;
}

static struct kept keep_all(const float *x, int n, float max, float temperature)
{
    return (struct kept){ .row = x,
                          .n = n,
                          .max = max,
                          .temperature = temperature,
                          .scale = reciprocal(temperature),
                          .last = { -INFINITY, INT32_MAX } };
}

/* Removes tokens that are less than min_p times as probable as the most probable one. */
static void cut_min_p(struct kept *k, float min_p)
{
    double y = log((double)min_p), x = (double)k->max + y * (double)k->temperature;
    double margin = 1e-6 * (fabs(x) + (1 + fabs(y)) * (double)k->temperature); /* of rounding */
    k->min_p = min_p;
    k->over = (float)(x + margin);
    k->under = (float)(x - margin);
}

static inline float log_weight(const struct kept *k, float x)
{
    return (x - k->max) * k->scale;
}

/* How near a token's information is to the entropy; 0: equal. */
static inline float closeness(const struct kept *k, float x)
{
    return -fabsf(k->mean - log_weight(k, x));
}

static inline bool is_kept(const struct kept *k, float x, int32_t id)
{
    if (x < k->last.x || (x == k->last.x && id > k->last.id))
        return false;
    if (k->min_p > 0 && !(x >= k->over) &&
        (x < k->under || race_weight(x, k->max, k->temperature) < (double)k->min_p))
        return false;
    return !k->is_typical || closeness(k, x) >= k->least;
}

/* ---- cuts ---- */

/* What the first candidates are, and what is counted of them: largest logits, by number or weight; or closest to
 * the mean, by weight. */
enum cut { CUT_LARGEST, CUT_HEAVIEST, CUT_CLOSEST };

/* Larger numbers have larger keys. */
static inline uint32_t order_key(float x)
{
    union {
        float f;
        uint32_t u;
    } v = { .f = x + 0.0f }; /* no negative zero */
    return v.u ^ (v.u >> 31 ? UINT32_MAX : UINT32_C(1) << 31);
}

static inline float order_of(const struct kept *k, enum cut cut, float x)
{
    return cut == CUT_CLOSEST ? closeness(k, x) : x;
}

static inline float just_below(float x)
{
    return nextafterf(x, -INFINITY);
}

/* The number of tokens of the next tile from *begin on that has a logit above floor; 0: there is none. */
static int next_tile(const struct sampler *s, const struct kept *k, float floor, int *begin)
{
    int first = s->kernels->find_above(k->row, *begin, k->n, floor);
    if (first >= k->n)
        return 0;
    *begin = first - first % RACE_TILE;
    return k->n - *begin < RACE_TILE ? k->n - *begin : RACE_TILE;
}

static void weigh_tile(struct sampler *s, const struct kept *k, int begin, int n)
{
    s->kernels->exps(k->row + begin, n, k->max, k->scale, s->weights);
}

/* Counts what is kept and above floor; returns the total. */
static uint64_t tally_row(struct sampler *s, const struct kept *kept, enum cut cut, float floor)
{
    const struct kept k = *kept; /* in registers */
    uint64_t total = 0;
    memset(s->tally, 0, sizeof s->tally);
    for (int begin = 0, n; (n = next_tile(s, kept, floor, &begin)) > 0; begin += n) {
        if (cut != CUT_LARGEST)
            weigh_tile(s, kept, begin, n);
        for (int i = 0; i < n; i++) {
            float x = k.row[begin + i];
            if (!(x > floor) || !is_kept(&k, x, begin + i))
                continue;
            uint64_t amount = cut == CUT_LARGEST ? 1 : race_units(s->weights[i]);
            s->tally[order_key(order_of(&k, cut, x)) >> (32 - TALLY_BITS)] += amount;
            total += amount;
        }
    }
    return total;
}

/* The tally in which the first candidates have *mass, which becomes what they need of it. All have that much. */
static uint32_t find_tally(const struct sampler *s, uint64_t *mass)
{
    uint32_t at = N_TALLIES - 1;
    for (; s->tally[at] < *mass; at--)
        *mass -= s->tally[at];
    return at;
}

static uint64_t amount_of(const struct kept *k, enum cut cut, int32_t id)
{
    return cut == CUT_LARGEST ? 1 : race_units(exp_ref(log_weight(k, k->row[id])));
}

/* The last of the smallest set of first candidates among c [n], sorted by id, that has the mass. Their keys differ
 * in the lowest n_bits only. */
static struct candidate find_last_of(struct sampler *s, const struct kept *k, enum cut cut,
                                     struct candidate *c, int n, int n_bits, uint64_t mass)
{
    int i = 0;
    while (n_bits > 0) {
        n_bits = n_bits > TALLY_BITS ? n_bits - TALLY_BITS : 0;
        memset(s->tally, 0, sizeof s->tally);
        for (i = 0; i < n; i++)
            s->tally[order_key(c[i].x) >> n_bits & (N_TALLIES - 1)] += amount_of(k, cut, c[i].id);
        uint32_t found = find_tally(s, &mass);
        int n_left = 0;
        for (i = 0; i < n; i++)
            if ((order_key(c[i].x) >> n_bits & (N_TALLIES - 1)) == found)
                c[n_left++] = c[i];
        n = n_left;
    }
    /* All are equal. */
    for (i = 0; i < n - 1; i++) {
        uint64_t amount = amount_of(k, cut, c[i].id);
        if (amount >= mass)
            break;
        mass -= amount;
    }
    return c[i];
}

/* The same of what tally_row() has counted, which has the mass. */
static struct candidate find_last(struct sampler *s, const struct kept *kept, enum cut cut, float floor,
                                  uint64_t mass)
{
    const struct kept k = *kept;
    struct candidate *c = s->candidates;
    uint32_t found = find_tally(s, &mass);
    int n_found = 0;
    for (int begin = 0, n; (n = next_tile(s, kept, floor, &begin)) > 0; begin += n) {
        for (int i = begin; i < begin + n; i++) {
            float x = k.row[i], order = order_of(&k, cut, x);
            if (order_key(order) >> (32 - TALLY_BITS) == found && x > floor && is_kept(&k, x, i))
                c[n_found++] = (struct candidate){ order, i };
        }
    }
    return find_last_of(s, kept, cut, c, n_found, 32 - TALLY_BITS, mass);
}

static void cut_top_k(struct sampler *s, struct kept *k, int top_k)
{
    enum { FEW = 256 }; /* a heap is faster */
    if (top_k >= k->n)
        return;
    if (top_k <= FEW) {
        take_largest(s, k->row, k->n, top_k, s->candidates);
        k->last = s->candidates[0];
        return;
    }
    /* Fewer where penalties have made logits infinite. */
    if (tally_row(s, k, CUT_LARGEST, -INFINITY) < (uint64_t)top_k)
        return;
    k->last = find_last(s, k, CUT_LARGEST, -INFINITY, (uint64_t)top_k);
}

/* Keeps the smallest set of largest logits that has top_p of the weight of all that top-k has left. */
static void cut_top_p(struct sampler *s, struct kept *k, const struct tutti_sampling *p)
{
    float floor = just_below(k->last.x);
    uint64_t mass, total;
    if (p->top_k > 0) {
        total = tally_row(s, k, CUT_HEAVIEST, floor);
        mass = race_mass((double)p->top_p * (double)total);
    } else {
        mass = race_mass_of((double)p->top_p * sum_exps(s, k->row, k->n, k->max, k->scale));
        /* Widens a window below the maximum until it has the mass. Beyond the last one nothing has a unit. */
        float width = 4;
        do {
            floor = width > 64 ? -INFINITY : k->max - width * k->temperature;
            total = tally_row(s, k, CUT_HEAVIEST, floor);
            width *= 4;
        } while (total < mass && floor > -INFINITY);
    }
    if (total >= mass)
        k->last = find_last(s, k, CUT_HEAVIEST, floor, mass);
}

bool sampler_has_typical(const struct tutti_sampling *p)
{
    return p->typical_p > 0.0f && p->typical_p < 1.0f;
}

/* Keeps the smallest set nearest to the entropy that has typical_p of the weight, and all ties with its last one,
 * as transformers' TypicalLogitsWarper does. */
static void cut_typical(struct sampler *s, struct kept *k, float typical_p)
{
    float floor = just_below(k->last.x);
    uint64_t sum = 0, energy = 0;
    for (int begin = 0, n; (n = next_tile(s, k, floor, &begin)) > 0; begin += n) {
        weigh_tile(s, k, begin, n);
        for (int i = 0; i < n; i++) {
            float x = k->row[begin + i], w = s->weights[i];
            if (!is_kept(k, x, begin + i))
                continue;
            sum += race_units(w);
            energy += w > 0 ? race_units(w * -log_weight(k, x)) : 0;
        }
    }
    /* -log p = log(sum) - y; the entropy is its mean. */
    k->mean = -(float)((double)energy / (double)sum);
    uint64_t mass = race_mass((double)typical_p * (double)sum);
    if (tally_row(s, k, CUT_CLOSEST, floor) < mass)
        return;
    k->least = find_last(s, k, CUT_CLOSEST, floor, mass).x;
    k->is_typical = true;
}

/* ---- draw ---- */

/* No order is needed: only tokens that may arrive before the earliest one so far are weighed, and before there are
 * some all that are kept. */
static int32_t draw_kept(const struct sampler *s, const struct kept *k, int best, struct race race)
{
    enum { FEW = 512 };
    const float most = 1e30f; /* more than any arrival of a token that cuts have kept */
    struct arrival_bound bound = { .seed = race.seed, .max = k->max, .scale = k->scale };
    float floor = just_below(k->last.x);
    int n_few = floor > -INFINITY ? FEW : 0;
    if (is_kept(k, k->max, best))
        race_join(&race, best, 1);
    for (int i = 0;; i++) {
        bound.first = race.first < (double)most ? (float)race.first : most;
        i = n_few-- > 0 ? s->kernels->find_above(k->row, i, k->n, floor)
                        : s->kernels->find_arrival(k->row, i, k->n, &bound);
        if (i >= k->n)
            return race.winner;
        if (is_kept(k, k->row[i], i))
            race_join(&race, i, race_weight(k->row[i], k->max, k->temperature));
    }
}

static int32_t draw(struct sampler *s, const float *x, int n, int best, const struct tutti_sampling *p,
                    struct race race)
{
    struct kept k = keep_all(x, n, x[best], p->temperature);
    if (p->top_k > 0)
        cut_top_k(s, &k, p->top_k);
    if (p->top_p < 1.0f)
        cut_top_p(s, &k, p);
    if (p->min_p > 0.0f)
        cut_min_p(&k, p->min_p);
    if (sampler_has_typical(p))
        cut_typical(s, &k, p->typical_p);
    return draw_kept(s, &k, best, race);
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
        out->token = draw(s, x, in->n_usable, best, p, race);
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
