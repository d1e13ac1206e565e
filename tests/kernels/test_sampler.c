/* The sampler: against the distributions of transformers, and against a plain reference of its own. */
#include "backend/sampler.h"
#include "base/rng.h"
#include "device.h"
#include "kernels/kernels.h"
#include "kernels/race.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_DRAWS = 20000, MAX_VOCAB = 1000 };

static const struct tutti_sampling defaults = { .temperature = 1, .top_p = 1, .repetition_penalty = 1 };

static struct sampler *make_sampler(int n_vocab)
{
    static struct kernels kernels;
    struct sampler *sampler = NULL;
    kernels_init(&kernels, cpu_detect());
    assert_int_equal(sampler_new(&sampler, &kernels, n_vocab, NULL), TUTTI_OK);
    return sampler;
}

static void fill_logits(float *logits, int n, uint64_t seed, float scale)
{
    for (int i = 0; i < n; i++) /* a sum of uniforms: near enough to a bell */
        logits[i] = scale * (float)(rng_uniform(seed, 1, (uint64_t)i) + rng_uniform(seed, 2, (uint64_t)i) +
                                    rng_uniform(seed, 3, (uint64_t)i) - 1.5);
}

/* Draws N_DRAWS times with different seeds, and compares the counts with what is expected by chi-squared. Cells of
 * fewer than five expected draws are put together. The bound is seven standard deviations: seeds are fixed, so it
 * holds always or never. */
static void check_distribution(struct sampler *sampler, const float *logits, struct sample_input in,
                               const double *probability, const char *name)
{
    int *counts = calloc((size_t)in.n_usable, sizeof *counts);
    assert_non_null(counts);
    for (uint64_t i = 0; i < N_DRAWS; i++) {
        struct sample sample;
        in.seed = i;
        assert_true(sampler_draw(sampler, logits, &in, &sample));
        assert_in_range(sample.token, 0, in.n_usable - 1);
        counts[sample.token]++;
    }
    double chi = 0, rest_expected = 0;
    int n_cells = 0, rest = 0;
    for (int i = 0; i < in.n_usable; i++) {
        double expected = probability[i] * N_DRAWS;
        if (expected < 1e-9 && counts[i] > 0)
            fail_msg("%s: token %d was drawn %d times, expected never", name, i, counts[i]);
        if (expected < 5) {
            rest_expected += expected;
            rest += counts[i];
        } else {
            chi += (counts[i] - expected) * (counts[i] - expected) / expected;
            n_cells++;
        }
    }
    if (rest_expected >= 5) {
        chi += (rest - rest_expected) * (rest - rest_expected) / rest_expected;
        n_cells++;
    }
    free(counts);
    int freedom = n_cells > 1 ? n_cells - 1 : 1;
    double bound = freedom + 7 * sqrt(2.0 * freedom);
    if (chi > bound)
        fail_msg("%s: chi-squared %.1f with %d cells, expected at most %.1f", name, chi, n_cells, bound);
}

static double setting(const json_t *settings, const char *key, double fallback)
{
    const json_t *value = json_object_get(settings, key);
    return value ? json_number_value(value) : fallback;
}

static void distributions_are_those_of_transformers(void **state)
{
    (void)state;
    json_error_t error;
    json_t *cases = json_load_file(TEST_FIXTURES "/sampling/cases.json", 0, &error), *one;
    assert_non_null(cases);
    size_t index;
    json_array_foreach(cases, index, one)
    {
        float logits[64];
        double probability[64];
        int32_t ids[64];
        const json_t *settings = json_object_get(one, "settings");
        int n = (int)json_array_size(json_object_get(one, "logits"));
        int n_ids = (int)json_array_size(json_object_get(one, "ids"));
        assert_in_range(n, 1, 64);
        assert_in_range(n_ids, 1, 64);
        for (int i = 0; i < n; i++) {
            logits[i] = (float)json_number_value(json_array_get(json_object_get(one, "logits"), (size_t)i));
            probability[i] = json_number_value(
                json_array_get(json_object_get(one, "probabilities"), (size_t)i));
        }
        for (int i = 0; i < n_ids; i++)
            ids[i] = (int32_t)json_integer_value(json_array_get(json_object_get(one, "ids"), (size_t)i));
        struct tutti_sampling sampling = {
            .temperature = (float)setting(settings, "temperature", 1),
            .top_k = (int)setting(settings, "top_k", 0),
            .top_p = (float)setting(settings, "top_p", 1),
            .min_p = (float)setting(settings, "min_p", 0),
            .typical_p = (float)setting(settings, "typical_p", 0),
            .repetition_penalty = (float)setting(settings, "repetition_penalty", 1),
        };
        char name[32];
        snprintf(name, sizeof name, "case %zu", index);
        struct sampler *sampler = make_sampler(n);
        struct sample_input in = {
            .n_usable = n, .sampling = &sampling, .ids = ids, .n_prompt = n_ids / 2, .n_ids = n_ids
        };
        check_distribution(sampler, logits, in, probability, name);
        sampler_free(sampler);
    }
    assert_true(index >= 20);
    json_decref(cases);
}

