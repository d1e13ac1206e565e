/* Sampling on the card (by the emulator) against the CPU's sampler: the same tokens and log-probabilities, bit for bit. */
#include "cuda/launches.h"

#include "backend/sampler.h"
#include "base/rng.h"
#include "kernels/kernels.h"
#include "kernels/race.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_INPUTS = 12, MAX_DRAFTS = 3, MAX_IDS = 400, MAX_BEST = 8 };

static struct cuda_backend *cuda;
static struct sampler *sampler;
static uint64_t n_drawn;

static const struct tutti_sampling defaults = { .temperature = 1, .top_p = 1, .repetition_penalty = 1 };

static double uniform(void)
{
    return rng_uniform(11, 5, n_drawn++);
}

static int below(int n)
{
    return (int)(uniform() * n);
}

/* Kinds of rows. */
enum { ROW_BELL, ROW_PEAK, ROW_EQUAL, ROW_STEPS, ROW_HUGE, ROW_FALLING, N_ROW_KINDS };

static void fill_row(float *x, int n, int kind)
{
    for (int i = 0; i < n; i++) {
        double bell = uniform() + uniform() + uniform() + uniform() - 2;
        x[i] = kind == ROW_EQUAL     ? -1.5f
               : kind == ROW_STEPS   ? (float)below(4)
               : kind == ROW_HUGE    ? (float)(bell * 1e38)
               : kind == ROW_FALLING ? -0.001f * (float)i
               : kind == ROW_PEAK    ? (float)(bell * 2) + (below(n) < 8 ? 12 : 0)
                                     : (float)(bell * 6);
    }
    if (kind == ROW_STEPS && n > 3)
        x[2] = -0.0f;
}

/* An input with all it points to. */
struct example {
    struct sample_input in;
    struct tutti_sampling sampling;
    struct tutti_logit_bias biases[6];
    int32_t ids[MAX_IDS + MAX_DRAFTS];
    uint32_t *allowed;
    int32_t stops[3];
    struct sample out[MAX_DRAFTS + 1], want[MAX_DRAFTS + 1];
    struct sample_candidate best[MAX_BEST], want_best[MAX_BEST];
};

static void run_on_cpu(const struct example *e, const float *logits, int n_rows, int n_vocab,
                       struct sample_input *want, struct example *to)
{
    float *copy = malloc(sizeof *copy * (size_t)n_rows * (size_t)n_vocab);
    memcpy(copy, logits, sizeof *copy * (size_t)n_rows * (size_t)n_vocab);
    *want = e->in;
    want->out = to->want;
    want->best = to->want_best;
    memset(to->want, 0, sizeof to->want);
    sampler_run(sampler, copy, n_vocab, want);
    free(copy);
}

static void check_result(const struct example *e, const struct sample_input *want)
{
    assert_int_equal(e->in.n_out, want->n_out);
    assert_int_equal(e->in.is_finite, want->is_finite);
    for (int k = 0; e->in.kind != SAMPLE_BEST && k < want->n_out; k++) {
        const struct sample *a = &e->out[k], *b = &e->want[k];
        assert_int_equal(a->token, b->token);
        assert_int_equal(a->n_top, b->n_top);
        if (!want->is_finite && k == want->n_out - 1)
            continue;
        assert_memory_equal(&a->logprob, &b->logprob, sizeof a->logprob);
        assert_memory_equal(a->top, b->top, sizeof *a->top * (size_t)a->n_top);
    }
    if (e->in.kind == SAMPLE_BEST && want->is_finite)
        assert_memory_equal(e->best, e->want_best, sizeof *e->best * (size_t)e->in.n_best);
}

