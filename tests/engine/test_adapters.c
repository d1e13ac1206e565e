/* Adapters of all kinds in one engine: the same bits for one request and for many, the prefix cache, and virtual tokens
 * in the context, in the KV cache and in what is reported. */
#include "engine/run/engine.h"
#include "support/collect.h"
#include "support/opened.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_REQUESTS = 64, MAX_PROMPT = 48, MAX_CONTEXT = 112, N_PREFIX = 19, PAGE_TOKENS = 16 };

static const char *const ADAPTERS[] = {
    NULL,           "llama-qv",           "llama-all",       "llama-dora",    "llama-lora-bias",
    "llama-saved",  "llama-saved-layers", "llama-embedding", "llama-tokens",  "llama-only-tokens",
    "llama-prefix", "llama-prefix-mlp",   "llama-prompt",    "llama-p-tuning"
};
enum { N_ADAPTERS = sizeof ADAPTERS / sizeof *ADAPTERS };

static tutti_model *open_all(const char *type, int n_threads)
{
    tutti_model *model = opened_model("llama-tiny", type, "f16", n_threads);
    for (int i = 1; i < N_ADAPTERS; i++) {
        char path[512];
        struct tutti_error err;
        snprintf(path, sizeof path, TEST_FIXTURES "/adapters/%s", ADAPTERS[i]);
        if (tutti_model_add_adapter(model, ADAPTERS[i], path, &err) != TUTTI_OK)
            fail_msg("%s", err.text);
    }
    return model;
}

/* Greedy and sampled answers, some with a repetition penalty, beams or log-probabilities of the prompt. */
static struct tutti_request make_request(int number, int32_t *ids)
{
    struct tutti_request r = { .ids = ids,
                               .n_ids = (size_t)(1 + number * 13 % (MAX_PROMPT - 1)),
                               .max_tokens = 8 + number % 9,
                               .ignore_eos = true,
                               .logprobs = true,
                               .adapter = ADAPTERS[number % N_ADAPTERS] };
    for (size_t i = 0; i < r.n_ids; i++)
        ids[i] = (int32_t)((i * 31 + (i > 20 ? (size_t)number * 17 : 0)) % 97);
    tutti_sampling_init(&r.sampling, NULL);
    r.sampling.temperature = number % 3 == 0 ? 0 : 1;
    r.sampling.has_seed = true;
    r.sampling.seed = (uint64_t)number;
    r.sampling.repetition_penalty = number % 4 == 1 ? 1.3f : 1;
    if (number % 11 == 5) {
        r.n_beams = 3;
        r.n_choices = 2;
        r.length_penalty = 1;
    } else {
        r.prompt_logprobs = number % 5 == 2;
    }
    return r;
}

/* The first step waits here until all have asked. */
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

static void ask_all(struct collect *answers, const struct tutti_engine_options *options, const char *type,
                    int n_threads, bool is_together)
{
    static int32_t ids[N_REQUESTS][MAX_PROMPT];
    tutti_model *model = open_all(type, n_threads);
    atomic_bool have_all_asked = !is_together;
    struct engine_hooks hooks = { .logits = hold, .user = &have_all_asked };
    tutti_engine *engine = opened_engine(model, options, &hooks);
    for (int i = 0; i < N_REQUESTS; i++) {
        struct tutti_request request = make_request(i, ids[i]);
        collect_init(&answers[i]);
        collect_submit(&answers[i], engine, &request);
        if (!is_together)
            collect_wait(&answers[i]);
    }
    atomic_store(&have_all_asked, true);
    for (int i = 0; i < N_REQUESTS; i++) {
        collect_wait(&answers[i]);
        assert_int_equal(answers[i].n_prompt_tokens, make_request(i, ids[i]).n_ids);
        assert_true(answers[i].n_cached_tokens < answers[i].n_prompt_tokens);
    }
    struct tutti_stats stats;
    wait_until_idle(engine, &stats);
    tutti_engine_close(engine);
    tutti_model_close(model);
}

