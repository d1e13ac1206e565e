/* Beam search through the engine: transformers' answers on 12 or 50 prompts of each family, and the same bits alone and in
 * company, in small pieces, after preemptions, with every token computed anew. */
#include "engine/run/engine.h"
#include "support/collect.h"
#include "support/opened.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_CASES = 256, MAX_IDS = 128, MAX_STOPS = 32 };

/* ---- what transformers answered ---- */

struct beam_case {
    const json_t *want;
    int32_t prompt[MAX_IDS], stop_ids[MAX_STOPS];
    struct tutti_request request;
    struct collect answer;
};

static size_t read_ids(const json_t *list, int32_t *ids, size_t most)
{
    size_t n = json_array_size(list);
    assert_true(n <= most);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return n;
}

static enum tutti_early_stopping read_early_stopping(const json_t *value)
{
    if (json_is_string(value)) {
        assert_string_equal(json_string_value(value), "never");
        return TUTTI_EARLY_STOPPING_NEVER;
    }
    return json_is_true(value) ? TUTTI_EARLY_STOPPING_TRUE : TUTTI_EARLY_STOPPING_FALSE;
}

static void read_case(struct beam_case *c, const json_t *value)
{
    c->want = value;
    c->request = (struct tutti_request){
        .ids = c->prompt,
        .n_ids = read_ids(json_object_get(value, "prompt_ids"), c->prompt, MAX_IDS),
        .stop_ids = c->stop_ids,
        .n_stop_ids = read_ids(json_object_get(value, "eos_token_id"), c->stop_ids, MAX_STOPS),
        .ignore_eos = true, /* the request's own alone */
        .max_tokens = (int)json_integer_value(json_object_get(value, "max_new_tokens")),
        .n_choices = (int)json_integer_value(json_object_get(value, "num_return_sequences")),
        .n_beams = (int)json_integer_value(json_object_get(value, "num_beams")),
        .length_penalty = json_number_value(json_object_get(value, "length_penalty")),
        .early_stopping = read_early_stopping(json_object_get(value, "early_stopping")),
        .logprobs = true,
    };
    tutti_sampling_init(&c->request.sampling, NULL);
    c->request.sampling.repetition_penalty = (float)json_number_value(
        json_object_get(value, "repetition_penalty"));
}

static struct beam_case *read_cases(const char *name, json_t **root, int *n)
{
    char path[512];
    json_error_t err;
    struct beam_case *cases = calloc(MAX_CASES, sizeof *cases);
    snprintf(path, sizeof path, TEST_FIXTURES "/beams/%s.json", name);
    *root = json_load_file(path, 0, &err);
    if (!*root || !cases)
        fail_msg("%s: %s", path, err.text);
    const json_t *list = json_object_get(*root, "cases");
    *n = (int)json_array_size(list);
    assert_true(*n > 0 && *n <= MAX_CASES);
    for (int i = 0; i < *n; i++)
        read_case(&cases[i], json_array_get(list, (size_t)i));
    return cases;
}

static void check_case(const struct beam_case *c, int number)
{
    const json_t *answers = json_object_get(c->want, "answers"), *scores = json_object_get(c->want, "scores");
    int32_t want[MAX_IDS];
    assert_int_equal(json_array_size(answers), c->request.n_choices);
    for (int i = 0; i < c->request.n_choices; i++) {
        const struct collected *got = &c->answer.choices[i];
        size_t n = read_ids(json_array_get(answers, (size_t)i), want, MAX_IDS);
        bool ends = false;
        for (size_t k = 0; k < c->request.n_stop_ids; k++)
            ends = ends || want[n - 1] == c->stop_ids[k];
        n -= ends;
        if (got->ids.n != n || (n > 0 && memcmp(got->ids.ids, want, n * sizeof *want) != 0))
            fail_msg("case %d, answer %d: other tokens than transformers'", number, i);
        assert_int_equal(got->finish, ends ? TUTTI_FINISH_STOP : TUTTI_FINISH_LENGTH);
        double score = json_number_value(json_array_get(scores, (size_t)i));
        if (!(fabs((double)got->beam_score - score) <= 1e-4 * fabs(score) + 1e-5))
            fail_msg("case %d, answer %d: score %g, expected %g", number, i, (double)got->beam_score, score);
    }
}

