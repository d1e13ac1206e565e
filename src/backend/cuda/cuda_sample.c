/* Sampling of the CUDA backend: rows of logits are sampled on the card, where the step left them, many rows at once.
 *
 * The rows of draft tokens do not wait for each other: the row after a draft token is drawn as if the token was accepted, and
 * its result is used only if it was. What is rare is left to the host, which copies the row and samples it as the CPU backend
 * does: typical-p, top-k above SAMPLE_MOST_K, rows where top-k or top-p keeps more than
 * SAMPLE_CANDIDATES, and penalties that make logits infinite. */
#include "backend/cuda/cuda.h"
#include "backend/sampler.h"
#include "base/rng.h"
#include "kernels/cuda/sample_args.h"
#include "kernels/kernels.h"
#include "kernels/race.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_DRAWS = 256,       /* that are sampled at once */
    MOST_CHANGED = 32,      /* of these, with bias, penalties or mask */
    UPLOAD_BYTES = 1 << 20, /* besides 16 for each token of the vocabulary */
    MAX_BIASES = 4096,      /* of a row on the card */
};

_Static_assert((int)SAMPLE_MOST_TOP >= LIMIT_TOP_LOGPROBS,
               "the card finds as many log-probabilities as may be wanted");

enum { BEST_FOUND = -1 };

/* What became of a row of the card, in sample.n_top until its input is complete. */
enum { ROW_IS_BAD = -1, ROW_IS_LEFT = -2 };

struct cuda_sampling {
    struct kernels kernels;
    struct sampler *sampler; /* for the rows that are left to the host */
    int n_vocab;
    float *host_row;  /* [n_vocab], pinned */
    int32_t *indices; /* [n_vocab]: index + 1 of an id in a list; zero between calls */
    /* Draws, then their lists and masks: pinned, where the card reads each once. */
    uint8_t *upload;
    size_t upload_room, n_upload;
    float *card_rows; /* [MOST_CHANGED][n_vocab]: logits after bias, penalties and mask */
    struct draw_out *outs, *card_outs;
    struct draw_found *tops, *card_tops; /* [MOST_DRAWS][SAMPLE_MOST_TOP] */
    struct draw_scratch *card_scratch;
    float *card_sums; /* [MOST_DRAWS][2][most_tiles] */
    int most_tiles;
    struct planned_draw {
        struct sample_input *in;
        int k; /* row after that of in; of SAMPLE_BEST: the index in totals, or BEST_FOUND */
    } planned[MOST_DRAWS];
    int n_planned, n_changed;
    double totals[MOST_CHANGED]; /* of beams: logarithms of the sums of exponentials */
};

void cuda_sampling_release(struct cuda_backend *cuda)
{
    struct cuda_sampling *s = cuda->sampling;
    if (!s)
        return;
    sampler_free(s->sampler);
    free(s->indices);
    cuda_pinned_free(cuda, s->host_row);
    cuda_pinned_free(cuda, s->upload);
    cuda_pinned_free(cuda, s->outs);
    cuda_pinned_free(cuda, s->tops);
    cuda_memory_free(cuda, s->card_scratch);
    cuda_memory_free(cuda, s->card_sums);
    cuda_memory_free(cuda, s->card_rows);
    cuda_memory_free(cuda, s->card_outs);
    cuda_memory_free(cuda, s->card_tops);
    free(s);
    cuda->sampling = NULL;
}

