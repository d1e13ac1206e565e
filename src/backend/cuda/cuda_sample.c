/* Sampling of the CUDA backend: rows of logits are sampled on the card, where the step left them, many rows at once.
 *
 * The rows of draft tokens do not wait for each other: the row after a draft token is drawn as if the token was accepted, and
 * its result is used only if it was. What is rare is left to the host, which copies the row and samples it as the CPU backend
 * does: more than MAX_BIASES biases, beams with more than SAMPLE_MOST_TOP candidates, and penalties that make logits infinite. */
#include "backend/cuda/cuda.h"
#include "backend/sampler.h"
#include "base/rng.h"
#include "kernels/cuda/sample/sample_args.h"
#include "kernels/kernels.h"
#include "kernels/race.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_DRAWS = 1024, /* that are sent at once */
    GROUP_DRAWS = 256, /* of a launch; the next one reuses its scratch memory */
    MOST_CHANGED = 32, /* of these, with bias, penalties or mask */
    MOST_GROUPS = MOST_DRAWS / MOST_CHANGED + MOST_DRAWS / GROUP_DRAWS,
    UPLOAD_BYTES = 4 << 20, /* besides 16 for each token of the vocabulary */
    MAX_BIASES = 4096,      /* of a row on the card */
};

_Static_assert((int)SAMPLE_MOST_TOP >= LIMIT_TOP_LOGPROBS,
               "the card finds as many log-probabilities as may be wanted");

enum { BEST_FOUND = -1, FINISH_THREADS = 32 };

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
    float *card_rows;           /* [MOST_CHANGED][n_vocab]: logits after bias, penalties and mask */
    struct draw_out *card_outs; /* [GROUP_DRAWS] */
    struct draw_result *results, *card_results; /* [MOST_DRAWS] */
    struct draw_found *tops, *card_tops;        /* [MOST_DRAWS][SAMPLE_MOST_TOP] */
    struct draw_scratch *card_scratch;          /* [GROUP_DRAWS] */
    struct draw_wide *card_wide;                /* [GROUP_DRAWS] */
    float *card_sums;                           /* [GROUP_DRAWS][2][most_tiles] */
    int most_tiles;
    struct planned_draw {
        struct sample_input *in;
        int k; /* row after that of in; of SAMPLE_BEST: the index in totals, or BEST_FOUND */
    } planned[MOST_DRAWS];
    int n_planned;
    struct draw_group {
        int first, n, n_changed;
    } groups[MOST_GROUPS]; /* of planned draws, in order */
    int n_groups;
    struct sample_input *submitted; /* [n_submitted]: of cuda_sample_submit(); one draw for each */
    int n_submitted;
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
    cuda_pinned_free(cuda, s->results);
    cuda_pinned_free(cuda, s->tops);
    cuda_memory_free(cuda, s->card_scratch);
    cuda_memory_free(cuda, s->card_wide);
    cuda_memory_free(cuda, s->card_sums);
    cuda_memory_free(cuda, s->card_rows);
    cuda_memory_free(cuda, s->card_outs);
    cuda_memory_free(cuda, s->card_results);
    cuda_memory_free(cuda, s->card_tops);
    free(s);
    cuda->sampling = NULL;
}