/* ---- a plain reference: full sort, double ---- */

struct entry {
    double x;
    int id;
};

static int by_size(const void *a, const void *b)
{
    const struct entry *p = a, *q = b;
    return p->x != q->x ? (p->x < q->x ? 1 : -1) : p->id - q->id;
}

static void reference(const float *logits, const struct sample_input *in, double *probability)
{
    const struct tutti_sampling *p = in->sampling;
    int n = in->n_usable;
    struct entry *e = calloc((size_t)n, sizeof *e);
    assert_non_null(e);
    for (int i = 0; i < n; i++) {
        double x = (double)logits[i];
        for (size_t k = 0; k < p->n_logit_bias; k++)
            if (p->logit_bias[k].token == i)
                x += (double)p->logit_bias[k].bias;
        int n_seen = 0, n_answer = 0;
        for (int k = 0; k < in->n_ids; k++) {
            n_seen += in->ids[k] == i;
            n_answer += k >= in->n_prompt && in->ids[k] == i;
        }
        if (n_seen > 0)
            x = x < 0 ? x * (double)p->repetition_penalty : x / (double)p->repetition_penalty;
        if (n_answer > 0)
            x -= (double)p->presence_penalty + (double)p->frequency_penalty * n_answer;
        e[i] = (struct entry){ x / (double)p->temperature, i };
    }
    qsort(e, (size_t)n, sizeof *e, by_size);
    int n_kept = p->top_k > 0 && p->top_k < n ? p->top_k : n;
    double max = e[0].x, total = 0, sum = 0;
    for (int i = 0; i < n_kept; i++)
        total += exp(e[i].x - max);
    for (int i = 0; i < n_kept && p->top_p < 1; i++) {
        sum += exp(e[i].x - max);
        if (sum >= (double)p->top_p * total)
            n_kept = i + 1;
    }
    memset(probability, 0, (size_t)n * sizeof *probability);
    total = 0;
    for (int i = 0; i < n_kept; i++)
        total += i > 0 && exp(e[i].x - max) < (double)p->min_p ? 0 : exp(e[i].x - max);
    for (int i = 0; i < n_kept; i++)
        if (i == 0 || exp(e[i].x - max) >= (double)p->min_p)
            probability[e[i].id] = exp(e[i].x - max) / total;
    free(e);
}

static void every_processor_agrees_with_the_reference(void **state)
{
    (void)state;
    static const struct tutti_logit_bias bias[] = { { 3, -100 }, { 5, 4 }, { 5, -1 }, { 39, 2 } };
    static const int32_t ids[] = { 1, 2, 2, 9, 9, 9, 4, 2, 4, 4 };
    const struct tutti_sampling settings[] = {
        { .temperature = 1, .top_p = 1, .repetition_penalty = 1 },
        { .temperature = 0.3f, .top_p = 1, .repetition_penalty = 1 },
        { .temperature = 1, .top_p = 1, .repetition_penalty = 1, .logit_bias = bias, .n_logit_bias = 4 },
        { .temperature = 1, .top_p = 1, .repetition_penalty = 1.5f },
        { .temperature = 1, .top_p = 1, .repetition_penalty = 1, .presence_penalty = 1.5f },
        { .temperature = 1, .top_p = 1, .repetition_penalty = 1, .frequency_penalty = -0.7f },
        { .temperature = 1.2f, .top_k = 6, .top_p = 1, .repetition_penalty = 1 },
        { .temperature = 1.2f, .top_p = 0.6f, .repetition_penalty = 1 },
        { .temperature = 1.2f, .top_p = 1, .min_p = 0.25f, .repetition_penalty = 1 },
        { .temperature = 0.8f,
          .top_k = 12,
          .top_p = 0.9f,
          .min_p = 0.05f,
          .repetition_penalty = 1.1f,
          .presence_penalty = 0.4f,
          .frequency_penalty = 0.2f,
          .logit_bias = bias,
          .n_logit_bias = 4 },
    };
    float logits[44];
    double probability[44];
    struct sampler *sampler = make_sampler(44);
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        char name[32];
        snprintf(name, sizeof name, "settings %zu", i);
        fill_logits(logits, 40, i, 3);
        for (int k = 40; k < 44; k++)
            logits[k] = 50; /* padding rows */
        struct sample_input in = {
            .n_usable = 40, .sampling = &settings[i], .ids = ids, .n_prompt = 5, .n_ids = 10
        };
        reference(logits, &in, probability);
        check_distribution(sampler, logits, in, probability, name);
    }
    sampler_free(sampler);
}