static bool are_equal(const struct ids *a, const struct ids *b)
{
    return a->n == b->n && (a->n == 0 || memcmp(a->ids, b->ids, a->n * sizeof *a->ids) == 0);
}

static void answers_have_the_same_bits_alone_and_among_64_users(void **state)
{
    (void)state;
    static const struct {
        const char *type;
        int n_threads;
        struct tutti_engine_options options;
    } SETTINGS[] = {
        { "f32", 3, { .kv_bytes = 4 << 20, .max_context = MAX_CONTEXT, .max_seqs = 64 } },
        { "f32",
          2,
          { .kv_bytes = 1 << 19, .max_context = MAX_CONTEXT, .max_seqs = 64, .max_batch_tokens = 11 } },
        { "q8_0", 2, { .kv_bytes = 4 << 20, .max_context = MAX_CONTEXT, .max_seqs = 64 } },
    };
    for (int s = 0; s < 3; s++) {
        static struct collect want[N_REQUESTS], got[N_REQUESTS];
        struct tutti_engine_options single = { .kv_bytes = 4 << 20,
                                               .max_context = MAX_CONTEXT,
                                               .no_prefix_cache = true };
        ask_all(want, &single, SETTINGS[s].type, 1, false);
        ask_all(got, &SETTINGS[s].options, SETTINGS[s].type, SETTINGS[s].n_threads, true);
        for (int i = 0; i < N_REQUESTS; i++) {
            for (int c = 0; c < want[i].n_choices; c++)
                if (!are_equal(&got[i].choices[c].ids, &want[i].choices[c].ids) ||
                    !are_equal(&got[i].choices[c].logprob_bits, &want[i].choices[c].logprob_bits))
                    fail_msg("setting %d: request %d has another answer than by itself", s, i);
            assert_true(are_equal(&got[i].prompt_bits, &want[i].prompt_bits));
            if (i % 5 == 2 && i % 11 != 5)
                assert_int_equal(got[i].prompt_ids.n, got[i].n_prompt_tokens);
            collect_clear(&want[i]);
            collect_clear(&got[i]);
        }
    }
}