enum tutti_status cuda_reserve_sampling(struct backend *be, int n_vocab, struct tutti_error *err)
{
    struct cuda_backend *cuda = cuda_of(be);
    if (cuda->sampling && cuda->sampling->n_vocab == n_vocab)
        return TUTTI_OK;
    if (!cuda_need(cuda, CUDA_KERNEL_sample_draw, CUDA_NEED_FILE) ||
        !cuda_need(cuda, CUDA_KERNEL_sample_wide, CUDA_NEED_FILE))
        return cuda_check(cuda, err);
    cuda_sampling_release(cuda);
    struct cuda_sampling *s = cuda->sampling = calloc(1, sizeof *s);
    if (!s)
        return error_set(err, TUTTI_E_MEMORY, "sampling: out of memory");
    size_t n = (size_t)n_vocab, results_bytes = MOST_DRAWS * sizeof *s->results,
           tops_bytes = MOST_DRAWS * SAMPLE_MOST_TOP * sizeof *s->tops;
    kernels_init(&s->kernels, cpu_detect());
    s->n_vocab = n_vocab;
    s->upload_room = MOST_DRAWS * sizeof(struct draw) + 16 * n + UPLOAD_BYTES;
    s->indices = calloc(n, sizeof *s->indices);
    s->host_row = cuda_pinned_new(cuda, n * sizeof *s->host_row);
    s->upload = cuda_pinned_new(cuda, s->upload_room);
    s->results = cuda_pinned_new(cuda, results_bytes);
    s->tops = cuda_pinned_new(cuda, tops_bytes);
    s->most_tiles = (n_vocab + RACE_TILE - 1) / RACE_TILE;
    s->card_scratch = cuda_memory_new(cuda, GROUP_DRAWS * sizeof *s->card_scratch);
    s->card_wide = cuda_memory_new(cuda, GROUP_DRAWS * sizeof *s->card_wide);
    s->card_sums = cuda_memory_new(cuda, GROUP_DRAWS * 2 * (size_t)s->most_tiles * sizeof *s->card_sums);
    s->card_rows = cuda_memory_new(cuda, MOST_CHANGED * n * sizeof *s->card_rows);
    s->card_outs = cuda_memory_new(cuda, GROUP_DRAWS * sizeof *s->card_outs);
    s->card_results = cuda_memory_new(cuda, results_bytes);
    s->card_tops = cuda_memory_new(cuda, tops_bytes);
    enum tutti_status st = sampler_new(&s->sampler, &s->kernels, n_vocab, err);
    if (st == TUTTI_OK &&
        !(s->indices && s->host_row && s->upload && s->results && s->tops && s->card_rows &&
          s->card_scratch && s->card_wide && s->card_sums && s->card_outs && s->card_results && s->card_tops))
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
    return in->kind != SAMPLE_SCORE && (in->sampling->n_logit_bias > MAX_BIASES ||
                                        (in->kind == SAMPLE_BEST && in->n_best > SAMPLE_MOST_TOP));
}

static int kind_of_draw(const struct tutti_sampling *p)
{
    if (p->temperature <= 0.0f)
        return DRAW_GREEDY;
    if (sampler_has_typical(p) || p->top_k > SAMPLE_MOST_K)
        return DRAW_WIDE;
    return p->top_k > 0 || p->top_p < 1.0f ? DRAW_TRUNCATED : DRAW_PLAIN;
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
    d->kind = kind_of_draw(p);
    d->seed = rng_bits(in->seed, (uint64_t)in->choice, (uint64_t)(in->n_ids + k - in->n_prompt));
    d->temperature = p->temperature;
    d->reciprocal = 1 / p->temperature < FLT_MAX ? 1 / p->temperature : FLT_MAX;
    d->top_k = p->top_k > 0 ? p->top_k : 0;
    d->top_p = p->top_p;
    d->min_p = p->min_p;
    d->typical_p = sampler_has_typical(p) ? p->typical_p : 0;
}

/* False: there is no room for its lists. */
static bool put_changes(struct cuda_sampling *s, struct draw *d, const struct sample_input *in, int k,
                        int n_changed)
{
    const struct tutti_sampling *p = in->sampling;
    d->x = s->card_rows + (size_t)n_changed * (size_t)s->n_vocab;
    d->repetition = 1;
    return (p->n_logit_bias == 0 || put_biases(s, d, p)) &&
           ((p->repetition_penalty == 1.0f && p->presence_penalty == 0.0f && p->frequency_penalty == 0.0f) ||
            put_penalties(s, d, in, in->n_ids + (k > 0 ? k : 0))) &&
           (!in->allowed || put_mask(s, d, in));
}

/* The group of the next draw. NULL: there are too many. */
static struct draw_group *next_group(struct cuda_sampling *s, bool is_changed)
{
    struct draw_group *g = &s->groups[s->n_groups > 0 ? s->n_groups - 1 : 0];
    if (s->n_planned == MOST_DRAWS)
        return NULL;
    if (s->n_groups > 0 && g->n < GROUP_DRAWS && g->n_changed + is_changed <= MOST_CHANGED)
        return g;
    assert(s->n_groups < MOST_GROUPS);
    g = &s->groups[s->n_groups++];
    *g = (struct draw_group){ .first = s->n_planned };
    return g;
}