enum tutti_status cuda_reserve_sampling(struct backend *be, int n_vocab, struct tutti_error *err)
{
    struct cuda_backend *cuda = cuda_of(be);
    if (cuda->sampling && cuda->sampling->n_vocab == n_vocab)
        return TUTTI_OK;
    if (!cuda_need(cuda, CUDA_KERNEL_sample_draw, CUDA_NEED_FILE))
        return cuda_check(cuda, err);
    cuda_sampling_release(cuda);
    struct cuda_sampling *s = cuda->sampling = calloc(1, sizeof *s);
    if (!s)
        return error_set(err, TUTTI_E_MEMORY, "sampling: out of memory");
    size_t n = (size_t)n_vocab, outs_bytes = MOST_DRAWS * sizeof *s->outs,
           tops_bytes = MOST_DRAWS * SAMPLE_MOST_TOP * sizeof *s->tops;
    kernels_init(&s->kernels, cpu_detect());
    s->n_vocab = n_vocab;
    s->upload_room = MOST_DRAWS * sizeof(struct draw) + 16 * n + UPLOAD_BYTES;
    s->indices = calloc(n, sizeof *s->indices);
    s->host_row = cuda_pinned_new(cuda, n * sizeof *s->host_row);
    s->upload = cuda_pinned_new(cuda, s->upload_room);
    s->outs = cuda_pinned_new(cuda, outs_bytes);
    s->tops = cuda_pinned_new(cuda, tops_bytes);
    s->most_tiles = (n_vocab + RACE_TILE - 1) / RACE_TILE;
    s->card_scratch = cuda_memory_new(cuda, MOST_DRAWS * sizeof *s->card_scratch);
    s->card_sums = cuda_memory_new(cuda, MOST_DRAWS * 2 * (size_t)s->most_tiles * sizeof *s->card_sums);
    s->card_rows = cuda_memory_new(cuda, MOST_CHANGED * n * sizeof *s->card_rows);
    s->card_outs = cuda_memory_new(cuda, outs_bytes);
    s->card_tops = cuda_memory_new(cuda, tops_bytes);
    enum tutti_status st = sampler_new(&s->sampler, &s->kernels, n_vocab, err);
    if (st == TUTTI_OK && !(s->indices && s->host_row && s->upload && s->outs && s->tops && s->card_rows &&
                            s->card_scratch && s->card_sums && s->card_outs && s->card_tops))
        st = error_set(err, TUTTI_E_MEMORY, "device cuda: out of memory for sampling of %d tokens", n_vocab);
    if (st != TUTTI_OK)
        cuda_sampling_release(cuda);
    return st;
}

/* ---- what is sent ---- */

/* Room in what is sent, and the address that the card reads. NULL: there is not enough. */
static void *take_upload(struct cuda_sampling *s, size_t n_bytes, const void **card)
{
    size_t begin = (s->n_upload + 15) / 16 * 16;
    if (begin > s->upload_room || n_bytes > s->upload_room - begin)
        return NULL;
    s->n_upload = begin + n_bytes;
    *card = s->upload + begin;
    return s->upload + begin;
}

static bool put_biases(struct cuda_sampling *s, struct draw *d, const struct tutti_sampling *p)
{
    const void *card;
    struct draw_bias *to = take_upload(s, p->n_logit_bias * sizeof *to, &card);
    if (!to)
        return false;
    d->biases = card;
    for (size_t i = 0; i < p->n_logit_bias; i++) {
        int32_t id = p->logit_bias[i].token, last;
        if (id < 0 || id >= d->n)
            continue;
        last = s->indices[id] - 1; /* entry of this id */
        to[d->n_biases] = (struct draw_bias){ id, p->logit_bias[i].bias, -1, last < 0 };
        if (last >= 0)
            to[last].next = d->n_biases;
        s->indices[id] = ++d->n_biases;
    }
    for (int i = 0; i < d->n_biases; i++)
        s->indices[to[i].id] = 0;
    return true;
}

/* Each id once, with its number in the answer. The prompt counts for the repetition penalty only. */
static bool put_penalties(struct cuda_sampling *s, struct draw *d, const struct sample_input *in, int n_ids)
{
    const void *card;
    const struct tutti_sampling *p = in->sampling;
    int begin = p->repetition_penalty != 1.0f ? 0 : in->n_prompt, n = n_ids - begin;
    n = n < d->n ? n : d->n;
    struct draw_penalty *to = take_upload(s, (size_t)(n > 0 ? n : 0) * sizeof *to, &card);
    if (!to)
        return false;
    d->penalties = card;
    d->repetition = p->repetition_penalty;
    d->presence = p->presence_penalty;
    d->frequency = p->frequency_penalty;
    for (int i = begin; i < n_ids; i++) {
        int32_t id = in->ids[i];
        if (id < 0 || id >= d->n)
            continue;
        if (s->indices[id] == 0) {
            to[d->n_penalties] = (struct draw_penalty){ .id = id };
            s->indices[id] = ++d->n_penalties;
        }
        to[s->indices[id] - 1].n_answer += i >= in->n_prompt;
    }
    for (int i = 0; i < d->n_penalties; i++)
        s->indices[to[i].id] = 0;
    return true;
}

