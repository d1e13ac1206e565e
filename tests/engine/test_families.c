/* Every family through the engine: the greedy answers of the reference (tests/fixtures/README.md), and the same tokens and
 * log-probabilities, bit for bit, alone and in company, in small pieces, after preemptions, from the prefix cache. */
#include "support/collect.h"
#include "support/family_fixtures.h"
#include "support/on_card.h"
#include "support/opened.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_REQUESTS = 10, MAX_PROMPT = 120, N_ANSWER = 24, N_TOP = 3 };

/* Of chatglm-6b-tiny's configuration: what a prompt of its ends in. */
enum { GMASK = 101, SOP = 104 };

/* Half of the prompts begin alike, further than a page. */
static size_t make_prompt(int32_t *ids, const char *name, int number)
{
    size_t n = (size_t)(3 + number * number);
    bool has_prefix = strcmp(name, "chatglm-6b-tiny") == 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t seed = (uint32_t)(i * 2654435761u) ^ (number % 2 && i > 40 ? (uint32_t)number * 40503u : 0);
        ids[i] = (int32_t)((seed >> 9) % 97);
    }
    if (has_prefix) {
        ids[n - 2] = GMASK;
        ids[n - 1] = SOP;
    }
    return n;
}

static void ask(struct collect *answers, tutti_engine *engine, const char *name, bool one_after_the_other)
{
    int32_t ids[N_REQUESTS][MAX_PROMPT];
    for (int i = 0; i < N_REQUESTS; i++) {
        struct tutti_request request = { .ids = ids[i],
                                         .n_ids = make_prompt(ids[i], name, i),
                                         .max_tokens = N_ANSWER,
                                         .logprobs = true,
                                         .top_logprobs = N_TOP,
                                         .ignore_eos = true };
        tutti_sampling_init(&request.sampling, NULL);
        request.sampling.temperature = 0;
        collect_init(&answers[i]);
        collect_submit(&answers[i], engine, &request);
        if (one_after_the_other)
            collect_wait(&answers[i]);
    }
    for (int i = 0; i < N_REQUESTS; i++)
        collect_wait(&answers[i]);
}

static void check_same(const char *name, const char *how, const struct ids *got, const struct ids *want)
{
    if (got->n != want->n || memcmp(got->ids, want->ids, want->n * sizeof *want->ids) != 0)
        fail_msg("%s, %s: another answer", name, how);
}

static void check_company(const char *name, int n_threads, struct tutti_engine_options options,
                          const struct collect *want, const char *how, struct tutti_stats *stats)
{
    struct collect got[N_REQUESTS];
    tutti_model *model = opened_model(name, "f32", "f32", n_threads);
    tutti_engine *engine = opened_engine(model, &options, NULL);
    ask(got, engine, name, false);
    wait_until_idle(engine, stats);
    for (int i = 0; i < N_REQUESTS; i++) {
        check_same(name, how, &got[i].choices[0].ids, &want[i].choices[0].ids);
        check_same(name, how, &got[i].choices[0].logprob_bits, &want[i].choices[0].logprob_bits);
        collect_clear(&got[i]);
    }
    tutti_engine_close(engine);
    tutti_model_close(model);
}

/* The memory of 200 pages holds more of them if layers with a window give back what no row sees any more: of 32 pages a
 * sequence needs 5 in these layers. */
static void check_pages(const char *name, const struct tutti_stats *stats)
{
    static const struct {
        const char *name;
        unsigned n_layers, n_with_window; /* or what they take, where layers differ: multiples of 32 floats */
    } WINDOWS[] = { { "mistral-tiny", 2, 2 },   { "phi3-tiny", 2, 2 },       { "qwen3-tiny-windows", 3, 1 },
                    { "gemma2-tiny", 3, 2 },    { "starcoder2-tiny", 2, 2 }, { "exaone4-tiny-hybrid", 4, 3 },
                    { "olmo3-tiny", 5, 4 },     { "cohere2-tiny", 5, 4 },    { "gemma3-tiny", 4, 3 },
                    { "ministral-tiny", 2, 1 }, { "gpt-oss-tiny", 4, 2 },    { "gpt-oss-tiny-mxfp4", 4, 2 },
                    { "gemma4-tiny", 11, 6 },   { "gemma4-moe-tiny", 11, 6 } };
    uint64_t n = 200;
    for (size_t i = 0; i < sizeof WINDOWS / sizeof *WINDOWS; i++) {
        unsigned n_layers = WINDOWS[i].n_layers, n_with = WINDOWS[i].n_with_window;
        if (strcmp(name, WINDOWS[i].name) == 0)
            n = 200 * 32 * n_layers / (32 * (n_layers - n_with) + 5 * n_with);
    }
    assert_in_range(stats->kv_pages_total, n - 1, n + 1);
}

static void answers_are_the_same_in_any_company(void **state)
{
    (void)state;
    uint64_t n_preemptions = 0; /* of one family alone it is chance: who arrives while who still runs */
    for (int k = 0; k < N_FAMILY_FIXTURES; k++) {
        const char *name = FAMILY_FIXTURES[k].name;
        bool has_prefix = strcmp(name, "chatglm-6b-tiny") == 0;
        struct collect want[N_REQUESTS];
        struct tutti_stats stats;
        struct tutti_model_info info;
        if (!is_tried_in_full(name))
            continue;
        tutti_model *model = opened_model(name, "f32", "f32", 1);
        tutti_model_info(model, &info);
        uint64_t page_bytes = info.kv_bytes_per_token * 16;
        struct tutti_engine_options alone = { .kv_bytes = 64 * page_bytes, .no_prefix_cache = true };
        tutti_engine *engine = opened_engine(model, &alone, NULL);
        ask(want, engine, name, true);
        tutti_engine_close(engine);
        tutti_model_close(model);
        for (int i = 0; i < N_REQUESTS; i++)
            assert_int_equal(want[i].choices[0].ids.n, N_ANSWER);

        struct tutti_engine_options options = { .kv_bytes = 200 * page_bytes };
        check_company(name, 2, options, want, "together", &stats);
        options.max_batch_tokens = 7;
        check_company(name, 1, options, want, "in pieces", &stats);
        check_pages(name, &stats);
        assert_true(has_prefix ? stats.n_cached_tokens == 0 : stats.n_cached_tokens > 0);
        /* read at once, so that the pool overflows on any machine */
        options = (struct tutti_engine_options){ .kv_bytes = 12 * page_bytes, .max_slowdown = 1000 };
        check_company(name, 2, options, want, "in a small pool", &stats);
        n_preemptions += stats.n_preemptions;
        for (int i = 0; i < N_REQUESTS; i++)
            collect_clear(&want[i]);
    }
    assert_true(n_preemptions > 0);
}