/* Samples all examples together, and then the first ones one by one. */
static void check_examples(struct example *all, int n, const float *logits, int n_rows, int n_vocab)
{
    struct floats card = launches_floats(logits, (size_t)n_rows * (size_t)n_vocab);
    struct sample_input inputs[MAX_INPUTS], want[MAX_INPUTS];
    for (int i = 0; i < n; i++) {
        run_on_cpu(&all[i], logits, n_rows, n_vocab, &want[i], &all[i]);
        inputs[i] = all[i].in;
    }
    cuda_sample(&cuda->backend, card, n_vocab, inputs, n);
    for (int i = 0; i < n; i++) {
        all[i].in.n_out = inputs[i].n_out;
        all[i].in.is_finite = inputs[i].is_finite;
        check_result(&all[i], &want[i]);
    }
    for (int i = 0; i < n && i < (n_vocab > 2000 ? 1 : 2); i++) {
        memset(all[i].out, 0xff, sizeof all[i].out);
        cuda_sample(&cuda->backend, card, n_vocab, &all[i].in, 1);
        check_result(&all[i], &want[i]);
    }
    assert_memory_equal(card.buffer->data, logits, sizeof *logits * (size_t)n_rows * (size_t)n_vocab);
    launches_floats_free(card);
}

static void reserve(int n_vocab)
{
    static struct kernels kernels;
    kernels_init(&kernels, cpu_detect());
    sampler_free(sampler);
    assert_int_equal(sampler_new(&sampler, &kernels, n_vocab, NULL), TUTTI_OK);
    assert_int_equal(cuda_reserve_sampling(&cuda->backend, n_vocab, NULL), TUTTI_OK);
}

static struct example plain_example(int row, int n_usable)
{
    return (struct example){
        .sampling = defaults,
        .in = { .kind = SAMPLE_DRAW, .row = row, .n_usable = n_usable, .seed = 7, .logprobs = true }
    };
}

/* Points an example to its own arrays. */
static void settle(struct example *e)
{
    e->in.sampling = e->in.kind == SAMPLE_SCORE ? NULL : &e->sampling;
    e->in.ids = e->ids;
    e->in.out = e->out;
    e->in.best = e->best;
    e->in.allowed = e->allowed;
    e->sampling.logit_bias = e->biases;
    if (e->allowed)
        e->in.stops[1] = (struct sample_stops){ e->stops, 3 };
}

static void random_mask(struct example *e, int n)
{
    e->allowed = calloc((size_t)n / 32 + 1, sizeof *e->allowed);
    int kind = below(3);
    for (int i = 0; i < n; i++)
        if (kind == 0 ? below(2) : kind == 1 ? below(50) == 0 : i / 32 % 3 == 0)
            e->allowed[i / 32] |= UINT32_C(1) << i % 32;
    int id = below(n);
    e->allowed[id / 32] |= UINT32_C(1) << id % 32; /* at least this one */
    for (int i = 0; i < 3; i++)
        e->stops[i] = below(n + 2);
    for (int i = 0; i < 3; i++)
        e->stops[i] = e->stops[i] == id ? n + 1 : e->stops[i];
    e->in.stop_is_allowed = below(2);
}