static void read_ids(const json_t *list, int32_t *ids, size_t *n)
{
    *n = json_array_size(list);
    assert_true(*n > 0 && *n <= 128);
    for (size_t i = 0; i < *n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
}

/* Prompts in small chunks, and with draft tokens where the model allows them. */
static void answers_are_those_of_peft_and_of_the_publishers(void **state)
{
    (void)state;
    static const char *const KINDS[][2] = { { "llama-dora", "llama-tiny" },
                                            { "llama-saved", "llama-tiny" },
                                            { "llama-prefix", "llama-tiny" },
                                            { "llama-prompt", "llama-tiny" },
                                            { "llama-p-tuning", "llama-tiny" },
                                            { "gpt2-prefix", "gpt2-tiny" },
                                            { "gpt2-prompt", "gpt2-tiny" },
                                            { "chatglm3-prefix", "chatglm3-tiny" },
                                            { "chatglm3-prefix-mlp", "chatglm3-tiny" },
                                            { "chatglm-6b-prefix", "chatglm-6b-tiny" },
                                            { "chatglm-6b-prefix-mlp", "chatglm-6b-tiny" } };
    for (size_t k = 0; k < sizeof KINDS / sizeof *KINDS; k++) {
        char path[512];
        int32_t prompt[128], want[128];
        struct tutti_error err;
        struct collect c;
        size_t n_want;
        bool has_prefix = strstr(KINDS[k][0], "6b") != NULL;
        struct tutti_request r = { .ids = prompt, .ignore_eos = true, .adapter = "a" };
        struct tutti_engine_options options = { .kv_bytes = 4 << 20,
                                                .max_batch_tokens = has_prefix ? 0 : 9,
                                                .max_lookup_tokens = has_prefix ? 0 : 4 };
        tutti_model *model = opened_model(KINDS[k][1], "f32", "f32", 2);
        snprintf(path, sizeof path, TEST_FIXTURES "/adapters/%s", KINDS[k][0]);
        if (tutti_model_add_adapter(model, "a", path, &err) != TUTTI_OK)
            fail_msg("%s", err.text);
        strcat(path, "/golden.json");
        json_t *golden = json_load_file(path, 0, NULL);
        const json_t *greedy = json_object_get(golden, "greedy");
        read_ids(json_object_get(greedy, "prompt_ids"), prompt, &r.n_ids);
        read_ids(json_object_get(greedy, "answer_ids"), want, &n_want);
        tutti_sampling_init(&r.sampling, NULL);
        r.sampling.temperature = 0;
        r.max_tokens = (int)n_want;
        tutti_engine *engine = opened_engine(model, &options, NULL);
        collect_init(&c);
        collect_submit(&c, engine, &r);
        collect_wait(&c);
        if (c.choices[0].ids.n != n_want || memcmp(c.choices[0].ids.ids, want, n_want * sizeof *want) != 0)
            fail_msg("%s: another answer than expected", KINDS[k][0]);
        assert_int_equal(c.n_prompt_tokens, r.n_ids);
        collect_clear(&c);
        tutti_engine_close(engine);
        tutti_model_close(model);
        json_decref(golden);
    }
}

static size_t cached_tokens(tutti_engine *engine, const char *adapter, size_t n_ids)
{
    int32_t ids[MAX_CONTEXT];
    struct collect c;
    struct tutti_stats stats;
    for (size_t i = 0; i < n_ids; i++)
        ids[i] = (int32_t)i;
    struct tutti_request r = { .ids = ids, .n_ids = n_ids, .max_tokens = 1, .adapter = adapter };
    tutti_sampling_init(&r.sampling, NULL);
    collect_init(&c);
    collect_submit(&c, engine, &r);
    collect_wait(&c);
    wait_until_idle(engine, &stats);
    size_t n = c.n_cached_tokens;
    collect_clear(&c);
    return n;
}

static void prefixes_are_on_the_kv_account_and_cached_by_adapter(void **state)
{
    (void)state;
    tutti_model *model = open_all("f32", 2);
    struct tutti_engine_options options = { .kv_bytes = 4 << 20, .max_context = MAX_CONTEXT };
    tutti_engine *engine = opened_engine(model, &options, NULL);
    struct tutti_stats stats;
    /* 19 virtual tokens and 20 of the prompt fill two pages of three. */
    assert_int_equal(cached_tokens(engine, "llama-prefix", 20), 0);
    tutti_engine_stats(engine, &stats);
    assert_int_equal(stats.kv_pages_cached, 2);
    assert_int_equal(stats.n_prompt_tokens, 20);
    assert_int_equal(cached_tokens(engine, NULL, 20), 0);
    tutti_engine_stats(engine, &stats);
    assert_int_equal(stats.kv_pages_cached, 3);
    assert_int_equal(cached_tokens(engine, "llama-prompt", 20), 0);
    assert_int_equal(cached_tokens(engine, "llama-prefix", 20), 2 * PAGE_TOKENS - N_PREFIX);
    assert_int_equal(cached_tokens(engine, NULL, 20), PAGE_TOKENS);
    tutti_engine_close(engine);
    tutti_model_close(model);
}

/* The first token's hidden state follows those of virtual tokens, which may fill the first steps of the prompt. */
static void the_first_hidden_state_does_not_depend_on_the_steps(void **state)
{
    static const int BATCHES[] = { 256, 24, 19, 16, 8, 4 };
    static const char *const NAMES[] = { "llama-prefix", "llama-prompt" };
    enum { N_IDS = 40 };
    (void)state;
    tutti_model *model = open_all("f32", 1);
    int32_t ids[N_IDS];
    for (int i = 0; i < N_IDS; i++)
        ids[i] = i * 31 % 97;
    for (size_t k = 0; k < sizeof NAMES / sizeof *NAMES; k++) {
        struct ids first = { 0 };
        for (size_t i = 0; i < sizeof BATCHES / sizeof *BATCHES; i++) {
            struct tutti_engine_options options = {
                .kv_bytes = 4 << 20, .max_seqs = 4, .max_batch_tokens = BATCHES[i], .max_context = MAX_CONTEXT
            };
            tutti_engine *engine = opened_engine(model, &options, NULL);
            struct tutti_request r = {
                .ids = ids, .n_ids = N_IDS, .adapter = NAMES[k], .embedding = TUTTI_EMBEDDING_FIRST
            };
            struct collect c;
            tutti_sampling_init(&r.sampling, NULL);
            collect_init(&c);
            collect_submit(&c, engine, &r);
            collect_wait(&c);
            assert_true(c.embedding_bits.n > 0);
            if (i == 0)
                assert_true(ids_add_all(&first, c.embedding_bits.ids, c.embedding_bits.n));
            assert_int_equal(c.embedding_bits.n, first.n);
            assert_memory_equal(c.embedding_bits.ids, first.ids, first.n * sizeof *first.ids);
            collect_clear(&c);
            tutti_engine_close(engine);
        }
        ids_clear(&first);
    }
    tutti_model_close(model);
}

static void virtual_tokens_are_a_part_of_the_context(void **state)
{
    (void)state;
    tutti_model *model = open_all("f32", 1);
    struct tutti_engine_options options = { .kv_bytes = 4 << 20, .max_context = MAX_CONTEXT };
    tutti_engine *engine = opened_engine(model, &options, NULL);
    int32_t ids[MAX_CONTEXT] = { 0 };
    struct tutti_error err;
    struct collect c;
    for (int n = MAX_CONTEXT - N_PREFIX - 1; n <= MAX_CONTEXT - N_PREFIX; n++) {
        struct tutti_request r = {
            .ids = ids, .n_ids = (size_t)n, .ignore_eos = true, .adapter = "llama-prefix"
        };
        tutti_sampling_init(&r.sampling, NULL);
        collect_init(&c);
        if (n == MAX_CONTEXT - N_PREFIX) {
            assert_int_equal(tutti_engine_submit(engine, &r, collect_event, &c, &c.id, &err), TUTTI_E_LIMIT);
            assert_non_null(strstr(err.text, "93"));
        } else {
            collect_submit(&c, engine, &r);
            collect_wait(&c);
            assert_int_equal(c.choices[0].ids.n, 1);
            assert_int_equal(c.choices[0].finish, TUTTI_FINISH_LENGTH);
        }
        collect_clear(&c);
    }
    tutti_engine_close(engine);
    options.max_context = N_PREFIX;
    engine = opened_engine(model, &options, NULL);
    struct tutti_request r = { .ids = ids, .n_ids = 1, .adapter = "llama-prefix" };
    tutti_sampling_init(&r.sampling, NULL);
    assert_int_equal(tutti_engine_submit(engine, &r, collect_event, &c, &c.id, &err), TUTTI_E_LIMIT);
    assert_non_null(strstr(err.text, "19 virtual tokens, but the context ends at 19"));
    tutti_engine_close(engine);
    tutti_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_have_the_same_bits_alone_and_among_64_users),
        cmocka_unit_test(answers_are_those_of_peft_and_of_the_publishers),
        cmocka_unit_test(prefixes_are_on_the_kv_account_and_cached_by_adapter),
        cmocka_unit_test(the_first_hidden_state_does_not_depend_on_the_steps),
        cmocka_unit_test(virtual_tokens_are_a_part_of_the_context),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