static size_t read_ids(const json_t *array, int32_t *ids)
{
    for (size_t i = 0; i < json_array_size(array); i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(array, i));
    return json_array_size(array);
}

static void greedy_answers_are_those_of_the_reference(void **state)
{
    (void)state;
    for (int k = 0; k < N_FAMILY_FIXTURES; k++) {
        char path[512];
        int32_t prompt[256], want[256];
        if (!is_tried_in_full(FAMILY_FIXTURES[k].name))
            continue;
        snprintf(path, sizeof path, TEST_FIXTURES "/%s/golden.json", FAMILY_FIXTURES[k].name);
        json_t *golden = json_load_file(path, 0, NULL);
        const json_t *greedy = json_object_get(golden, "greedy");
        struct tutti_request request = { .ids = prompt, .ignore_eos = true };
        request.n_ids = read_ids(json_object_get(greedy, "prompt_ids"), prompt);
        size_t n = read_ids(json_object_get(greedy, "answer_ids"), want);
        assert_true(n >= 100);
        request.max_tokens = (int)n;
        tutti_sampling_init(&request.sampling, NULL);
        request.sampling.temperature = 0;
        tutti_model *model = opened_model(FAMILY_FIXTURES[k].name, "f32", "f32", 2);
        tutti_engine *engine = opened_engine(model, NULL, NULL);
        struct collect answer;
        collect_init(&answer);
        collect_submit(&answer, engine, &request);
        collect_wait(&answer);
        assert_int_equal(answer.choices[0].ids.n, n);
        assert_memory_equal(answer.choices[0].ids.ids, want, n * sizeof *want);
        collect_clear(&answer);
        tutti_engine_close(engine);
        tutti_model_close(model);
        json_decref(golden);
    }
}

/* Of 32 pages that a sequence may take, 5 slots are enough for one; four beams that see pages of their own need more. */
static void beams_need_slots_of_their_own(void **state)
{
    (void)state;
    static const int32_t IDS[10] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };
    tutti_model *model = opened_model("mistral-tiny", "f32", "f32", 1);
    struct tutti_model_info info;
    tutti_model_info(model, &info);
    struct tutti_engine_options options = { .kv_bytes = 5 * 16 * info.kv_bytes_per_token,
                                            .max_batch_tokens = 7 };
    tutti_engine *engine = opened_engine(model, &options, NULL);
    for (int n_beams = 1; n_beams <= 4; n_beams += 3) {
        struct tutti_request request = {
            .ids = IDS, .n_ids = 10, .n_beams = n_beams, .max_tokens = 20, .ignore_eos = true
        };
        struct collect answer;
        tutti_sampling_init(&request.sampling, NULL);
        request.sampling.temperature = 0;
        collect_init(&answer);
        collect_submit(&answer, engine, &request);
        collect_wait(&answer);
        if (n_beams == 1)
            assert_int_equal(answer.choices[0].ids.n, 20);
        else
            assert_non_null(strstr(answer.choices[0].error.text,
                                   "4 beams of 30 tokens each need 14 KV pages in layers "
                                   "with a window, but the KV cache has 6"));
        collect_clear(&answer);
    }
    tutti_engine_close(engine);
    tutti_model_close(model);
}

/* A table by position ends; the engine's context ends with it. */
static void positions_behind_a_learned_table_are_refused(void **state)
{
    (void)state;
    static const char *const WITH_TABLES[] = { "gpt2-tiny", "pangu-tiny", "gpt-bigcode-tiny" };
    for (int k = 0; k < 3; k++) {
        tutti_model *model = opened_model(WITH_TABLES[k], "f32", "f32", 1);
        struct tutti_model_info info;
        struct tutti_error err = { 0 };
        tutti_model_info(model, &info);
        size_t n = (size_t)info.n_ctx;
        int32_t *ids = calloc(n + 1, sizeof *ids);
        float *logits = malloc((n + 1) * (size_t)info.n_vocab * sizeof *logits);
        assert_true(ids && logits);
        assert_int_equal(tutti_model_logits(model, ids, n, logits, &err), TUTTI_OK);
        assert_int_equal(tutti_model_logits(model, ids, n + 1, logits, &err), TUTTI_E_ARGUMENT);
        assert_non_null(strstr(err.text, "context of"));
        struct tutti_engine_options options = { .max_context = info.n_ctx + 1 };
        tutti_engine *engine = NULL;
        assert_int_equal(tutti_engine_open(&engine, model, &options, &err), TUTTI_E_ARGUMENT);
        free(ids);
        free(logits);
        tutti_model_close(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_the_same_in_any_company),
        cmocka_unit_test(greedy_answers_are_those_of_the_reference),
        cmocka_unit_test(beams_need_slots_of_their_own),
        cmocka_unit_test(positions_behind_a_learned_table_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