static void random_example(struct example *e, int row, int n, int n_vocab)
{
    static const float temperatures[] = { 0, 1, 0.7f, 1.5f, 0.01f, 100 },
                       top_ps[] = { 1, 0.95f, 0.5f, 0.05f, 0.999f, 1 };
    static const int top_ks[] = { 0, 1, 5, 50, 0, 1500 };
    static const float typical_ps[] = { 0.5f, 0.95f, 0.01f };
    *e = plain_example(row, n);
    e->in.seed = (uint64_t)below(1000);
    e->in.choice = below(3);
    e->in.logprobs = below(3) > 0;
    e->in.n_top = below(2) ? below(LIMIT_TOP_LOGPROBS + 1) : 0;
    e->in.n_ids = below(MAX_IDS);
    e->in.n_prompt = below(e->in.n_ids + 1);
    for (int i = 0; i < MAX_IDS + MAX_DRAFTS; i++)
        e->ids[i] = below(n < 40 ? n : 40);
    e->sampling.temperature = temperatures[below(6)];
    e->sampling.top_p = top_ps[below(6)];
    e->sampling.top_k = top_ks[below(6)];
    e->sampling.min_p = below(4) ? 0 : 0.1f;
    e->sampling.typical_p = below(4) ? 0 : typical_ps[below(3)];
    if (below(3) == 0) {
        e->sampling.repetition_penalty = below(3) ? 1.3f : 1;
        e->sampling.presence_penalty = below(2) ? 0.7f : 0;
        e->sampling.frequency_penalty = below(2) ? -0.3f : 0;
        e->sampling.n_logit_bias = (size_t)below(6);
        for (int i = 0; i < 6; i++)
            e->biases[i] = (struct tutti_logit_bias){ .token = below(n < 5 ? n : 5),
                                                      .bias = (float)(uniform() * 4 - 2) };
    }
    if (below(4) == 0)
        random_mask(e, n);
    int kind = below(10);
    if (kind == 0) {
        e->in.kind = SAMPLE_SCORE;
        e->in.token = below(n_vocab);
        e->in.logprobs = false;
    } else if (kind == 1 && !e->allowed) {
        e->in.kind = SAMPLE_BEST;
        e->in.n_best = n < MAX_BEST ? n : MAX_BEST;
    }
}

static void all_settings_give_the_tokens_of_the_cpu(void **state)
{
    static const int sizes[] = { 1, 31, 1000, 4096, 4097, 5003, 65027 };
    (void)state;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int n = sizes[k], n_vocab = n + (int)(k % 3), n_rounds = n > 60000 ? 2 : N_ROW_KINDS;
        float *logits = malloc(sizeof *logits * (size_t)MAX_INPUTS * (size_t)n_vocab);
        struct example *all = calloc(MAX_INPUTS, sizeof *all);
        reserve(n_vocab);
        for (int round = 0; round < n_rounds; round++) {
            int n_inputs = 1 + below(n > 60000 ? 2 : n > 1000 ? 4 : 12);
            for (int i = 0; i < n_inputs; i++) {
                fill_row(logits + (size_t)i * (size_t)n_vocab, n_vocab,
                         n > 60000 ? round : round % N_ROW_KINDS);
                random_example(&all[i], i, n, n_vocab);
                settle(&all[i]);
            }
            check_examples(all, n_inputs, logits, n_inputs, n_vocab);
            for (int i = 0; i < n_inputs; i++)
                free(all[i].allowed);
        }
        free(all);
        free(logits);
    }
}

static void draft_tokens_are_accepted_as_by_the_cpu(void **state)
{
    enum { N = 700, N_ROWS = 8 };
    (void)state;
    float *logits = malloc(sizeof *logits * N_ROWS * N);
    struct example all[2];
    int n_accepted = 0;
    reserve(N);
    for (int round = 0; round < 10; round++) {
        for (int r = 0; r < N_ROWS; r++)
            fill_row(logits + r * N, N, ROW_PEAK);
        for (int i = 0; i < 2; i++) {
            all[i] = plain_example(4 * i, N);
            all[i].in.seed = (uint64_t)round;
            all[i].in.n_ids = 5;
            all[i].in.n_prompt = 3;
            all[i].in.n_drafts = MAX_DRAFTS;
            all[i].in.n_top = 2;
            all[i].sampling.temperature = round % 2 ? 1 : 0;
            all[i].sampling.presence_penalty = round % 3 ? 0 : 1;
            settle(&all[i]);
            for (int k = 0; k < MAX_DRAFTS; k++) { /* mostly what is drawn */
                struct sample_input one = all[i].in;
                struct sample out;
                one.n_ids += k;
                assert_true(sampler_draw(sampler, logits + (4 * i + k) * N, &one, &out));
                all[i].ids[5 + k] = below(4) ? out.token : 3;
            }
        }
        if (round == 7)
            logits[2 * N + 9] = NAN;
        check_examples(all, 2, logits, N_ROWS, N);
        n_accepted += all[0].in.n_out - 1;
    }
    assert_true(n_accepted > 5);
    free(logits);
}