/* The mask, in which the bits of stop tokens say whether they are allowed. */
static bool put_mask(struct cuda_sampling *s, struct draw *d, const struct sample_input *in)
{
    const void *card;
    size_t n_bytes = ((size_t)d->n + 31) / 32 * sizeof(uint32_t), n_stops = 0;
    uint32_t *to = take_upload(s, n_bytes, &card);
    if (!to)
        return false;
    d->allowed = card;
    memcpy(to, in->allowed, n_bytes);
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < in->stops[k].n && n_stops < MAX_SAMPLE_STOPS; i++, n_stops++) {
            int32_t id = in->stops[k].ids[i];
            if (id >= d->n)
                continue;
            uint32_t bit = UINT32_C(1) << (id & 31);
            to[id >> 5] = in->stop_is_allowed ? to[id >> 5] | bit : to[id >> 5] & ~bit;
        }
    }
    return true;
}

/* ---- draws ---- */

static bool is_for_host(const struct sample_input *in)
{
    const struct tutti_sampling *p = in->sampling;
    if (in->kind != SAMPLE_DRAW)
        return in->kind == SAMPLE_BEST &&
               (in->n_best > SAMPLE_MOST_TOP || in->sampling->n_logit_bias > MAX_BIASES);
    if (p->n_logit_bias > MAX_BIASES)
        return true;
    return p->temperature > 0.0f &&
           (sampler_has_typical(p) || (p->top_k > SAMPLE_MOST_K && in->n_usable > SAMPLE_CANDIDATES));
}

static void describe_draw(struct draw *d, const struct sample_input *in, int k)
{
    const struct tutti_sampling *p = in->sampling;
    d->n_top = in->n_top;
    d->token = -1;
    if (in->kind == SAMPLE_BEST) {
        d->kind = k == BEST_FOUND ? DRAW_BEST : DRAW_NOTHING;
        d->has_logprobs = k != BEST_FOUND; /* which need the sum */
        d->n_top = k == BEST_FOUND ? in->n_best : 0;
        return;
    }
    if (in->kind == SAMPLE_SCORE) {
        d->has_logprobs = true;
        d->token = in->token < in->n_usable ? in->token : -1;
        return;
    }
    d->has_logprobs = in->logprobs;
    d->kind = p->temperature <= 0.0f            ? DRAW_GREEDY
              : p->top_k > 0 || p->top_p < 1.0f ? DRAW_TRUNCATED
                                                : DRAW_PLAIN;
    d->seed = rng_bits(in->seed, (uint64_t)in->choice, (uint64_t)(in->n_ids + k - in->n_prompt));
    d->temperature = p->temperature;
    d->reciprocal = 1 / p->temperature < FLT_MAX ? 1 / p->temperature : FLT_MAX;
    d->top_k = p->top_k > 0 ? p->top_k : 0;
    d->top_p = p->top_p;
    d->min_p = p->min_p;
}

/* False: there is no room for its lists. */
static bool put_changes(struct cuda_sampling *s, struct draw *d, const struct sample_input *in, int k)
{
    const struct tutti_sampling *p = in->sampling;
    d->x = s->card_rows + (size_t)s->n_changed * (size_t)s->n_vocab;
    d->repetition = 1;
    return (p->n_logit_bias == 0 || put_biases(s, d, p)) &&
           ((p->repetition_penalty == 1.0f && p->presence_penalty == 0.0f && p->frequency_penalty == 0.0f) ||
            put_penalties(s, d, in, in->n_ids + (k > 0 ? k : 0))) &&
           (!in->allowed || put_mask(s, d, in));
}