/* Large vocabularies take the window of the nucleus through several widths, and a large top-k is found by counting. */
static void the_nucleus_of_a_large_vocabulary_is_exact(void **state)
{
    (void)state;
    static float logits[MAX_VOCAB];
    static double probability[MAX_VOCAB];
    struct sampler *sampler = make_sampler(MAX_VOCAB);
    int n_checked = 0;
    static const float scales[] = { 0.01f, 2, 10, 60 }, masses[] = { 0.01f, 0.5f, 0.95f, 0.999f };
    for (size_t i = 0; i < 4; i++) {
        for (size_t k = 0; k < 4; k++) {
            struct tutti_sampling p = defaults;
            p.top_p = masses[k];
            p.top_k = k % 2 == 0 ? 0 : 700;
            fill_logits(logits, MAX_VOCAB, i, scales[i]);
            struct sample_input in = { .n_usable = MAX_VOCAB, .sampling = &p };
            reference(logits, &in, probability);
            int n_kept = 0;
            for (int t = 0; t < MAX_VOCAB; t++)
                n_kept += probability[t] > 0;
            for (uint64_t seed = 0; seed < 300; seed++) {
                struct sample sample;
                in.seed = seed;
                assert_true(sampler_draw(sampler, logits, &in, &sample));
                assert_true(probability[sample.token] > 0);
            }
            if (n_kept > 1 && n_kept <= 60 && n_checked++ < 3)
                check_distribution(sampler, logits, in, probability, "nucleus");
        }
    }
    assert_true(n_checked > 0);
    sampler_free(sampler);
}

/* Calls of kernels that visit a tile of the row, or search it. */
static int n_tiles, n_searches;
static struct kernels counted;

static void count_exps(const float *x, int n, float max, float scale, float *out)
{
    n_tiles++;
    counted.exps(x, n, max, scale, out);
}

static int count_find_above(const float *x, int begin, int n, float bound)
{
    n_searches++;
    return counted.find_above(x, begin, n, bound);
}

static int count_find_arrival(const float *x, int begin, int n, const struct arrival_bound *r)
{
    n_searches++;
    return counted.find_arrival(x, begin, n, r);
}

/* Neither settings nor logits make a draw much longer: all rows of a step wait for the longest one. */
static void every_draw_takes_a_few_passes(void **state)
{
    (void)state;
    enum { N = 100000, TILES = (N + RACE_TILE - 1) / RACE_TILE };
    static const struct tutti_sampling settings[] = {
        { .temperature = 1, .top_p = 1 },
        { .temperature = 1, .top_p = 0.95f },
        { .temperature = 1, .top_p = 1, .typical_p = 0.9f },
        { .temperature = 1, .top_p = 1, .top_k = N },
        { .temperature = 1, .top_p = 1, .top_k = N - 1 },
        { .temperature = 1, .top_p = 1, .top_k = N / 2 },
        { .temperature = 2, .top_p = 0.999f, .top_k = N - 1, .typical_p = 0.999f },
        { .temperature = 2, .top_p = 0.5f, .top_k = N / 2, .min_p = 1e-9f, .typical_p = 0.5f },
        { .temperature = 1e-3f, .top_p = 0.999f, .typical_p = 0.999f },
    };
    static float logits[N];
    struct kernels kernels;
    struct sampler *sampler = NULL;
    kernels_init(&counted, cpu_detect());
    kernels = counted;
    kernels.exps = count_exps;
    kernels.find_above = count_find_above;
    kernels.find_arrival = count_find_arrival;
    assert_int_equal(sampler_new(&sampler, &kernels, N, NULL), TUTTI_OK);
    for (int shape = 0; shape < 4; shape++) {
        fill_logits(logits, N, 1, shape == 0 ? 0 : 10);
        for (int i = 0; i < N; i++)
            logits[i] = shape == 2 ? (float)i * 1e-4f : shape == 3 && i == 777 ? 40 : logits[i];
        for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
            struct tutti_sampling p = settings[i];
            p.repetition_penalty = 1;
            struct sample_input in = { .n_usable = N, .sampling = &p, .seed = i };
            struct sample sample;
            n_tiles = n_searches = 0;
            assert_true(sampler_draw(sampler, logits, &in, &sample));
            if (n_tiles > 5 * TILES || n_searches > N / 10)
                fail_msg("logits %d, settings %zu: %d tiles, %d searches", shape, i, n_tiles, n_searches);
        }
    }
    sampler_free(sampler);
}