static void rows_that_are_not_finite_are_reported(void **state)
{
    static const float odd[] = { NAN, INFINITY, -INFINITY };
    (void)state;
    enum { N = 3000 };
    float *logits = malloc(sizeof *logits * 3 * N);
    struct example all[3];
    reserve(N);
    for (int kind = SAMPLE_DRAW; kind <= SAMPLE_BEST; kind++) {
        for (int i = 0; i < 3; i++) {
            fill_row(logits + i * N, N, ROW_BELL);
            logits[i * N + 1234 * (i + 1) % N] = odd[i];
            logits[i * N + 2990] = NAN;
            all[i] = plain_example(i, N);
            all[i].in.kind = kind;
            all[i].in.n_best = 2;
            settle(&all[i]);
        }
        check_examples(all, 3, logits, 3, N);
        for (int i = 0; i < 3; i++) {
            assert_false(all[i].in.is_finite);
            assert_int_equal(all[i].out[0].token, 1234 * (i + 1) % N);
        }
    }
    /* Not among the usable ids: it does not count. */
    for (int i = 0; i < 3; i++)
        all[i].in.kind = SAMPLE_DRAW, all[i].in.n_usable = 1234 * (i + 1) % N;
    check_examples(all, 3, logits, 3, N);
    assert_true(all[0].in.is_finite);
    free(logits);
}

static void penalties_that_make_logits_infinite_are_those_of_the_cpu(void **state)
{
    (void)state;
    enum { N = 100 };
    float logits[N];
    struct example e = plain_example(0, N);
    reserve(N);
    for (int i = 0; i < N; i++)
        logits[i] = i % 7 == 0 ? 3e38f : -3e38f;
    e.sampling.repetition_penalty = 0.5f;
    e.in.n_ids = e.in.n_prompt = 10;
    for (int i = 0; i < 10; i++)
        e.ids[i] = i;
    for (int t = 0; t < 2; t++) {
        e.sampling.temperature = (float)t;
        settle(&e);
        check_examples(&e, 1, logits, 1, N);
    }
}

static void one_allowed_token_is_drawn(void **state)
{
    (void)state;
    enum { N = 4099 };
    float *logits = malloc(sizeof *logits * N);
    uint32_t mask[N / 32 + 1] = { 0 };
    struct example e = plain_example(0, N);
    reserve(N);
    fill_row(logits, N, ROW_HUGE);
    e.allowed = mask;
    mask[N / 32] = UINT32_C(1) << (N - 1) % 32;
    e.stops[0] = e.stops[1] = e.stops[2] = 17;
    for (int i = 0; i < 6; i++) {
        e.sampling.temperature = i % 2 ? 0 : 2;
        e.sampling.top_k = i == 2 ? 3 : 0;
        e.sampling.top_p = i == 4 ? 0.9f : 1;
        settle(&e);
        check_examples(&e, 1, logits, 1, N);
        assert_int_equal(e.out[0].token, N - 1);
    }
    free(logits);
}

static void common_settings_stay_on_the_card(void **state)
{
    (void)state;
    enum { N = 30000 };
    float *logits = malloc(sizeof *logits * N);
    struct example e = plain_example(0, N);
    reserve(N);
    cuda_copied_out = 0;
    for (int i = 0; i < 8; i++) {
        fill_row(logits, N, i % 2 ? ROW_PEAK : ROW_BELL);
        e.sampling.temperature = i == 0 ? 0 : 0.8f;
        e.sampling.top_k = i & 1 ? 40 : 0;
        e.sampling.top_p = i & 2 ? 0.95f : 1;
        e.in.n_top = i & 4 ? 20 : 0;
        settle(&e);
        e.in.kind = i == 7 ? SAMPLE_BEST : SAMPLE_DRAW;
        e.in.n_best = MAX_BEST;
        e.sampling.presence_penalty = i == 7 ? 0.5f : 0;
        e.in.n_ids = 4;
        check_examples(&e, 1, logits, 1, N);
    }
    assert_true(cuda_copied_out < 18 * 4000); /* no row of logits */
    free(logits);
}