static void forget_draws(struct cuda_sampling *s)
{
    s->n_planned = s->n_groups = 0;
    s->n_upload = MOST_DRAWS * sizeof(struct draw);
}

/* Adds row k of an input to what is sent next; total: of DRAW_BEST. False: there is no room in it. */
static bool plan_draw(struct cuda_sampling *s, const float *logits, int n_vocab, struct sample_input *in,
                      int k, double total)
{
    bool is_changed = in->kind == SAMPLE_BEST   ? k == BEST_FOUND
                      : in->kind == SAMPLE_DRAW ? sampler_has_processors(in->sampling) || in->allowed
                                                : false;
    int row = in->row + (in->kind == SAMPLE_BEST ? 0 : k);
    struct draw_group *g = next_group(s, is_changed);
    if (!g)
        return false;
    struct draw draw = { .logits = logits + (size_t)row * (size_t)n_vocab,
                         .n = in->n_usable,
                         .total = total };
    size_t n_upload = s->n_upload;
    describe_draw(&draw, in, k);
    if (is_changed && !put_changes(s, &draw, in, k, g->n_changed)) {
        s->n_upload = n_upload;
        s->n_groups -= g->n == 0;
        return false;
    }
    g->n_changed += is_changed;
    g->n++;
    ((struct draw *)(void *)s->upload)[s->n_planned] = draw;
    s->planned[s->n_planned++] = (struct planned_draw){ in, k };
    return true;
}

static double log_sum_exp(const struct draw_result *result)
{
    return (double)draw_key_value(result->largest) + log(result->sum_exp);
}

static void collect_draw(struct sample *to, const struct sample_input *in, const struct draw *d,
                         const struct draw_result *result, const struct draw_found *top)
{
    *to = (struct sample){ 0 };
    if (result->bad != INT32_MAX || result->is_left) {
        to->token = result->bad != INT32_MAX ? result->bad : 0;
        to->n_top = result->bad != INT32_MAX ? ROW_IS_BAD : ROW_IS_LEFT;
        return;
    }
    to->token = in->kind == SAMPLE_SCORE ? in->token : result->token;
    if (!d->has_logprobs)
        return;
    double total = log_sum_exp(result);
    bool is_usable = to->token < in->n_usable; /* a prompt may have others */
    to->logprob = is_usable ? (float)((double)result->logit - total) : -INFINITY;
    to->n_top = result->n_top;
    for (int i = 0; i < to->n_top; i++)
        to->top[i] = (struct sample_top){ top[i].id, (float)((double)top[i].logit - total) };
}

/* Of SAMPLE_BEST: first the total, then the candidates, with which n_out becomes 1. */
static void collect_best(struct cuda_sampling *s, struct sample_input *in, int k, const struct draw *d,
                         const struct draw_result *result, const struct draw_found *top)
{
    in->is_finite = result->bad == INT32_MAX;
    if (!in->is_finite) {
        in->out->token = result->bad;
        in->n_out = 1;
    } else if (k != BEST_FOUND) {
        s->totals[k] = log_sum_exp(result);
    } else if (!result->is_left) {
        for (int i = 0; i < in->n_best; i++)
            in->best[i] = (struct sample_candidate){ top[i].id, top[i].x,
                                                     (float)((double)top[i].logit - d->total) };
        in->n_out = 1;
    }
}

static const struct draw *draws_of(const struct cuda_sampling *s)
{
    return (const void *)s->upload;
}

/* What the draws of a group need. */
struct group_needs {
    bool sums, draw, top; /* sums of exponentials, sample_draw, and log-probabilities of several tokens */
    bool stages[WIDE_RACE + 1];
};