static void greedy_takes_the_lowest_of_equal_ids(void **state)
{
    (void)state;
    float logits[] = { 1, 7, 3, 7, 7, 9, 9 };
    struct tutti_sampling p = defaults;
    p.temperature = 0;
    struct sampler *sampler = make_sampler(7);
    struct sample_input in = { .n_usable = 5, .sampling = &p };
    struct sample sample;
    assert_true(sampler_draw(sampler, logits, &in, &sample));
    assert_int_equal(sample.token, 1); /* 5 and 6 are padding */
    p.temperature = 1;
    p.top_k = 1;
    assert_true(sampler_draw(sampler, logits, &in, &sample));
    assert_int_equal(sample.token, 1);
    p.temperature = 1e-30f;
    p.top_k = 0;
    p.top_p = 0.3f;
    assert_true(sampler_draw(sampler, logits, &in, &sample));
    assert_int_equal(sample.token, 1);
    sampler_free(sampler);
}

static void the_same_seed_draws_the_same(void **state)
{
    (void)state;
    float logits[100];
    int32_t ids[50] = { 0 };
    fill_logits(logits, 100, 3, 1);
    struct sampler *a = make_sampler(100), *b = make_sampler(100);
    int n_differ = 0;
    for (int i = 0; i < 50; i++) {
        struct sample_input in = {
            .n_usable = 100, .sampling = &defaults, .ids = ids, .n_ids = i, .seed = 5, .choice = 2
        };
        struct sample first, second, other;
        assert_true(sampler_draw(a, logits, &in, &first));
        assert_true(sampler_draw(b, logits, &in, &second));
        assert_int_equal(first.token, second.token);
        in.choice = 3;
        assert_true(sampler_draw(b, logits, &in, &other));
        n_differ += other.token != first.token;
    }
    assert_true(n_differ > 40); /* another choice draws other numbers */
    sampler_free(a);
    sampler_free(b);
}

/* How often two rows of logits are drawn the same token from, by the same numbers; what is promised is in *promised. */
static double agreement(struct sampler *sampler, const float *logits, struct sample_input in,
                        const float *other, double *promised)
{
    enum { N = 20000 };
    struct sample_input second = in;
    double *p = calloc((size_t)in.n_usable, sizeof *p), *q = calloc((size_t)in.n_usable, sizeof *q);
    reference(logits, &in, p);
    reference(other, &second, q);
    double distance = 0;
    for (int i = 0; i < in.n_usable; i++)
        distance += fabs(p[i] - q[i]) / 2;
    *promised = (1 - distance) / (1 + distance);
    int n_same = 0;
    for (uint64_t i = 0; i < N; i++) {
        struct sample a, b;
        in.seed = second.seed = i;
        assert_true(sampler_draw(sampler, logits, &in, &a));
        assert_true(sampler_draw(sampler, other, &second, &b));
        n_same += a.token == b.token;
    }
    free(p);
    free(q);
    return (double)n_same / N;
}

