/* Embeddings and log-probabilities of prompts: transformers' figures; the same bits in pieces of every size, in company, with
 * prefixes that were cached, and after preemptions. */
#include "backend/sampler.h"
#include "base/rng.h"
#include "engine/run/engine.h"
#include "support/collect.h"
#include "support/mock_model.h"
#include "support/opened.h"
#include "support/questions.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_IDS = 256 };

static float float_of(int32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void submit(struct collect *c, tutti_engine *engine, const struct tutti_request *request)
{
    collect_init(c);
    collect_submit(c, engine, request);
}

/* ---- transformers ---- */

static size_t read_ids(const json_t *list, int32_t *ids)
{
    size_t n = json_array_size(list);
    assert_in_range(n, 1, MAX_IDS);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return n;
}

/* The largest error, relative to the vector's length. */
static double vector_error(const struct ids *bits, const json_t *want)
{
    double largest = 0, square = 0;
    assert_int_equal(bits->n, json_array_size(want));
    for (size_t i = 0; i < bits->n; i++) {
        double x = json_number_value(json_array_get(want, i)), e = fabs((double)float_of(bits->ids[i]) - x);
        largest = e > largest ? e : largest;
        square += x * x;
    }
    return largest / sqrt(square / (double)bits->n);
}

static double check_embedding(tutti_engine *engine, const json_t *prompt, const char *name,
                              enum tutti_embedding kind)
{
    struct collect c;
    int32_t ids[MAX_IDS];
    struct tutti_request request = { .ids = ids,
                                     .n_ids = read_ids(json_object_get(prompt, "ids"), ids),
                                     .embedding = kind };
    tutti_sampling_init(&request.sampling, NULL);
    submit(&c, engine, &request);
    collect_wait(&c);
    assert_int_equal(c.n_events, 1);
    assert_int_equal(c.choices[0].finish, TUTTI_FINISH_LENGTH);
    assert_int_equal(c.choices[0].n_generated, 0);
    assert_int_equal(c.n_prompt_tokens, request.n_ids);
    double error = vector_error(&c.embedding_bits, json_object_get(prompt, name));
    collect_clear(&c);
    return error;
}

static double check_logprobs(tutti_engine *engine, const json_t *prompt)
{
    struct collect c;
    int32_t ids[MAX_IDS];
    struct tutti_request request = { .ids = ids,
                                     .n_ids = read_ids(json_object_get(prompt, "ids"), ids),
                                     .no_answer = true,
                                     .prompt_logprobs = true,
                                     .top_logprobs = 3 };
    const json_t *logprobs = json_object_get(prompt, "logprobs"), *tops;
    double largest = 0;
    tutti_sampling_init(&request.sampling, NULL);
    submit(&c, engine, &request);
    collect_wait(&c);
    assert_int_equal(c.choices[0].finish, TUTTI_FINISH_LENGTH);
    assert_int_equal(c.prompt_ids.n, request.n_ids);
    assert_memory_equal(c.prompt_ids.ids, ids, request.n_ids * sizeof *ids);
    assert_int_equal(c.prompt_bits.n, 1 + (request.n_ids - 1) * 7);
    assert_int_equal(c.prompt_bits.ids[0], 0);
    for (size_t i = 1; i < request.n_ids; i++) {
        const int32_t *got = c.prompt_bits.ids + 1 + (i - 1) * 7;
        double e = fabs((double)float_of(got[0]) - json_number_value(json_array_get(logprobs, i)));
        largest = e > largest ? e : largest;
        tops = json_array_get(json_object_get(prompt, "top_logprobs"), i);
        for (size_t k = 0; k < 3; k++) {
            assert_int_equal(got[1 + 2 * k], json_integer_value(json_array_get(
                                                 json_array_get(json_object_get(prompt, "top_ids"), i), k)));
            e = fabs((double)float_of(got[2 + 2 * k]) - json_number_value(json_array_get(tops, k)));
            largest = e > largest ? e : largest;
        }
    }
    collect_clear(&c);
    return largest;
}

static void figures_are_those_of_transformers(void **state)
{
    (void)state;
    static const char *const MODELS[] = { "llama-tiny", "chatglm3-tiny", "qwen2-tiny",
                                          "glm4-tiny",  "gpt2-tiny",     "bloom-tiny" };
    for (size_t m = 0; m < sizeof MODELS / sizeof *MODELS; m++) {
        char path[512];
        snprintf(path, sizeof path, TEST_FIXTURES "/%s", MODELS[m]);
        tutti_model *model = opened_model(path, "f32", "f32", 2);
        struct tutti_engine_options options = { .kv_bytes = 4 << 20, .max_batch_tokens = 32 };
        tutti_engine *engine = opened_engine(model, &options, NULL);
        snprintf(path, sizeof path, TEST_FIXTURES "/prompts/%s.json", MODELS[m]);
        json_t *root = json_load_file(path, 0, NULL);
        const json_t *prompts = json_object_get(root, "prompts"), *prompt;
        double mean = 0, last = 0, logprob = 0;
        size_t i;
        assert_int_equal(json_array_size(prompts), 3);
        json_array_foreach(prompts, i, prompt)
        {
            logprob = fmax(logprob, check_logprobs(engine, prompt));
            mean = fmax(mean, check_embedding(engine, prompt, "mean", TUTTI_EMBEDDING_MEAN));
            last = fmax(last, check_embedding(engine, prompt, "last", TUTTI_EMBEDDING_LAST));
        }
        print_message("# %s: mean %.1e, last %.1e, log-probabilities %.1e\n", MODELS[m], mean, last, logprob);
        assert_true(mean <= 2e-5 && last <= 2e-5 && logprob <= 2e-4);
        json_decref(root);
        tutti_engine_close(engine);
        tutti_model_close(model);
    }
}

/* ---- whoever else is talking ---- */

enum { N_ASKED = 12, N_KINDS = 4 };

/* Kind 0: a chat; 1, 2: embeddings; 3: log-probabilities with an answer. */
static void make_request(struct question *q, int i, int kind)
{
    question_make(q, i, 8);
    if (kind == 1 || kind == 2)
        q->request.embedding = kind == 1 ? TUTTI_EMBEDDING_MEAN : TUTTI_EMBEDDING_LAST;
    q->request.prompt_logprobs = q->request.logprobs = kind == 3;
    q->request.top_logprobs = kind == 3 ? 4 : 0;
}

struct asking {
    struct tutti_engine_options engine;
    bool one_after_the_other;
    int n_rounds;
    int n_threads;
};

static struct collect *ask(const struct asking *how, struct tutti_stats *stats)
{
    static struct question questions[N_ASKED * N_KINDS];
    tutti_model *model = opened_model(TEST_DEMO_MODEL, NULL, NULL, how->n_threads);
    tutti_engine *engine = opened_engine(model, &how->engine, NULL);
    struct collect *all = calloc(N_ASKED * N_KINDS, sizeof *all);
    assert_non_null(all);
    for (int round = 0; round < how->n_rounds; round++) {
        for (int i = 0; i < N_ASKED * N_KINDS; i++) {
            if (round > 0)
                collect_clear(&all[i]);
            make_request(&questions[i], i / N_KINDS, i % N_KINDS);
            submit(&all[i], engine, &questions[i].request);
            if (how->one_after_the_other)
                collect_wait(&all[i]);
        }
        for (int i = 0; i < N_ASKED * N_KINDS; i++)
            collect_wait(&all[i]);
    }
    wait_until_idle(engine, stats);
    tutti_engine_close(engine);
    tutti_model_close(model);
    return all;
}

static void check_ids(const struct ids *got, const struct ids *want)
{
    assert_int_equal(got->n, want->n);
    if (want->n > 0)
        assert_memory_equal(got->ids, want->ids, want->n * sizeof *want->ids);
}

static void free_answers(struct collect *all)
{
    for (int i = 0; i < N_ASKED * N_KINDS; i++)
        collect_clear(&all[i]);
    free(all);
}

static void no_bit_depends_on_pieces_company_or_cache(void **state)
{
    (void)state;
    const struct asking alone = {
        .engine = { .kv_bytes = 32 << 20, .max_batch_tokens = 512, .no_prefix_cache = true },
        .one_after_the_other = true,
        .n_rounds = 1,
        .n_threads = 2
    };
    static const struct asking HOWS[] = {
        { .engine = { .kv_bytes = 32 << 20 }, .n_rounds = 2, .n_threads = 1 },
        { .engine = { .kv_bytes = 32 << 20, .max_batch_tokens = 7 }, .n_rounds = 1, .n_threads = 2 },
        { .engine = { .kv_bytes = 32 << 20, .max_batch_tokens = 33, .max_seqs = 3 },
          .n_rounds = 1,
          .n_threads = 2 },
        { .engine = { .kv_bytes = 2 << 20, .max_context = 256, .max_lookup_tokens = 4 },
          .n_rounds = 2,
          .n_threads = 2 },
    };
    struct tutti_stats stats;
    struct collect *want = ask(&alone, &stats);
    assert_int_equal(stats.n_cached_tokens, 0);
    for (int i = 0; i < N_ASKED * N_KINDS; i++) {
        assert_true((want[i].embedding_bits.n > 0) == (i % N_KINDS == 1 || i % N_KINDS == 2));
        assert_true((want[i].prompt_bits.n > 0) == (i % N_KINDS == 3));
    }
    for (size_t h = 0; h < sizeof HOWS / sizeof *HOWS; h++) {
        struct collect *got = ask(&HOWS[h], &stats);
        assert_true(stats.n_cached_tokens > 0);
        for (int i = 0; i < N_ASKED * N_KINDS; i++) {
            check_ids(&got[i].embedding_bits, &want[i].embedding_bits);
            check_ids(&got[i].prompt_bits, &want[i].prompt_bits);
            check_ids(&got[i].choices[0].ids, &want[i].choices[0].ids);
            check_ids(&got[i].choices[0].logprob_bits, &want[i].choices[0].logprob_bits);
        }
        free_answers(got);
    }
    free_answers(want);
}

/* ---- a model whose outputs are known ---- */

enum { N_MOCKED = 200, MOCK_PROMPT = 60 };

struct mocked {
    int32_t ids[MOCK_PROMPT];
    struct tutti_request request;
    struct collect got;
};

static void make_mocked(struct mocked *m, uint64_t number)
{
    uint64_t bits = mix64(number);
    m->request = (struct tutti_request){ .ids = m->ids,
                                         .n_ids = 1 + bits % MOCK_PROMPT,
                                         .n_choices = 1 + (int)(bits >> 8 & 255) % 3,
                                         .max_tokens = 1 + (int)(bits >> 16 & 255) % 20 };
    tutti_sampling_init(&m->request.sampling, NULL);
    m->request.sampling.has_seed = true;
    m->request.sampling.seed = number;
    for (size_t k = 0; k < m->request.n_ids; k++) /* many begin alike */
        m->ids[k] = (int32_t)(mix64(k < 40 ? k + (number % 3) * 100 : bits + k) % MOCK_USABLE);
    switch (number % 5) {
    case 0:
        m->request.embedding = TUTTI_EMBEDDING_MEAN;
        m->request.n_choices = 1;
        break;
    case 1:
        m->request.embedding = TUTTI_EMBEDDING_LAST;
        m->request.n_choices = 1;
        break;
    case 2:
        m->request.no_answer = true;
        m->request.prompt_logprobs = bits >> 30 & 1;
        break;
    case 3:
        m->request.prompt_logprobs = true;
        m->request.top_logprobs = 2;
    }
}

static void check_mocked(const struct mocked *m, struct sampler *sampler)
{
    const struct tutti_request *r = &m->request;
    float hidden[MOCK_WIDTH], logits[MOCK_VOCAB];
    double sum[MOCK_WIDTH] = { 0 };
    const int32_t *bits = m->got.prompt_bits.ids;
    bool is_mean = r->embedding == TUTTI_EMBEDDING_MEAN;
    for (size_t k = 0; k < r->n_ids; k++) {
        mock_outputs(r->ids, (int)k + 1, hidden, logits);
        for (int i = 0; i < MOCK_WIDTH; i++)
            sum[i] = is_mean ? sum[i] + (double)hidden[i] : (double)hidden[i];
        if (!r->prompt_logprobs || k + 1 == r->n_ids)
            continue;
        struct sample sample;
        struct sample_input in = { .n_usable = MOCK_USABLE,
                                   .n_top = r->top_logprobs,
                                   .token = r->ids[k + 1] };
        assert_true(sampler_score(sampler, logits, &in, &sample));
        bits = k == 0 ? bits + 1 : bits;
        assert_true(float_of(*bits++) == sample.logprob);
        for (int t = 0; t < r->top_logprobs; t++, bits += 2)
            assert_true(bits[0] == sample.top[t].id && float_of(bits[1]) == sample.top[t].logprob);
    }
    assert_int_equal(m->got.prompt_ids.n, r->prompt_logprobs ? r->n_ids : 0);
    assert_int_equal(m->got.embedding_bits.n, r->embedding != TUTTI_EMBEDDING_NONE ? MOCK_WIDTH : 0);
    for (int i = 0; i < (int)m->got.embedding_bits.n; i++)
        assert_true(float_of(m->got.embedding_bits.ids[i]) ==
                    (float)(sum[i] / (is_mean ? (double)r->n_ids : 1)));
    for (int choice = 0; choice < m->got.n_choices; choice++) {
        int32_t ids[MOCK_PROMPT * 2];
        bool has_answer = !r->no_answer && r->embedding == TUTTI_EMBEDDING_NONE;
        int n = has_answer ? mock_answer(r, choice, 128, false, ids, MOCK_PROMPT * 2) : 0;
        assert_int_equal(m->got.choices[choice].finish, TUTTI_FINISH_LENGTH);
        assert_int_equal(m->got.choices[choice].ids.n, n);
        if (n > 0)
            assert_memory_equal(m->got.choices[choice].ids.ids, ids, (size_t)n * sizeof *ids);
    }
}

static void everything_is_there_once_under_preemption(void **state)
{
    (void)state;
    static const struct tutti_engine_options HOWS[] = {
        { .kv_bytes = 12 * 64, .max_context = 128, .max_seqs = 6, .max_batch_tokens = 16 },
        { .kv_bytes = 9 * 64, .max_context = 128, .max_seqs = 16, .max_batch_tokens = 64 },
        { .kv_bytes = 40 * 64, .max_context = 128, .max_seqs = 2, .max_batch_tokens = 1 },
        { .kv_bytes = 40 * 64, .max_context = 128, .max_seqs = 40, .max_batch_tokens = 300 },
        { .kv_bytes = 40 * 64,
          .max_context = 128,
          .max_seqs = 4,
          .max_batch_tokens = 5,
          .no_prefix_cache = true },
    };
    struct mocked *all = calloc(N_MOCKED, sizeof *all);
    struct sampler *sampler = NULL;
    uint64_t n_preemptions = 0;
    assert_non_null(all);
    assert_int_equal(mock_sampler(&sampler, MOCK_VOCAB, NULL), TUTTI_OK);
    for (size_t h = 0; h < sizeof HOWS / sizeof *HOWS; h++) {
        struct mock_model *mock = mock_model_new(128, false);
        tutti_engine *engine = mock_engine(mock, &HOWS[h], NULL);
        struct tutti_stats stats;
        for (int i = 0; i < N_MOCKED; i++) {
            make_mocked(&all[i], h * N_MOCKED + (uint64_t)i);
            submit(&all[i].got, engine, &all[i].request);
        }
        for (int i = 0; i < N_MOCKED; i++) {
            collect_wait(&all[i].got);
            check_mocked(&all[i], sampler);
            collect_clear(&all[i].got);
        }
        wait_until_idle(engine, &stats);
        n_preemptions += stats.n_preemptions;
        tutti_engine_close(engine);
        mock_model_free(mock);
    }
    assert_true(n_preemptions > 0);
    sampler_free(sampler);
    free(all);
}

/* ---- faults ---- */

enum { POISON = 13 };

/* What is computed of sequences that hold the id POISON is not a number. */
static struct floats poison(struct model *model, struct kv_memory *kv, const struct step *step)
{
    const float nan = NAN;
    int n_logits = step->n_outputs - step->n_hidden, width = model->desc.d_model,
        n_vocab = model->desc.n_vocab;
    struct floats logits = model_forward(model, kv, step);
    for (int i = 0; i < step->n_outputs; i++) {
        if (step->token_ids[step->output_rows[i]] != POISON)
            continue;
        if (i < n_logits)
            model->backend->ops->upload(model->backend, floats_at(logits, (size_t)i * (size_t)n_vocab + 5),
                                        &nan, 1);
        else
            step->hidden[(size_t)(i - n_logits) * (size_t)width + 5] = NAN;
    }
    return logits;
}

static void what_is_no_number_ends_its_request_alone(void **state)
{
    (void)state;
    tutti_model *model = opened_model(TEST_FIXTURES "/llama-tiny", "f32", "f32", 2);
    struct engine_hooks hooks = { .submit = poison };
    tutti_engine *engine = opened_engine(model, &(struct tutti_engine_options){ .kv_bytes = 4 << 20 },
                                         &hooks);
    static const int32_t BAD[] = { 3, 4, POISON, 5, 6 }, GOOD[] = { 3, 4, 5, 6, 7 };
    struct collect all[8];
    for (int i = 0; i < 8; i++) {
        struct tutti_request request = { .ids = i < 4 ? BAD : GOOD, .n_ids = 5, .max_tokens = 2 };
        tutti_sampling_init(&request.sampling, NULL);
        if (i % 4 == 0)
            request.embedding = TUTTI_EMBEDDING_MEAN;
        else
            request.prompt_logprobs = true;
        request.no_answer = i % 4 == 2;
        request.n_choices = i % 4 == 3 ? 3 : i % 4 == 2 ? 2 : 1;
        submit(&all[i], engine, &request);
    }
    for (int i = 0; i < 8; i++) {
        collect_wait(&all[i]);
        for (int choice = 0; choice < all[i].n_choices; choice++) {
            const struct collected *got = &all[i].choices[choice];
            assert_int_equal(got->finish == TUTTI_FINISH_ERROR, i < 4);
            assert_int_equal(got->error.status, i < 4 ? TUTTI_E_NUMERIC : TUTTI_OK);
            if (i < 4)
                assert_non_null(strstr(got->error.text, i == 0 ? "hidden state" : "logit for token 5"));
        }
        assert_int_equal(all[i].prompt_ids.n, i > 4 ? 5 : 0);
        collect_clear(&all[i]);
    }
    tutti_engine_close(engine);
    tutti_model_close(model);
}

static void a_prompt_may_fill_the_context_where_nothing_follows(void **state)
{
    (void)state;
    struct mock_model *mock = mock_model_new(64, false);
    tutti_engine *engine = mock_engine(mock, &(struct tutti_engine_options){ .kv_bytes = 64 * 64 }, NULL);
    int32_t ids[65] = { 0 };
    struct tutti_request request = { .ids = ids, .n_ids = 64 };
    struct tutti_error err;
    tutti_sampling_init(&request.sampling, NULL);
    assert_int_equal(tutti_engine_submit(engine, &request, collect_event, NULL, NULL, &err), TUTTI_E_LIMIT);
    assert_non_null(strstr(err.text, "maximum context length is 64 tokens. However, you requested"));
    for (int kind = 0; kind < 3; kind++) {
        struct collect c;
        request.embedding = kind == 0 ? TUTTI_EMBEDDING_MEAN : TUTTI_EMBEDDING_NONE;
        request.no_answer = kind > 0;
        request.prompt_logprobs = kind == 2;
        request.n_ids = 64;
        submit(&c, engine, &request);
        collect_wait(&c);
        assert_int_equal(c.choices[0].finish, TUTTI_FINISH_LENGTH);
        assert_int_equal(c.prompt_ids.n, kind == 2 ? 64 : 0);
        collect_clear(&c);
        request.n_ids = 65;
        assert_int_equal(tutti_engine_submit(engine, &request, collect_event, NULL, NULL, &err),
                         TUTTI_E_LIMIT);
        assert_non_null(
            strstr(err.text, "maximum context length is 64 tokens. However, you requested 65 tokens (65 in"));
    }
    tutti_engine_close(engine);
    mock_model_free(mock);
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    static const int32_t IDS[] = { 1, 2, 3 };
    static const struct {
        struct tutti_request request;
        const char *param, *words;
    } CASES[] = {
        { { .embedding = TUTTI_EMBEDDING_MEAN, .n_choices = 2 }, "n", "an embedding request cannot have" },
        { { .embedding = TUTTI_EMBEDDING_LAST, .prompt_logprobs = true },
          "prompt_logprobs",
          "an embedding request cannot have" },
        { { .embedding = (enum tutti_embedding)4 }, "embedding", "at most 3" },
        { { .prompt_logprobs = true, .n_beams = 2 }, "prompt_logprobs", "beam search" },
    };
    tutti_model *model = opened_model(TEST_FIXTURES "/llama-tiny", "f32", "f32", 1);
    tutti_engine *engine = opened_engine(model, &(struct tutti_engine_options){ .kv_bytes = 4 << 20 }, NULL);
    struct tutti_error err;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct tutti_request request = CASES[i].request;
        request.ids = IDS;
        request.n_ids = 3;
        tutti_sampling_init(&request.sampling, NULL);
        assert_int_equal(tutti_engine_submit(engine, &request, collect_event, NULL, NULL, &err),
                         TUTTI_E_ARGUMENT);
        assert_string_equal(err.param, CASES[i].param);
        assert_non_null(strstr(err.text, CASES[i].words));
    }
    tutti_engine_close(engine);
    tutti_model_close(model);
    model = opened_model(TEST_FIXTURES "/chatglm-6b-tiny", "f32", "f32", 1);
    engine = opened_engine(model, &(struct tutti_engine_options){ .kv_bytes = 4 << 20 }, NULL);
    struct tutti_request request = { .ids = IDS, .n_ids = 3, .prompt_logprobs = true };
    tutti_sampling_init(&request.sampling, NULL);
    assert_int_equal(tutti_engine_submit(engine, &request, collect_event, NULL, NULL, &err),
                     TUTTI_E_ARGUMENT);
    assert_non_null(strstr(err.text, "bidirectional attention"));
    tutti_engine_close(engine);
    tutti_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_are_those_of_transformers),
        cmocka_unit_test(no_bit_depends_on_pieces_company_or_cache),
        cmocka_unit_test(everything_is_there_once_under_preemption),
        cmocka_unit_test(what_is_no_number_ends_its_request_alone),
        cmocka_unit_test(a_prompt_may_fill_the_context_where_nothing_follows),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