/* Adds row k of an input to the next launch; total: of DRAW_BEST. False: there is no room in it. */
static bool plan_draw(struct cuda_sampling *s, const float *logits, int n_vocab, struct sample_input *in,
                      int k, double total)
{
    bool is_changed = in->kind == SAMPLE_BEST   ? k == BEST_FOUND
                      : in->kind == SAMPLE_DRAW ? sampler_has_processors(in->sampling) || in->allowed
                                                : false;
    int row = in->row + (in->kind == SAMPLE_BEST ? 0 : k);
    if (s->n_planned == MOST_DRAWS || (is_changed && s->n_changed == MOST_CHANGED))
        return false;
    struct draw draw = { .logits = logits + (size_t)row * (size_t)n_vocab,
                         .n = in->n_usable,
                         .total = total };
    size_t n_upload = s->n_upload;
    describe_draw(&draw, in, k);
    if (is_changed && !put_changes(s, &draw, in, k)) {
        s->n_upload = n_upload;
        return false;
    }
    s->n_changed += is_changed;
    ((struct draw *)(void *)s->upload)[s->n_planned] = draw;
    s->planned[s->n_planned++] = (struct planned_draw){ in, k };
    return true;
}

static double log_sum_exp(const struct draw_out *out, uint64_t largest)
{
    return (double)draw_key_value(largest) + log(out->sum_exp);
}

static void collect_logprobs(struct sample *to, const struct sample_input *in, const struct draw_out *out,
                             const struct draw_found *top, struct draw_found found, uint64_t largest)
{
    double total = log_sum_exp(out, largest);
    bool is_usable = to->token < in->n_usable; /* a prompt may have others */
    to->logprob = is_usable ? (float)((double)found.logit - total) : -INFINITY;
    to->n_top = out->n_top;
    for (int i = 0; i < to->n_top; i++)
        to->top[i] = (struct sample_top){ top[i].id, (float)((double)top[i].logit - total) };
}

/* The token that arrives first, of all parts. */
static struct draw_found first_of(const struct draw_out *out, int n_parts)
{
    struct draw_race first = out->races[0];
    for (int i = 1; i < n_parts; i++) {
        const struct draw_race *other = &out->races[i];
        if (other->arrival < first.arrival ||
            (other->arrival == first.arrival && (uint32_t)other->found.id < (uint32_t)first.found.id))
            first = *other;
    }
    return first.found;
}

/* What the scan of all parts of a row found. */
struct row_scan {
    uint64_t largest, best; /* keys of the logits, and of x */
    int32_t bad;            /* INT32_MAX: all logits are finite */
    bool is_left;
};

static struct row_scan scan_of(const struct draw *d, const struct draw_out *out)
{
    struct row_scan row = { .bad = INT32_MAX, .is_left = out->is_left };
    for (int p = 0; p < SAMPLE_PARTS; p++) {
        const struct draw_scan *scan = &out->scans[p];
        uint64_t best = d->x ? scan->largest_x : scan->largest;
        row.largest = scan->largest > row.largest ? scan->largest : row.largest;
        row.best = best > row.best ? best : row.best;
        row.bad = scan->bad < row.bad ? scan->bad : row.bad;
        row.is_left = row.is_left || (d->x && scan->bad_x != INT32_MAX);
    }
    return row;
}

static void collect_draw(struct sample *to, const struct sample_input *in, const struct draw *d,
                         const struct draw_out *out, const struct draw_found *top)
{
    struct row_scan row = scan_of(d, out);
    *to = (struct sample){ 0 };
    if (row.bad != INT32_MAX || row.is_left) {
        to->token = row.bad != INT32_MAX ? row.bad : 0;
        to->n_top = row.bad != INT32_MAX ? ROW_IS_BAD : ROW_IS_LEFT;
        return;
    }
    struct draw_found found = d->kind == DRAW_PLAIN       ? first_of(out, SAMPLE_PARTS)
                              : d->kind == DRAW_TRUNCATED ? first_of(out, 1)
                                                          : out->token;
    to->token = in->kind == SAMPLE_SCORE ? in->token
                : d->kind == DRAW_GREEDY ? draw_key_id(row.best)
                                         : found.id;
    if (d->has_logprobs)
        collect_logprobs(to, in, out, top, found, row.largest);
}

/* Of SAMPLE_BEST: first the total, then the candidates, with which n_out becomes 1. */
static void collect_best(struct cuda_sampling *s, struct sample_input *in, int k, const struct draw *d,
                         const struct draw_out *out, const struct draw_found *top)
{
    struct row_scan row = scan_of(d, out);
    in->is_finite = row.bad == INT32_MAX;
    if (!in->is_finite) {
        in->out->token = row.bad;
        in->n_out = 1;
    } else if (k != BEST_FOUND) {
        s->totals[k] = log_sum_exp(out, row.largest);
    } else if (!row.is_left) {
        for (int i = 0; i < in->n_best; i++)
            in->best[i] = (struct sample_candidate){ top[i].id, top[i].x,
                                                     (float)((double)top[i].logit - d->total) };
        in->n_out = 1;
    }
}