/* Draws of more candidates than a block sorts, among others. */
static void wide_draws_are_those_of_the_cpu(void **state)
{
    enum { N = 9001, N_EXAMPLES = 6 };
    static const struct tutti_sampling WAYS[] = {
        { .temperature = 1, .top_p = 1, .typical_p = 0.9f },
        { .temperature = 1.3f, .top_p = 1, .typical_p = 0.2f, .min_p = 0.001f },
        { .temperature = 1, .top_p = 0.97f, .typical_p = 0.9f, .top_k = 20 },
        { .temperature = 100, .top_p = 0.9999f },
        { .temperature = 100, .top_p = 0.5f, .min_p = 0.9f },
        { .temperature = 30, .top_p = 0.9f, .top_k = 6000 },
        { .temperature = 1, .top_p = 1, .top_k = 5000 },
        { .temperature = 100, .top_p = 0.999f, .top_k = 8000, .typical_p = 0.99f },
        { .temperature = 1, .top_p = 1, .top_k = 2 * N, .typical_p = 0.5f },
        { .temperature = 1e-30f, .top_p = 1, .typical_p = 0.5f },
        { .temperature = 1, .top_p = 0.9f, .top_k = 3 },
        { .temperature = 1, .top_p = 1 },
    };
    enum { N_WAYS = sizeof WAYS / sizeof *WAYS };
    (void)state;
    float *logits = malloc(sizeof *logits * N_EXAMPLES * N);
    struct example *all = calloc(N_EXAMPLES, sizeof *all);
    reserve(N);
    cuda_copied_out = 0;
    for (int kind = 0; kind < N_ROW_KINDS; kind++) {
        for (int begin = 0; begin < N_WAYS; begin += N_EXAMPLES) {
            for (int i = 0; i < N_EXAMPLES; i++) {
                fill_row(logits + i * N, N, kind);
                all[i] = plain_example(i, N - i);
                all[i].in.seed = (uint64_t)(kind * N_WAYS + begin + i);
                all[i].in.n_top = i == 2 ? LIMIT_TOP_LOGPROBS : 0;
                all[i].sampling = WAYS[begin + i];
                all[i].sampling.repetition_penalty = 1;
                settle(&all[i]);
            }
            check_examples(all, N_EXAMPLES, logits, N_EXAMPLES, N);
        }
    }
    size_t n_calls = N_ROW_KINDS * N_WAYS / N_EXAMPLES * 2;
    assert_true(cuda_copied_out < n_calls * N * sizeof(float)); /* no row of logits */
    free(all);
    free(logits);
}

/* Of each way to draw from a wide row, by many seeds: a wrong set of candidates shows. */
static void wide_draws_by_many_seeds_are_those_of_the_cpu(void **state)
{
    enum { N = 4500, N_SEEDS = 40 };
    static const struct tutti_sampling WAYS[] = {
        { .temperature = 1, .top_p = 1, .typical_p = 0.05f },
        { .temperature = 100, .top_p = 0.001f },
        { .temperature = 100, .top_p = 0.001f, .top_k = 4400 },
        { .temperature = 100, .top_p = 1, .top_k = 1100, .typical_p = 0.002f },
    };
    (void)state;
    float *logits = malloc(sizeof *logits * N);
    struct example *all = calloc(MAX_INPUTS, sizeof *all);
    reserve(N);
    for (int kind = ROW_EQUAL; kind <= ROW_STEPS; kind++) {
        fill_row(logits, N, kind);
        for (size_t way = 0; way < sizeof WAYS / sizeof *WAYS; way++) {
            for (int begin = 0; begin < N_SEEDS; begin += MAX_INPUTS) {
                for (int i = 0; i < MAX_INPUTS; i++) {
                    all[i] = plain_example(0, N);
                    all[i].in.seed = (uint64_t)(begin + i);
                    all[i].in.logprobs = false;
                    all[i].sampling = WAYS[way];
                    all[i].sampling.repetition_penalty = 1;
                    settle(&all[i]);
                }
                check_examples(all, MAX_INPUTS, logits, 1, N);
            }
        }
    }
    free(all);
    free(logits);
}