static void answers_are_those_of_transformers(void **state)
{
    (void)state;
    static const char *const NAMES[] = { "llama-tiny",
                                         "gpt2-tiny",
                                         "qwen2-tiny",
                                         "qwen3-tiny",
                                         "mistral-tiny",
                                         "glm-tiny",
                                         "glm4-tiny",
                                         "bloom-tiny",
                                         "chatglm3-tiny",
                                         "glm-4-9b-tiny",
                                         "chatglm-6b-tiny",
                                         "pangu-tiny",
                                         "granite-tiny",
                                         "phi3-tiny",
                                         "gemma2-tiny",
                                         "gemma3-tiny",
                                         "gemma4-tiny",
                                         "gemma4-moe-tiny",
                                         "smollm3-tiny",
                                         "starcoder2-tiny",
                                         "olmo2-tiny",
                                         "exaone4-tiny",
                                         "phi2-tiny",
                                         "gpt-neox-tiny",
                                         "gpt-bigcode-tiny",
                                         "exaone-tiny",
                                         "ernie-tiny",
                                         "ernie-moe-tiny",
                                         "granite-moe-tiny",
                                         "granite4-tiny",
                                         "gptj-tiny",
                                         "falcon-tiny",
                                         "falcon-40b-tiny",
                                         "opt-tiny",
                                         "internlm2-tiny",
                                         "baichuan2-tiny",
                                         "pangu-embedded-tiny",
                                         "mistral3-tiny",
                                         "ministral3-tiny",
                                         "qwen2-vl-tiny",
                                         "qwen3-vl-tiny",
                                         "qwen3-vl-moe-tiny",
                                         "glm4v-tiny",
                                         "glm4v-moe-tiny",
                                         "mixtral-tiny",
                                         "qwen2-moe-tiny",
                                         "qwen3-moe-tiny",
                                         "glm4-moe-tiny",
                                         "deepseek-v2-lite-tiny",
                                         "deepseek-v3-tiny",
                                         "glm4-moe-lite-tiny",
                                         "gpt-oss-tiny",
                                         "olmo3-tiny",
                                         "minimax-m2-tiny",
                                         "olmoe-tiny",
                                         "qwen1-tiny",
                                         "minicpm3-tiny",
                                         "stablelm-tiny",
                                         "gemma-tiny",
                                         "seed-oss-tiny",
                                         "cohere-tiny",
                                         "cohere2-tiny" };
    for (size_t m = 0; m < sizeof NAMES / sizeof *NAMES; m++) {
        int n;
        json_t *root;
        struct beam_case *cases = read_cases(NAMES[m], &root, &n);
        tutti_model *model = opened_model(NAMES[m], "f32", "f32", 2);
        struct tutti_engine_options options = { .kv_bytes = 32 << 20, .max_seqs = 48 };
        tutti_engine *engine = opened_engine(model, &options, NULL);
        for (int i = 0; i < n; i++) {
            collect_init(&cases[i].answer);
            collect_submit(&cases[i].answer, engine, &cases[i].request);
        }
        for (int i = 0; i < n; i++) {
            collect_wait(&cases[i].answer);
            check_case(&cases[i], i);
            collect_clear(&cases[i].answer);
        }
        struct tutti_stats stats;
        wait_until_idle(engine, &stats);
        tutti_engine_close(engine);
        tutti_model_close(model);
        json_decref(root);
        free(cases);
        print_message("# checked %s\n", NAMES[m]);
    }
}

/* ---- the same bits, whatever happens around ---- */

enum { N_REQUESTS = 14, N_PROMPT = 45 };