/* Samples what is planned. */
static void run_draws(struct cuda_backend *cuda)
{
    struct cuda_sampling *s = cuda->sampling;
    struct sample_args args = { .draws = (const struct draw *)(const void *)s->upload,
                                .outs = s->card_outs,
                                .tops = s->card_tops,
                                .scratch = s->card_scratch,
                                .tile_sums = s->card_sums,
                                .most_tiles = s->most_tiles };
    bool has_more = false, has_sums = false, has_top = false;
    int n = s->n_planned;
    if (n == 0)
        return;
    for (int i = 0; i < n; i++) {
        const struct draw *d = &((const struct draw *)(const void *)s->upload)[i];
        has_top = has_top || d->n_top > 0;
        has_sums = has_sums || d->has_logprobs || (d->kind == DRAW_TRUNCATED && d->top_k == 0);
        has_more = has_more || d->has_logprobs || d->kind == DRAW_PLAIN || d->kind == DRAW_TRUNCATED ||
                   d->kind == DRAW_BEST;
    }
    cuda_busy_begin(cuda);
    if (s->n_changed > 0)
        cuda_launch(cuda, CUDA_KERNEL_sample_prepare, (struct cuda_grid){ n, 1, 1, SAMPLE_THREADS, 0 }, &args,
                    sizeof args);
    cuda_launch(cuda, CUDA_KERNEL_sample_scan, (struct cuda_grid){ SAMPLE_PARTS, n, 1, SAMPLE_THREADS, 0 },
                &args, sizeof args);
    if (has_sums)
        cuda_launch(cuda, CUDA_KERNEL_sample_sums,
                    (struct cuda_grid){ 2 * SAMPLE_PARTS, n, 1, SAMPLE_THREADS, 0 }, &args, sizeof args);
    if (has_more)
        cuda_launch(cuda, CUDA_KERNEL_sample_draw,
                    (struct cuda_grid){ SAMPLE_PARTS + 2, n, 1, SAMPLE_THREADS, 0 }, &args, sizeof args);
    cuda_busy_end(cuda);
    if (has_top)
        cuda_copy_out(cuda, s->tops, s->card_tops, (size_t)n * SAMPLE_MOST_TOP * sizeof *s->tops);
    cuda_copy_out(cuda, s->outs, s->card_outs, (size_t)n * sizeof *s->outs);
    for (int i = 0; i < n; i++) {
        const struct draw *d = &((const struct draw *)(const void *)s->upload)[i];
        const struct draw_found *top = s->tops + (size_t)i * SAMPLE_MOST_TOP;
        struct sample_input *in = s->planned[i].in;
        if (in->kind == SAMPLE_BEST)
            collect_best(s, in, s->planned[i].k, d, &s->outs[i], top);
        else
            collect_draw(&in->out[s->planned[i].k], in, d, &s->outs[i], top);
    }
    s->n_planned = s->n_changed = 0;
    s->n_upload = MOST_DRAWS * sizeof(struct draw);
}

/* ---- inputs ---- */

/* The host samples a row. False: a logit is not finite. */
static bool sample_on_host(struct cuda_backend *cuda, const float *row, struct sample_input *in,
                           struct sample *out)
{
    struct cuda_sampling *s = cuda->sampling;
    cuda_copy_out(cuda, s->host_row, row, (size_t)in->n_usable * sizeof *row);
    switch (in->kind) {
    case SAMPLE_SCORE:
        return sampler_score(s->sampler, s->host_row, in, out);
    case SAMPLE_BEST:
        return sampler_best(s->sampler, s->host_row, in, &out->token);
    default:
        return sampler_draw(s->sampler, s->host_row, in, out);
    }
}

/* Finds the candidates of n beams, at most MOST_CHANGED: their log-probabilities are made from the sums of exponentials, and
 * then bias and penalties apply. Nothing else is planned. */