/* Thousands of light tokens, half of which min-p may drop, are nearer to the entropy than a heavy one, which is kept only if they
 * have less than typical-p of the weight: a sum that is wrong by a thousandth shows. */
static void sums_decide_whether_a_heavy_token_is_kept(void **state)
{
    enum { N = 9001, HEAVY = 17 };
    static const float min_ps[] = { 0, 3.354e-4f };
    (void)state;
    float *logits = malloc(sizeof *logits * N);
    struct example *all = calloc(MAX_INPUTS, sizeof *all);
    reserve(N);
    for (int i = 0; i < N; i++)
        logits[i] = i == HEAVY ? 0 : -8.1f + 0.2f * (float)uniform();
    for (int k = 0; k < 4; k++) {
        bool is_kept = k % 2;
        double light = 0;
        int n_heavy = 0;
        for (int i = 0; i < N; i++) {
            double w = exp((double)logits[i]);
            light += i == HEAVY || w < (double)min_ps[k / 2] ? 0 : w;
        }
        for (int i = 0; i < MAX_INPUTS; i++) {
            all[i] = plain_example(0, N);
            all[i].in.seed = (uint64_t)i;
            all[i].sampling.min_p = min_ps[k / 2];
            all[i].sampling.typical_p = (float)(light / (light + 1) * (is_kept ? 1.0005 : 0.9995));
            settle(&all[i]);
        }
        check_examples(all, MAX_INPUTS, logits, 1, N);
        for (int i = 0; i < MAX_INPUTS; i++)
            n_heavy += all[i].out[0].token == HEAVY;
        assert_int_equal(n_heavy > 0, is_kept);
    }
    free(all);
    free(logits);
}

static void weights_and_logarithms_are_near_libm(void **state)
{
    (void)state;
    for (int i = 0; i < 200000; i++) {
        float y = -(float)(uniform() * (i % 2 ? 105 : 3));
        double want = exp((double)y), got = race_exp(y), unit = fmax(want * 0x1p-23, 0x1p-149);
        assert_true(fabs(got - want) <= 0.5001 * unit && (double)(float)got == got);
        double v = ((double)(rng_bits(1, 2, (uint64_t)i) >> 12) + 0.5) * (i % 3 ? 0x1p-52 : 0x1p-80);
        v = floor(v * 0x1p53) * 0x1p-53 + 0x1p-53;
        if (v < 1)
            assert_true(fabs(race_log(1 - v) - log1p(-v)) <= 3e-16 * fabs(log1p(-v)));
    }
    assert_true(race_exp(0) == 1 && race_exp(-INFINITY) == 0 && isnan(race_exp(NAN)));
}

static int open_launches(void **state)
{
    (void)state;
    cuda = launches_new(64);
    return 0;
}

static int close_launches(void **state)
{
    cuda_sampling_release(cuda);
    return launches_clear(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_and_logarithms_are_near_libm),
        cmocka_unit_test(all_settings_give_the_tokens_of_the_cpu),
        cmocka_unit_test(draft_tokens_are_accepted_as_by_the_cpu),
        cmocka_unit_test(rows_that_are_not_finite_are_reported),
        cmocka_unit_test(penalties_that_make_logits_infinite_are_those_of_the_cpu),
        cmocka_unit_test(one_allowed_token_is_drawn),
        cmocka_unit_test(common_settings_stay_on_the_card),
        cmocka_unit_test(wide_draws_are_those_of_the_cpu),
        cmocka_unit_test(wide_draws_by_many_seeds_are_those_of_the_cpu),
        cmocka_unit_test(sums_decide_whether_a_heavy_token_is_kept),
    };
    return cmocka_run_group_tests(tests, open_launches, close_launches);
}