/* Beams of three widths, sampled and greedy answers, each with one adapter or without; prompts of which half begin alike. */
static struct tutti_request make_request(int number, int32_t *ids)
{
    static const char *const ADAPTERS[] = { NULL, "some", "all" };
    struct tutti_request request = { .ids = ids,
                                     .n_ids = (size_t)(3 + number * 3),
                                     .max_tokens = 20 + number,
                                     .ignore_eos = true,
                                     .logprobs = true,
                                     .adapter = ADAPTERS[number % 3] };
    for (size_t i = 0; i < request.n_ids; i++)
        ids[i] = (int32_t)(((i * 2654435761u) ^ (number % 2 && i > 20 ? (uint32_t)number * 40503u : 0)) >>
                           9) %
                 97;
    static const int32_t STOPS[] = { 11, 40, 77, 123, 200, 290 };
    tutti_sampling_init(&request.sampling, NULL);
    request.sampling.temperature = number % 4 == 0 ? 0 : 1;
    request.sampling.has_seed = true;
    request.sampling.seed = (uint64_t)number;
    if (number % 3 == 1)
        return request;
    request.stop_ids = STOPS;
    request.n_stop_ids = 6;
    request.n_beams = 2 + number % 4;
    request.n_choices = 1 + number % 2;
    request.length_penalty = 1;
    request.early_stopping = TUTTI_EARLY_STOPPING_NEVER;
    return request;
}

struct setting {
    struct tutti_engine_options engine;
    int n_threads;
    bool no_kv_cache, one_after_the_other, must_preempt;
};

/* The first step waits here until all have asked: else a quick engine answers one before the next has come. */
static void hold(void *user, uint64_t request_id, int choice, int index, float *logits, int n_vocab)
{
    (void)request_id;
    (void)choice;
    (void)index;
    (void)logits;
    (void)n_vocab;
    while (!atomic_load((atomic_bool *)user))
        usleep(100);
}