static void rows_that_are_alike_are_mostly_drawn_alike(void **state)
{
    (void)state;
    enum { N_VOCAB = 300 };
    float logits[N_VOCAB], noise[N_VOCAB];
    struct sampler *sampler = make_sampler(N_VOCAB);
    for (int round = 0; round < 12; round++) {
        struct tutti_sampling sampling = defaults;
        sampling.temperature = round % 4 == 1 ? 0.6f : 1;
        sampling.top_k = round % 4 == 2 ? 40 : 0;
        sampling.top_p = round % 4 == 3 ? 0.9f : 1;
        fill_logits(logits, N_VOCAB, (uint64_t)round, 6);
        fill_logits(noise, N_VOCAB, (uint64_t)round + 100, 0.2f * (float)round);
        for (int i = 0; i < N_VOCAB; i++)
            noise[i] += logits[i];
        struct sample_input in = { .n_usable = N_VOCAB, .sampling = &sampling };
        double promised, found = agreement(sampler, logits, in, noise, &promised);
        double deviation = sqrt(promised * (1 - promised) / 20000);
        if (found < promised - 5 * deviation)
            fail_msg("round %d: %.3f of the draws agree, expected %.3f", round, found, promised);
    }
    sampler_free(sampler);
}

static void logprobs_are_of_the_untouched_distribution(void **state)
{
    (void)state;
    float logits[30];
    fill_logits(logits, 30, 11, 4);
    static const struct tutti_logit_bias bias[] = { { 3, 90 } };
    struct tutti_sampling p = { .temperature = 0.1f,
                                .top_k = 2,
                                .top_p = 0.5f,
                                .repetition_penalty = 2,
                                .logit_bias = bias,
                                .n_logit_bias = 1 };
    struct sampler *sampler = make_sampler(30);
    int32_t ids[] = { 1, 2, 3 };
    struct sample_input in = {
        .n_usable = 28, .sampling = &p, .ids = ids, .n_ids = 3, .logprobs = true, .n_top = 20
    };
    struct sample sample;
    assert_true(sampler_draw(sampler, logits, &in, &sample));
    assert_int_equal(sample.token, 3); /* the bias forces it */
    double total = 0;
    for (int i = 0; i < 28; i++)
        total += exp((double)logits[i]);
    assert_float_equal(sample.logprob, (double)logits[3] - log(total), 1e-5);
    assert_int_equal(sample.n_top, 20);
    for (int i = 0; i < 20; i++) {
        assert_float_equal(sample.top[i].logprob, (double)logits[sample.top[i].id] - log(total), 1e-5);
        assert_true(i == 0 || sample.top[i].logprob <= sample.top[i - 1].logprob);
        int n_larger = 0;
        for (int k = 0; k < 28; k++)
            n_larger += logits[k] > logits[sample.top[i].id];
        assert_int_equal(n_larger, i);
    }
    in.n_top = 0;
    assert_true(sampler_draw(sampler, logits, &in, &sample));
    assert_int_equal(sample.n_top, 0);
    sampler_free(sampler);
}

static void logits_that_are_no_numbers_are_found(void **state)
{
    (void)state;
    float bad[] = { (float)NAN, (float)INFINITY, -(float)INFINITY };
    struct sampler *sampler = make_sampler(20);
    for (size_t i = 0; i < 3; i++) {
        float logits[20] = { 0 };
        struct sample_input in = { .n_usable = 18, .sampling = &defaults };
        struct sample sample;
        logits[19] = bad[i]; /* padding is not looked at */
        assert_true(sampler_draw(sampler, logits, &in, &sample));
        logits[11] = bad[i];
        assert_false(sampler_draw(sampler, logits, &in, &sample));
        assert_int_equal(sample.token, 11);
    }
    sampler_free(sampler);
}

static void huge_logits_and_settings_stay_defined(void **state)
{
    (void)state;
    float logits[16];
    int32_t ids[] = { 0, 1, 2, 3 };
    struct sampler *sampler = make_sampler(16);
    for (uint64_t round = 0; round < 2000; round++) {
        for (int i = 0; i < 16; i++)
            logits[i] = (float)((rng_uniform(round, 9, (uint64_t)i) - 0.5) * (i % 3 ? 6e38 : 1e-38));
        struct tutti_sampling p = { .temperature = round % 3 ? 1e-38f : 100,
                                    .top_k = (int)(round % 5) * 4,
                                    .top_p = round % 2 ? 1 : 1e-6f,
                                    .min_p = round % 7 ? 0 : 1,
                                    .repetition_penalty = round % 4 ? 0.01f : 100 };
        struct sample_input in = { .n_usable = 16,
                                   .sampling = &p,
                                   .ids = ids,
                                   .n_ids = 4,
                                   .seed = round,
                                   .logprobs = true,
                                   .n_top = 5 };
        struct sample sample;
        assert_true(sampler_draw(sampler, logits, &in, &sample));
        assert_in_range(sample.token, 0, 15);
    }
    sampler_free(sampler);
}