static struct group_needs needs_of(const struct draw *draws, int n)
{
    struct group_needs needs = { 0 };
    for (int i = 0; i < n; i++) {
        const struct draw *d = &draws[i];
        bool is_wide = d->kind == DRAW_WIDE, is_narrow = d->kind == DRAW_TRUNCATED;
        /* How many candidates top-p has is known on the card only. */
        bool may_be_wide = is_wide || (is_narrow && draw_has_mass(d) && d->n > SAMPLE_CANDIDATES);
        needs.top |= d->n_top > 0;
        needs.sums |= d->has_logprobs || draw_has_mass(d);
        needs.draw |= d->has_logprobs || d->kind == DRAW_PLAIN || is_narrow || d->kind == DRAW_BEST;
        for (int stage = 0; stage <= WIDE_RACE; stage++)
            needs.stages[stage] |= may_be_wide && draw_has_stage(d, stage);
    }
    return needs;
}

static void launch_wide(struct cuda_backend *cuda, const struct draw_group *g, struct sample_args args,
                        const struct group_needs *needs)
{
    for (args.stage = 0; args.stage <= WIDE_RACE; args.stage++) {
        int n_digits = args.stage == WIDE_ENTROPY || args.stage == WIDE_RACE ? 1 : WIDE_DIGITS;
        for (args.digit = 0; needs->stages[args.stage] && args.digit < n_digits; args.digit++) {
            cuda_launch(cuda, CUDA_KERNEL_sample_wide,
                        (struct cuda_grid){ SAMPLE_PARTS, g->n, 1, SAMPLE_THREADS, 0 }, &args, sizeof args);
            args.launch++;
        }
    }
}

/* Launches for a group of draws. Returns whether they give log-probabilities of several tokens. */
static bool launch_group(struct cuda_backend *cuda, const struct draw_group *g)
{
    struct cuda_sampling *s = cuda->sampling;
    const struct draw *draws = draws_of(s) + g->first;
    const struct group_needs needs = needs_of(draws, g->n);
    const struct sample_args args = { .draws = draws,
                                      .outs = s->card_outs,
                                      .tops = s->card_tops + (size_t)g->first * SAMPLE_MOST_TOP,
                                      .results = s->card_results + g->first,
                                      .scratch = s->card_scratch,
                                      .tile_sums = s->card_sums,
                                      .most_tiles = s->most_tiles,
                                      .wide = s->card_wide };
    if (g->n_changed > 0)
        cuda_launch(cuda, CUDA_KERNEL_sample_prepare, (struct cuda_grid){ g->n, 1, 1, SAMPLE_THREADS, 0 },
                    &args, sizeof args);
    cuda_launch(cuda, CUDA_KERNEL_sample_scan, (struct cuda_grid){ SAMPLE_PARTS, g->n, 1, SAMPLE_THREADS, 0 },
                &args, sizeof args);
    if (needs.sums)
        cuda_launch(cuda, CUDA_KERNEL_sample_sums,
                    (struct cuda_grid){ 2 * SAMPLE_PARTS, g->n, 1, SAMPLE_THREADS, 0 }, &args, sizeof args);
    if (needs.draw)
        cuda_launch(cuda, CUDA_KERNEL_sample_draw,
                    (struct cuda_grid){ SAMPLE_PARTS + 2, g->n, 1, SAMPLE_THREADS, 0 }, &args, sizeof args);
    launch_wide(cuda, g, args, &needs);
    cuda_launch(cuda, CUDA_KERNEL_sample_finish, (struct cuda_grid){ g->n, 1, 1, FINISH_THREADS, 0 }, &args,
                sizeof args);
    return needs.top;
}

/* Submits what is planned. */
static void launch_draws(struct cuda_backend *cuda)
{
    struct cuda_sampling *s = cuda->sampling;
    bool has_top = false;
    cuda_busy_begin(cuda);
    for (int i = 0; i < s->n_groups; i++)
        has_top = launch_group(cuda, &s->groups[i]) || has_top;
    cuda_busy_end(cuda);
    if (has_top)
        cuda_copy_out_later(cuda, s->tops, s->card_tops,
                            (size_t)s->n_planned * SAMPLE_MOST_TOP * sizeof *s->tops);
    cuda_copy_out_later(cuda, s->results, s->card_results, (size_t)s->n_planned * sizeof *s->results);
    cuda_mark_samples(cuda);
}