/* Returns how often a sequence was preempted. */
static uint64_t ask_all(struct collect *answers, const struct setting *s)
{
    int32_t ids[N_REQUESTS][N_PROMPT + 1];
    tutti_model *model = opened_model("llama-tiny", "f32", "f32", s->n_threads);
    struct tutti_error err;
    if (tutti_model_add_adapter(model, "some", TEST_FIXTURES "/adapters/llama-qv", &err) != TUTTI_OK ||
        tutti_model_add_adapter(model, "all", TEST_FIXTURES "/adapters/llama-all", &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    atomic_bool have_all_asked = s->one_after_the_other;
    struct engine_hooks hooks = { .logits = hold, .user = &have_all_asked };
    tutti_engine *engine = opened_engine(model, &s->engine, &hooks);
    for (int i = 0; i < N_REQUESTS; i++) {
        struct tutti_request request = make_request(i, ids[i]);
        request.no_kv_cache = s->no_kv_cache;
        collect_init(&answers[i]);
        collect_submit(&answers[i], engine, &request);
        if (s->one_after_the_other)
            collect_wait(&answers[i]);
    }
    atomic_store(&have_all_asked, true);
    for (int i = 0; i < N_REQUESTS; i++)
        collect_wait(&answers[i]);
    struct tutti_stats stats;
    wait_until_idle(engine, &stats);
    tutti_engine_close(engine);
    tutti_model_close(model);
    return stats.n_preemptions;
}

static void assert_same(const struct collected *got, const struct collected *want, int number, int setting)
{
    size_t n = want->ids.n, n_bits = want->logprob_bits.n;
    if (got->finish != want->finish || got->ids.n != n || got->logprob_bits.n != n_bits ||
        (n > 0 && memcmp(got->ids.ids, want->ids.ids, n * sizeof *want->ids.ids) != 0) ||
        (n_bits > 0 &&
         memcmp(got->logprob_bits.ids, want->logprob_bits.ids, n_bits * sizeof(int32_t)) != 0) ||
        memcmp(&got->beam_score, &want->beam_score, sizeof got->beam_score) != 0)
        fail_msg("setting %d: request %d has another answer than by itself", setting, number);
}

static void answers_have_the_same_bits_alone_and_in_any_company(void **state)
{
    (void)state;
    /* A page of llama-tiny in float32 is 3 layers * 2 * 2 heads * 16 tokens * 16 * 4 bytes = 12 KiB. With few, and where reading need
     * not spare who decodes, more begin than can go on. */
    enum { FEW_PAGES = 30 * 12288 };
    static const struct setting SETTINGS[] = {
        { .engine = { .kv_bytes = 16 << 20, .max_context = 128 },
          .n_threads = 1,
          .one_after_the_other = true },
        { .engine = { .kv_bytes = 16 << 20, .max_context = 128 }, .n_threads = 2 },
        { .engine = { .kv_bytes = 16 << 20, .max_context = 128, .max_batch_tokens = 7 }, .n_threads = 3 },
        { .engine = { .kv_bytes = 16 << 20, .max_context = 128, .no_prefix_cache = true }, .n_threads = 2 },
        { .engine = { .kv_bytes = 16 << 20, .max_context = 128, .max_seqs = 6 }, .n_threads = 2 },
        { .engine = { .kv_bytes = FEW_PAGES, .max_context = 128, .max_slowdown = 1000 },
          .n_threads = 2,
          .must_preempt = true },
        { .engine = { .kv_bytes = FEW_PAGES,
                      .max_context = 128,
                      .no_prefix_cache = true,
                      .max_batch_tokens = 16,
                      .max_slowdown = 1000 },
          .n_threads = 2,
          .must_preempt = true },
        { .engine = { .kv_bytes = 16 << 20, .max_context = 128 }, .n_threads = 2, .no_kv_cache = true },
        { .engine = { .kv_bytes = FEW_PAGES,
                      .max_context = 128,
                      .max_batch_tokens = 16,
                      .max_slowdown = 1000 },
          .n_threads = 2,
          .no_kv_cache = true,
          .must_preempt = true },
    };
    struct collect want[N_REQUESTS], got[N_REQUESTS];
    ask_all(want, &SETTINGS[0]);
    for (int s = 1; s < (int)(sizeof SETTINGS / sizeof *SETTINGS); s++) {
        bool is_done =
            false; /* who meets whom in the cache depends on when they come: more than one try may be needed */
        for (int turn = 0; turn < 20 && !is_done; turn++) {
            is_done = ask_all(got, &SETTINGS[s]) > 0 || !SETTINGS[s].must_preempt;
            for (int i = 0; i < N_REQUESTS; i++) {
                for (int choice = 0; choice < got[i].n_choices; choice++)
                    assert_same(&got[i].choices[choice], &want[i].choices[choice], i, s);
                collect_clear(&got[i]);
            }
        }
        if (!is_done)
            fail_msg("setting %d: no sequence was preempted in 20 tries", s);
    }
    for (int i = 0; i < N_REQUESTS; i++)
        collect_clear(&want[i]);
}

/* ChatGLM-6B reads its prompts in both directions, in one step, and has no prefix cache. */
static void prefixes_in_both_directions_are_recomputed_and_searched(void **state)
{
    (void)state;
    static const int32_t IDS[] = { 5, 17, 60, 33, 2, 101, 104 };
    static const struct tutti_engine_options SMALL = { .kv_bytes = 0, .max_context = 64, .max_seqs = 8 };
    struct collect answers[3][2];
    tutti_model *model = opened_model("chatglm-6b-tiny", "f32", "f32", 2);
    tutti_engine *engine = opened_engine(model, &SMALL, NULL);
    for (int turn = 0; turn < 3; turn++) {
        for (int k = 0; k < 2; k++) {
            struct tutti_request request = { .ids = IDS,
                                             .n_ids = 7,
                                             .max_tokens = 30,
                                             .ignore_eos = true,
                                             .logprobs = true,
                                             .n_beams = k ? 4 : 0,
                                             .n_choices = k ? 3 : 1,
                                             .no_kv_cache = turn == 2 };
            tutti_sampling_init(&request.sampling, NULL);
            request.sampling.temperature = 0;
            collect_init(&answers[turn][k]);
            collect_submit(&answers[turn][k], engine, &request);
            if (turn == 0)
                collect_wait(&answers[turn][k]);
        }
    }
    for (int turn = 1; turn < 3; turn++) {
        for (int k = 0; k < 2; k++) {
            collect_wait(&answers[turn][k]);
            for (int choice = 0; choice < answers[0][k].n_choices; choice++)
                assert_same(&answers[turn][k].choices[choice], &answers[0][k].choices[choice], k, turn);
            collect_clear(&answers[turn][k]);
        }
    }
    collect_clear(&answers[0][0]);
    collect_clear(&answers[0][1]);
    tutti_engine_close(engine);
    tutti_model_close(model);
}

/* ---- the rest ---- */

static void a_cancelled_search_gives_all_its_pages_back(void **state)
{
    (void)state;
    static const int32_t IDS[] = { 5, 17, 60, 33, 2 };
    tutti_model *model = opened_model("llama-tiny", "f32", "f32", 2);
    struct tutti_engine_options options = { .kv_bytes = 8 << 20, .max_context = 400, .max_seqs = 12 };
    tutti_engine *engine = opened_engine(model, &options, NULL);
    struct tutti_stats stats;
    for (int round = 0; round < 6; round++) {
        struct collect answers[4];
        for (int i = 0; i < 4; i++) { /* three run, one waits for slots */
            struct tutti_request request = {
                .ids = IDS, .n_ids = 5, .max_tokens = 390, .ignore_eos = true, .n_beams = 4, .n_choices = 2
            };
            tutti_sampling_init(&request.sampling, NULL);
            collect_init(&answers[i]);
            collect_submit(&answers[i], engine, &request);
        }
        do
            tutti_engine_stats(engine, &stats);
        while (stats.n_running < (uint64_t)(2 * round) &&
               stats.n_finished + stats.n_cancelled < stats.n_requests);
        for (int i = 0; i < 4; i++)
            tutti_engine_cancel(engine, answers[i].id);
        for (int i = 0; i < 4; i++) {
            collect_wait(&answers[i]);
            for (int choice = 0; choice < 2; choice++)
                assert_true(answers[i].choices[choice].finish == TUTTI_FINISH_CANCELLED ||
                            answers[i].choices[choice].finish == TUTTI_FINISH_LENGTH);
            collect_clear(&answers[i]);
        }
        wait_until_idle(engine, &stats);
        assert_int_equal(stats.kv_pages_used, 0);
    }
    tutti_engine_close(engine);
    tutti_model_close(model);
}

/* The sixth token of one search has a logit that is no number: of that which a thread of the step comes to first. */
static void spoil(void *user, uint64_t request_id, int choice, int index, float *logits, int n_vocab)
{
    (void)choice;
    (void)n_vocab;
    uint64_t first = 0;
    atomic_compare_exchange_strong((_Atomic uint64_t *)user, &first, request_id);
    if (request_id == atomic_load((_Atomic uint64_t *)user) && index == 5)
        logits[7] = NAN;
}

static void a_bad_logit_ends_its_search_alone(void **state)
{
    (void)state;
    static const int32_t IDS[] = { 5, 17, 60 };
    _Atomic uint64_t spoiled = 0;
    struct engine_hooks hooks = { .logits = spoil, .user = &spoiled };
    tutti_model *model = opened_model("llama-tiny", "f32", "f32", 2);
    struct tutti_engine_options options = { .kv_bytes = 8 << 20, .max_context = 128, .max_seqs = 16 };
    tutti_engine *engine = NULL;
    assert_int_equal(engine_open(&engine, model_of(model), &options, &hooks, NULL), TUTTI_OK);
    struct collect answers[2];
    struct tutti_request request = { .ids = IDS,
                                     .n_ids = 3,
                                     .max_tokens = 20,
                                     .ignore_eos = true,
                                     .n_beams = 3,
                                     .n_choices = 2,
                                     .length_penalty = 1 };
    tutti_sampling_init(&request.sampling, NULL);
    for (int i = 0; i < 2; i++) {
        collect_init(&answers[i]);
        collect_submit(&answers[i], engine, &request);
    }
    for (int i = 0; i < 2; i++)
        collect_wait(&answers[i]);
    const struct collect *bad = &answers[answers[1].id == atomic_load(&spoiled)];
    const struct collect *good = &answers[bad == answers];
    assert_int_equal(bad->id, atomic_load(&spoiled));
    for (int choice = 0; choice < 2; choice++) {
        assert_int_equal(bad->choices[choice].finish, TUTTI_FINISH_ERROR);
        assert_int_equal(bad->choices[choice].error.status, TUTTI_E_NUMERIC);
        assert_non_null(strstr(bad->choices[choice].error.text, "token 7"));
        assert_int_equal(good->choices[choice].finish, TUTTI_FINISH_LENGTH);
    }
    for (int i = 0; i < 2; i++)
        collect_clear(&answers[i]);
    struct tutti_stats stats;
    wait_until_idle(engine, &stats);
    assert_int_equal(stats.kv_pages_used, 0);
    tutti_engine_close(engine);
    tutti_model_close(model);
}

static void searches_that_cannot_be_are_refused(void **state)
{
    (void)state;
    static const int32_t IDS[] = { 5, 17, 60 };
    static const struct tutti_string STOP = { "x", 1 };
    static const struct {
        struct tutti_request request;
        enum tutti_status status;
        const char *param;
    } CASES[] = {
        { { .n_beams = 65 }, TUTTI_E_ARGUMENT, "n_beams" },
        { { .n_beams = -1 }, TUTTI_E_ARGUMENT, "n_beams" },
        { { .n_beams = 4, .n_choices = 5 }, TUTTI_E_ARGUMENT, "n" },
        { { .n_beams = 4, .length_penalty = NAN }, TUTTI_E_ARGUMENT, "length_penalty" },
        { { .n_beams = 4, .early_stopping = (enum tutti_early_stopping)3 },
          TUTTI_E_ARGUMENT,
          "early_stopping" },
        { { .n_beams = 4, .top_logprobs = 1 }, TUTTI_E_ARGUMENT, "top_logprobs" },
        { { .n_beams = 4, .stop = &STOP, .n_stop = 1 }, TUTTI_E_ARGUMENT, "stop" },
        { { .n_beams = 9 }, TUTTI_E_LIMIT, "n_beams" },
        { { .adapter = "green" }, TUTTI_E_NOT_FOUND, "model" },
    };
    tutti_model *model = opened_model("llama-tiny", "f32", "f32", 1);
    struct tutti_engine_options options = { .kv_bytes = 20 * 12288, .max_seqs = 8, .max_context = 128 };
    tutti_engine *engine = opened_engine(model, &options, NULL);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct tutti_error err = { 0 };
        struct collect c;
        struct tutti_request request = CASES[i].request;
        request.ids = IDS;
        request.n_ids = 3;
        tutti_sampling_init(&request.sampling, NULL);
        collect_init(&c);
        enum tutti_status st = tutti_engine_submit(engine, &request, collect_event, &c, NULL, &err);
        if (i == 6) /* this model has no tokenizer, which is said first */
            assert_string_equal(err.param, "stop");
        assert_int_equal(st, CASES[i].status);
        assert_string_equal(err.param, CASES[i].param);
        collect_clear(&c);
    }
    struct collect c; /* the KV cache is asked when the prompt's length is known */
    struct tutti_request request = { .ids = IDS, .n_ids = 3, .n_beams = 4, .max_tokens = 100 };
    tutti_sampling_init(&request.sampling, NULL);
    collect_init(&c);
    collect_submit(&c, engine, &request);
    collect_wait(&c);
    assert_int_equal(c.choices[0].finish, TUTTI_FINISH_ERROR);
    assert_int_equal(c.choices[0].error.status, TUTTI_E_LIMIT);
    assert_non_null(strstr(c.choices[0].error.text,
                           "4 beams of 103 tokens each need 32 KV pages, but the KV cache has 20"));
    collect_clear(&c);
    tutti_engine_close(engine);
    tutti_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_those_of_transformers),
        cmocka_unit_test(answers_have_the_same_bits_alone_and_in_any_company),
        cmocka_unit_test(prefixes_in_both_directions_are_recomputed_and_searched),
        cmocka_unit_test(a_cancelled_search_gives_all_its_pages_back),
        cmocka_unit_test(a_bad_logit_ends_its_search_alone),
        cmocka_unit_test(searches_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