/* A penalty makes huge logits infinite; then fewer tokens stay finite than a large top-k keeps. */
static void infinite_logits_are_fewer_than_top_k(void **state)
{
    (void)state;
    static float logits[MAX_VOCAB];
    int32_t ids[100];
    struct sampler *sampler = make_sampler(MAX_VOCAB);
    fill_logits(logits, MAX_VOCAB, 1, 1);
    for (int i = 0; i < 100; i++) {
        ids[i] = i;
        logits[i] = -3e38f;
    }
    for (int top_k = 300; top_k <= MAX_VOCAB; top_k += 50) {
        struct tutti_sampling p = defaults;
        p.top_k = top_k;
        p.repetition_penalty = 100;
        struct sample_input in = {
            .n_usable = MAX_VOCAB, .sampling = &p, .ids = ids, .n_ids = 100, .seed = (uint64_t)top_k
        };
        struct sample sample;
        assert_true(sampler_draw(sampler, logits, &in, &sample));
        assert_in_range(sample.token, 100, MAX_VOCAB - 1);
    }
    sampler_free(sampler);
}

/* ---- the operation of the backend ---- */

enum { OP_ROWS = 24, OP_VOCAB = 700, OP_DRAFTS = 3, OP_BEST = 6, OP_INPUTS = OP_ROWS / (OP_DRAFTS + 1) };

struct op_result {
    struct sample out[OP_DRAFTS + 1];
    struct sample_candidate best[OP_BEST];
    int n_out;
    bool is_finite;
};

static struct backend *op_backend(int n_threads)
{
    struct backend *be = device_open_small(n_threads, NULL);
    assert_int_equal(be->ops->reserve_sampling(be, OP_VOCAB, NULL), TUTTI_OK);
    return be;
}

/* Input i of rows 4i..4i + 3: draws with draft tokens, with bias, mask and penalties, scores and beams
 * in turn. ids: [OP_INPUTS][8], five tokens and three draft tokens. */
static struct sample_input op_input(int i, const struct tutti_sampling *settings, const int32_t *ids,
                                    const uint32_t *mask, struct op_result *result)
{
    static const enum sample_kind KINDS[] = { SAMPLE_DRAW, SAMPLE_DRAW, SAMPLE_SCORE, SAMPLE_BEST };
    struct sample_input in = { .kind = KINDS[i % 4],
                               .row = i * (OP_DRAFTS + 1),
                               .n_usable = OP_VOCAB - 3,
                               .sampling = settings,
                               .ids = ids + 8 * i,
                               .n_prompt = 2,
                               .n_ids = 5,
                               .seed = 3,
                               .choice = i,
                               .logprobs = true,
                               .n_top = 4,
                               .token = 9,
                               .n_best = OP_BEST,
                               .best = result->best,
                               .out = result->out };
    in.n_drafts = i % 4 == 0 ? OP_DRAFTS : 0;
    in.allowed = i % 4 == 1 ? mask : NULL;
    return in;
}

static void op_run(struct backend *be, const float *logits, struct sample_input *inputs, int n,
                   struct op_result *results)
{
    struct floats rows = device_new(be, logits, OP_ROWS * OP_VOCAB);
    be->ops->sample(be, rows, OP_VOCAB, inputs, n);
    for (int i = 0; i < n; i++) {
        results[i].n_out = inputs[i].n_out;
        results[i].is_finite = inputs[i].is_finite;
    }
    be->ops->dealloc(be, rows);
}