/* Waits for what was submitted, and takes its results. */
static void collect_draws(struct cuda_backend *cuda)
{
    struct cuda_sampling *s = cuda->sampling;
    cuda_wait_samples(cuda);
    /* After a failure the card may still write to the results, which are not used, but defined. */
    static const struct draw_result NONE;
    bool has_failed = cuda_check(cuda, NULL) != TUTTI_OK;
    for (int i = 0; i < s->n_planned; i++) {
        const struct draw *d = &draws_of(s)[i];
        const struct draw_result *result = has_failed ? &NONE : &s->results[i];
        const struct draw_found *top = s->tops + (size_t)i * SAMPLE_MOST_TOP;
        struct sample_input *in = s->planned[i].in;
        if (in->kind == SAMPLE_BEST)
            collect_best(s, in, s->planned[i].k, d, result, top);
        else
            collect_draw(&in->out[s->planned[i].k], in, d, result, top);
    }
    forget_draws(s);
}

static void run_draws(struct cuda_backend *cuda)
{
    if (cuda->sampling->n_planned == 0)
        return;
    launch_draws(cuda);
    collect_draws(cuda);
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

/* Rows of logits that the inputs have. */
static const float *rows_of(struct floats logits, int n_vocab, const struct sample_input *inputs, int n)
{
    int n_rows = 0;
    for (int i = 0; i < n; i++) {
        int end = inputs[i].row + inputs[i].n_drafts + 1;
        n_rows = end > n_rows ? end : n_rows;
    }
    return cuda_floats(logits, (size_t)n_rows * (size_t)n_vocab);
}

void cuda_sample(struct backend *be, struct floats logits, int n_vocab, struct sample_input *inputs, int n)
{
    struct cuda_backend *cuda = cuda_of(be);
    struct cuda_sampling *s = cuda->sampling;
    if (n == 0)
        return;
    assert(s && s->n_submitted == 0); /* else reserve_sampling() is missing, or sample_wait() */
    const float *rows = rows_of(logits, n_vocab, inputs, n);
    forget_draws(s);
    find_all_best(cuda, rows, n_vocab, inputs, n);
    for (int i = 0; i < n; i++) {
        assert(inputs[i].n_usable <= s->n_vocab);
        if (inputs[i].kind != SAMPLE_BEST)
            plan_input(cuda, rows, n_vocab, &inputs[i]);
    }
    run_draws(cuda);
    for (int i = 0; i < n; i++)
        finish_input(cuda, rows, n_vocab, &inputs[i]);
}

bool cuda_sample_submit(struct backend *be, struct floats logits, int n_vocab, struct sample_input *inputs,
                        int n)
{
    struct cuda_backend *cuda = cuda_of(be);
    struct cuda_sampling *s = cuda->sampling;
    assert(s && s->n_submitted == 0);
    const float *rows = rows_of(logits, n_vocab, inputs, n);
    forget_draws(s);
    for (int i = 0; i < n; i++) {
        struct sample_input *in = &inputs[i];
        assert(in->n_usable <= s->n_vocab);
        if (in->kind == SAMPLE_BEST || in->n_drafts > 0 || is_for_host(in) ||
            !plan_draw(s, rows, n_vocab, in, 0, 0))
            return false;
    }
    launch_draws(cuda);
    s->submitted = inputs;
    s->n_submitted = n;
    return true;
}

void cuda_sample_wait(struct backend *be)
{
    struct cuda_backend *cuda = cuda_of(be);
    struct cuda_sampling *s = cuda->sampling;
    collect_draws(cuda);
    for (int i = 0; i < s->n_submitted; i++) {
        struct sample_input *in = &s->submitted[i];
        in->n_out = in->out->n_top != ROW_IS_LEFT;
        in->is_finite = in->out->n_top != ROW_IS_BAD;
        in->out->n_top = in->out->n_top < 0 ? 0 : in->out->n_top;
    }
    s->n_submitted = 0;
}

const struct draw_result *cuda_sample_results(const struct cuda_backend *cuda)
{
    return cuda->sampling ? cuda->sampling->card_results : NULL;
}