static void find_best(struct cuda_backend *cuda, const float *logits, int n_vocab,
                      struct sample_input *const *beams, int n)
{
    struct cuda_sampling *s = cuda->sampling;
    for (int i = 0; i < n; i++) {
        beams[i]->n_out = 0;
        (void)plan_draw(s, logits, n_vocab, beams[i], i, 0);
    }
    run_draws(cuda);
    for (int i = 0; i < n; i++) {
        if (beams[i]->n_out > 0 || plan_draw(s, logits, n_vocab, beams[i], BEST_FOUND, s->totals[i]))
            continue;
        run_draws(cuda);
        (void)plan_draw(s, logits, n_vocab, beams[i], BEST_FOUND, s->totals[i]); /* or the host does it */
    }
    run_draws(cuda);
}

static void find_all_best(struct cuda_backend *cuda, const float *logits, int n_vocab,
                          struct sample_input *inputs, int n)
{
    struct sample_input *beams[MOST_CHANGED] = { NULL };
    int n_beams = 0;
    for (int i = 0; i < n; i++) {
        if (inputs[i].kind != SAMPLE_BEST)
            continue;
        inputs[i].n_out = 0;
        if (!is_for_host(&inputs[i]))
            beams[n_beams++] = &inputs[i];
        if (n_beams == MOST_CHANGED) {
            find_best(cuda, logits, n_vocab, beams, n_beams);
            n_beams = 0;
        }
    }
    find_best(cuda, logits, n_vocab, beams, n_beams);
}

/* Plans all rows of an input that is not SAMPLE_BEST. */
static void plan_input(struct cuda_backend *cuda, const float *logits, int n_vocab, struct sample_input *in)
{
    struct cuda_sampling *s = cuda->sampling;
    bool is_left = is_for_host(in);
    for (int k = 0; k <= in->n_drafts; k++) {
        if (!is_left && !plan_draw(s, logits, n_vocab, in, k, 0)) {
            run_draws(cuda);
            is_left = !plan_draw(s, logits, n_vocab, in, k, 0);
        }
        if (is_left)
            in->out[k].n_top = ROW_IS_LEFT;
    }
}

/* Results of an input, from those of its rows. */
static void finish_input(struct cuda_backend *cuda, const float *logits, int n_vocab, struct sample_input *in)
{
    struct sample_input next = *in;
    const float *row = logits + (size_t)in->row * (size_t)n_vocab;
    if (in->kind == SAMPLE_BEST) {
        if (in->n_out == 0)
            in->is_finite = sample_on_host(cuda, row, in, in->out);
        in->n_out = 1;
        return;
    }
    for (in->n_out = 0; in->n_out <= in->n_drafts; row += n_vocab) {
        struct sample *out = &in->out[in->n_out++];
        in->is_finite = out->n_top != ROW_IS_BAD;
        if (out->n_top == ROW_IS_LEFT)
            in->is_finite = sample_on_host(cuda, row, &next, out);
        out->n_top = out->n_top < 0 ? 0 : out->n_top;
        if (!in->is_finite || in->n_out > in->n_drafts || out->token != in->ids[next.n_ids++])
            return;
    }
}

void cuda_sample(struct backend *be, struct floats logits, int n_vocab, struct sample_input *inputs, int n)
{
    struct cuda_backend *cuda = cuda_of(be);
    struct cuda_sampling *s = cuda->sampling;
    int n_rows = 0;
    for (int i = 0; i < n; i++) {
        assert(s && inputs[i].n_usable <= s->n_vocab); /* else reserve_sampling() is missing */
        int end = inputs[i].row + inputs[i].n_drafts + 1;
        n_rows = end > n_rows ? end : n_rows;
    }
    if (n == 0)
        return;
    const float *rows = cuda_floats(logits, (size_t)n_rows * (size_t)n_vocab);
    s->n_planned = s->n_changed = 0;
    s->n_upload = MOST_DRAWS * sizeof(struct draw);
    find_all_best(cuda, rows, n_vocab, inputs, n);
    for (int i = 0; i < n; i++)
        if (inputs[i].kind != SAMPLE_BEST)
            plan_input(cuda, rows, n_vocab, &inputs[i]);
    run_draws(cuda);
    for (int i = 0; i < n; i++)
        finish_input(cuda, rows, n_vocab, &inputs[i]);
}