static void results_do_not_depend_on_other_rows_or_on_threads(void **state)
{
    (void)state;
    static float logits[OP_ROWS * OP_VOCAB];
    static uint32_t mask[OP_VOCAB / 32 + 1];
    static const struct tutti_logit_bias bias[] = { { 11, 3 }, { 600, -2 } };
    const struct tutti_sampling settings = { .temperature = 0.9f,
                                             .top_p = 0.95f,
                                             .repetition_penalty = 1.2f,
                                             .frequency_penalty = 0.1f,
                                             .logit_bias = (struct tutti_logit_bias *)(uintptr_t)bias,
                                             .n_logit_bias = 2 };
    int32_t ids[OP_INPUTS * 8];
    fill_logits(logits, OP_ROWS * OP_VOCAB, 5, 4);
    for (int i = 0; i < OP_VOCAB; i += 3)
        mask[i / 32] |= UINT32_C(1) << i % 32;
    for (int i = 0; i < OP_INPUTS * 8; i++)
        ids[i] = i * 13 % OP_VOCAB;
    struct op_result want[OP_INPUTS];
    memset(want, 0, sizeof want);
    struct backend *one = op_backend(1);
    for (int i = 0; i < OP_INPUTS; i++) { /* each by itself; draft tokens become those that are drawn */
        struct sample_input in = op_input(i, &settings, ids, mask, &want[i]);
        for (int k = 0; k < in.n_drafts; k++) {
            op_run(one, logits, &in, 1, &want[i]);
            assert_int_equal(in.n_out, k + 1); /* the next draft token is wrong */
            ids[8 * i + 5 + k] = want[i].out[k].token;
        }
        if (i == 4)
            ids[8 * i + 6] = (ids[8 * i + 6] + 1) % (OP_VOCAB - 3); /* the second is rejected */
        memset(&want[i], 0, sizeof want[i]);
        op_run(one, logits, &in, 1, &want[i]);
        assert_true(want[i].is_finite);
        assert_int_equal(want[i].n_out, i == 4 ? 2 : i == 0 ? OP_DRAFTS + 1 : 1);
    }
    one->ops->free(one);
    for (int n_threads = 1; n_threads <= 5; n_threads += 2) {
        struct backend *be = op_backend(n_threads);
        struct op_result got[OP_INPUTS];
        struct sample_input inputs[OP_INPUTS];
        memset(got, 0, sizeof got);
        for (int i = 0; i < OP_INPUTS; i++)
            inputs[i] = op_input(i, &settings, ids, mask, &got[i]);
        op_run(be, logits, inputs, OP_INPUTS, got);
        assert_memory_equal(got, want, sizeof got);
        be->ops->free(be);
    }
}

static void a_bad_row_stops_its_draft_tokens_alone(void **state)
{
    (void)state;
    static float logits[OP_ROWS * OP_VOCAB];
    int32_t ids[OP_INPUTS * 8] = { 0 };
    struct backend *be = op_backend(2);
    struct op_result results[OP_INPUTS];
    struct sample_input inputs[OP_INPUTS];
    const struct tutti_sampling greedy = { .top_p = 1, .repetition_penalty = 1 };
    for (int r = 0; r < OP_ROWS; r++)
        logits[r * OP_VOCAB + 7] = 1;
    logits[1 * OP_VOCAB + 21] = NAN;
    logits[12 * OP_VOCAB + 22] = INFINITY;
    for (int i = 0; i < OP_INPUTS; i++) {
        for (int k = 5; k < 8; k++)
            ids[8 * i + k] = 7;
        inputs[i] = op_input(i, &greedy, ids, NULL, &results[i]);
    }
    op_run(be, logits, inputs, OP_INPUTS, results);
    assert_int_equal(results[0].n_out, 2);
    assert_false(results[0].is_finite);
    assert_int_equal(results[0].out[0].token, 7);
    assert_int_equal(results[0].out[1].token, 21);
    assert_false(results[3].is_finite); /* of a beam */
    assert_int_equal(results[3].out[0].token, 22);
    assert_int_equal(results[4].n_out, OP_DRAFTS + 1);
    assert_true(results[1].is_finite && results[2].is_finite && results[4].is_finite);
    be->ops->free(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distributions_are_those_of_transformers),
        cmocka_unit_test(every_processor_agrees_with_the_reference),
        cmocka_unit_test(the_nucleus_of_a_large_vocabulary_is_exact),
        cmocka_unit_test(every_draw_takes_a_few_passes),
        cmocka_unit_test(greedy_takes_the_lowest_of_equal_ids),
        cmocka_unit_test(the_same_seed_draws_the_same),
        cmocka_unit_test(rows_that_are_alike_are_mostly_drawn_alike),
        cmocka_unit_test(logprobs_are_of_the_untouched_distribution),
        cmocka_unit_test(logits_that_are_no_numbers_are_found),
        cmocka_unit_test(huge_logits_and_settings_stay_defined),
        cmocka_unit_test(infinite_logits_are_fewer_than_top_k),
        cmocka_unit_test(results_do_not_depend_on_other_rows_or_on_threads),
        cmocka_unit_test(a_bad_row_stops_its_draft_tokens_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
