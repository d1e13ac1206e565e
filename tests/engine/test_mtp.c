/* Multi-token prediction as the source of draft tokens: every answer has the same tokens, log-probabilities and text as
 * without it, for 64 requests at a time of every kind, with few pages, small steps, and from the prefix cache. */
#include "support/collect.h"
#include "support/kv_pages.h"
#include "support/opened.h"

#include "engine/run/engine_state.h"
#include "model/adapters/adapter.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const NAMES[] = { "mtp/glm4-moe", "mtp/deepseek-v3", "mtp/glm4-moe-lite" };
enum { N_NAMES = 3, N_REQUESTS = 64, MAX_PROMPT = 100, N_ANSWER = 40 };

static tutti_model *open_model(const char *name, bool mtp)
{
    char path[512];
    tutti_model *model = NULL;
    struct tutti_error err;
    const struct tutti_model_options options = {
        .weight_type = "f32", .kv_type = "f16", .n_threads = 2, .mtp = mtp
    };
    snprintf(path, sizeof path, TEST_FIXTURES "/%s", name);
    if (tutti_model_open(&model, path, &options, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    if (model_make_adapter(model_of(model), "tuned", 3, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return model;
}

/* Most prompts begin alike, further than two pages. */
static size_t make_prompt(int32_t *ids, int number)
{
    size_t n = (size_t)(2 + number * 13 % (MAX_PROMPT - 2));
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(3 + (i * 37 + (number % 4 == 3 || i > 40 ? (size_t)number * 11 : 0)) % 100);
    return n;
}

/* Requests of every kind, in turn. */
struct question {
    struct tutti_request request;
    struct tutti_string stops[2];
    int32_t ids[MAX_PROMPT];
};

static void make_question(struct question *q, int number)
{
    static const char GRAMMAR[] = "root ::= [a-z0-9 ]+ [.]";
    memset(q, 0, sizeof *q);
    struct tutti_request *r = &q->request;
    *r = (struct tutti_request){ .ids = q->ids,
                                 .n_ids = make_prompt(q->ids, number),
                                 .max_tokens = 1 + (number * 7 + 20) % N_ANSWER,
                                 .logprobs = true,
                                 .top_logprobs = 2,
                                 .ignore_eos = number % 3 == 0 };
    tutti_sampling_init(&r->sampling, NULL);
    r->sampling.temperature = number % 2 ? 0.7F : 0;
    r->sampling.top_p = number % 4 == 1 ? 0.9F : 1;
    r->sampling.has_seed = true;
    r->sampling.seed = (uint64_t)number + 1;
    switch (number % 8) {
    case 1:
        r->n_choices = 3;
        break;
    case 2:
        r->sampling.repetition_penalty = 1.3F;
        r->sampling.presence_penalty = 0.4F;
        r->sampling.frequency_penalty = 0.2F;
        break;
    case 3:
        q->stops[0] = (struct tutti_string){ "e", 1 };
        q->stops[1] = (struct tutti_string){ "ab", 2 };
        r->stop = q->stops;
        r->n_stop = 2;
        break;
    case 4:
        r->grammar_kind = TUTTI_GRAMMAR_GBNF;
        r->grammar = GRAMMAR;
        r->n_grammar_bytes = sizeof GRAMMAR - 1;
        break;
    case 5:
        r->adapter = "tuned";
        break;
    case 6:
        r->n_beams = 3;
        r->n_ids = r->n_ids < 40 ? r->n_ids : 40;
        r->max_tokens = 20;
        r->logprobs = false;
        r->top_logprobs = 0;
        break;
    default:
        break;
    }
}

static void ask(struct collect *answers, tutti_engine *engine)
{
    for (int i = 0; i < N_REQUESTS; i++) {
        struct question q;
        make_question(&q, i);
        collect_init(&answers[i]);
        collect_submit(&answers[i], engine, &q.request);
    }
    for (int i = 0; i < N_REQUESTS; i++)
        collect_wait(&answers[i]);
}

static bool is_same(const void *a, size_t n_a, const void *b, size_t n_b)
{
    return n_a == n_b && (n_a == 0 || memcmp(a, b, n_a) == 0);
}

static void check_same(const struct collect *got, const struct collect *want, const char *name,
                       const char *how, int number)
{
    assert_int_equal(got->n_choices, want->n_choices);
    for (int k = 0; k < got->n_choices; k++) {
        const struct collected *a = &got->choices[k], *b = &want->choices[k];
        if (!is_same(a->ids.ids, a->ids.n * 4, b->ids.ids, b->ids.n * 4) ||
            !is_same(a->logprob_bits.ids, a->logprob_bits.n * 4, b->logprob_bits.ids,
                     b->logprob_bits.n * 4) ||
            !is_same(a->text.bytes, a->text.n_bytes, b->text.bytes, b->text.n_bytes) ||
            a->finish != b->finish)
            fail_msg(
                "%s, %s, request %d, choice %d: another answer: %zu tokens, finish %d: %s; expected %zu, %d",
                name, how, number, k, a->ids.n, (int)a->finish, a->error.text, b->ids.n, (int)b->finish);
    }
}

/* A run of all requests, twice on one engine: the second time from the prefix cache. */
static struct tutti_stats run(const char *name, bool mtp, const struct tutti_engine_options *options,
                              const struct engine_hooks *hooks, struct collect (*answers)[N_REQUESTS])
{
    tutti_model *model = open_model(name, mtp);
    tutti_engine *engine = opened_engine(model, options, hooks);
    struct tutti_stats stats;
    for (int round = 0; round < 2; round++)
        ask(answers[round], engine);
    wait_until_idle(engine, &stats);
    tutti_engine_close(engine);
    tutti_model_close(model);
    return stats;
}

static uint64_t page_bytes(const char *name, bool mtp)
{
    tutti_model *model = open_model(name, mtp);
    struct backend *be = model_of(model)->backend;
    uint64_t n = be->ops->kv_page_bytes(be, DTYPE_F16);
    tutti_model_close(model);
    return n;
}

static void answers_are_the_same_as_without_it(void **state)
{
    (void)state;
    static const struct {
        const char *how;
        int max_batch_tokens, n_pages, max_draft_tokens, max_lookup_tokens, max_seqs;
        bool no_prefix_cache, is_forced;
    } CASES[] = {
        { "together", 0, 900, 3, 0, 64, false, true },
        { "one draft token", 0, 900, 1, 0, 16, false, true },
        { "few pages", 64, 16, 4, 0, 64, false, true },
        { "small steps", 9, 900, 8, 0, 4, true, true },
        { "with prompt lookup", 0, 60, 5, 4, 8, false, true },
        { "as measured", 0, 900, 0, 0, 32, false, false },
    };
    for (int i = 0; i < N_NAMES; i++) {
        struct collect want[2][N_REQUESTS], got[2][N_REQUESTS];
        uint64_t n_accepted = 0, n_rejected = 0;
        uint64_t plain_bytes = page_bytes(NAMES[i], false), mtp_bytes = page_bytes(NAMES[i], true);
        struct tutti_engine_options options = { .kv_bytes = 900 * plain_bytes, .max_seqs = 64 };
        options.max_context = 160;
        run(NAMES[i], false, &options, NULL, want);
        for (size_t c = 0; c < sizeof CASES / sizeof *CASES; c++) {
            options = (struct tutti_engine_options){ .kv_bytes = (uint64_t)CASES[c].n_pages * mtp_bytes,
                                                     .max_context = 160,
                                                     .max_seqs = CASES[c].max_seqs,
                                                     .max_batch_tokens = CASES[c].max_batch_tokens,
                                                     .max_draft_tokens = CASES[c].max_draft_tokens,
                                                     .max_lookup_tokens = CASES[c].max_lookup_tokens,
                                                     .no_prefix_cache = CASES[c].no_prefix_cache };
            const struct engine_hooks hooks = { .forces_drafts = CASES[c].is_forced };
            struct tutti_stats stats = run(NAMES[i], true, &options, &hooks, got);
            print_message("# %s, %s: %llu accepted, %llu rejected; of the layer %llu, %llu; %llu passes, "
                          "%llu rows, %llu "
                          "preemptions, %llu cached tokens\n",
                          NAMES[i], CASES[c].how, (unsigned long long)stats.n_accepted_drafts,
                          (unsigned long long)stats.n_rejected_drafts,
                          (unsigned long long)stats.n_accepted_model_drafts,
                          (unsigned long long)stats.n_rejected_model_drafts,
                          (unsigned long long)stats.n_draft_passes, (unsigned long long)stats.n_draft_rows,
                          (unsigned long long)stats.n_preemptions, (unsigned long long)stats.n_cached_tokens);
            for (int round = 0; round < 2; round++)
                for (int k = 0; k < N_REQUESTS; k++) {
                    check_same(&got[round][k], &want[round][k], NAMES[i], CASES[c].how, k);
                    collect_clear(&got[round][k]);
                }
            assert_int_equal(stats.kv_pages_total, CASES[c].n_pages);
            assert_true(stats.n_accepted_model_drafts <= stats.n_draft_rows);
            if (!CASES[c].is_forced)
                continue;
            n_accepted += stats.n_accepted_model_drafts;
            n_rejected += stats.n_rejected_model_drafts;
            assert_true(CASES[c].n_pages > 16 || stats.n_preemptions > 0);
            assert_true(CASES[c].no_prefix_cache || CASES[c].n_pages <= 60 || stats.n_cached_tokens > 0);
        }
        assert_true(n_accepted > 200);
        assert_true(n_rejected > 200);
        for (int round = 0; round < 2; round++)
            for (int k = 0; k < N_REQUESTS; k++)
                collect_clear(&want[round][k]);
    }
}

/* What a page of the prefix cache has of the layer is what it would have if it were computed: the same draft tokens are
 * proposed, so that the same numbers are accepted and rejected. */
static void drafts_do_not_depend_on_the_prefix_cache(void **state)
{
    (void)state;
    for (int i = 0; i < N_NAMES; i++) {
        size_t accepted[2], rejected[2];
        tutti_model *model = open_model(NAMES[i], true);
        const struct tutti_engine_options options = { .kv_bytes = 900 * page_bytes(NAMES[i], true),
                                                      .max_context = 160,
                                                      .max_seqs = 2,
                                                      .max_draft_tokens = 4 };
        tutti_engine *engine = opened_engine(model, &options,
                                             &(struct engine_hooks){ .forces_drafts = true });
        for (int round = 0; round < 2; round++) {
            struct question q;
            struct collect answer;
            make_question(&q, 7);
            q.request.n_ids = 65; /* the first row that is computed the second time follows a cached page */
            for (size_t k = 0; k < q.request.n_ids; k++)
                q.ids[k] = (int32_t)(3 + k * 41 % 100);
            q.request.max_tokens = 60;
            q.request.ignore_eos = true;
            collect_init(&answer);
            collect_submit(&answer, engine, &q.request);
            collect_wait(&answer);
            assert_int_equal(answer.n_cached_tokens > 0, round);
            accepted[round] = answer.n_accepted_drafts;
            rejected[round] = answer.n_rejected_drafts;
            collect_clear(&answer);
        }
        assert_true(accepted[0] > 0);
        assert_int_equal(accepted[0], accepted[1]);
        assert_int_equal(rejected[0], rejected[1]);
        tutti_engine_close(engine);
        tutti_model_close(model);
    }
}

/* All pages after a prompt of five pages, as they are stored; freed by the caller. */
static uint8_t *pages_after_prompt(const char *name, int max_batch_tokens, size_t *page_size, int *n_with_row)
{
    enum { N_PAGES = 12, N_TOKENS = 69 };
    tutti_model *model = open_model(name, true);
    struct backend *be = model_of(model)->backend;
    size_t n = be->ops->kv_page_bytes(be, DTYPE_F16);
    const size_t row = (size_t)model_of(model)->desc.d_model * sizeof(float);
    const struct tutti_engine_options options = {
        .kv_bytes = N_PAGES * n, .max_context = 160, .max_seqs = 2, .max_batch_tokens = max_batch_tokens
    };
    tutti_engine *engine = opened_engine(model, &options, NULL);
    uint8_t *pages = calloc(N_PAGES, n), zeros[4096] = { 0 };
    struct tutti_stats stats;
    struct collect answer;
    struct question q;
    make_question(&q, 0);
    for (int k = 0; k < N_TOKENS; k++)
        q.ids[k] = 3 + k * 41 % 100;
    q.request.n_ids = N_TOKENS;
    q.request.max_tokens = 1;
    collect_init(&answer);
    collect_submit(&answer, engine, &q.request);
    collect_wait(&answer);
    wait_until_idle(engine, &stats);
    collect_clear(&answer);
    *n_with_row = 0;
    assert_true(pages && row <= sizeof zeros);
    for (int32_t i = 0; i < N_PAGES; i++) {
        kv_read_now(be, engine->kv, i, pages + (size_t)i * n);
        *n_with_row += memcmp(pages + (size_t)(i + 1) * n - row, zeros, row) != 0;
    }
    *page_size = N_PAGES * n;
    tutti_engine_close(engine);
    tutti_model_close(model);
    return pages;
}

static void pages_do_not_depend_on_how_a_prompt_is_cut(void **state)
{
    (void)state;
    static const int ROWS[] = { 1, 7, 16, 33 };
    for (int i = 0; i < N_NAMES; i++) {
        size_t n, n_other;
        int n_with_row;
        uint8_t *whole = pages_after_prompt(NAMES[i], 128, &n, &n_with_row);
        assert_int_equal(n_with_row, 5);
        for (int k = 0; k < 4; k++) {
            uint8_t *other = pages_after_prompt(NAMES[i], ROWS[k], &n_other, &n_with_row);
            assert_int_equal(n, n_other);
            assert_memory_equal(whole, other, n);
            free(other);
        }
        free(whole);
    }
}

/* Where it is loaded, a draft model has no place. */
static void a_draft_model_is_refused_next_to_it(void **state)
{
    (void)state;
    tutti_model *model = open_model(NAMES[0], true), *draft = open_model(NAMES[0], false);
    const struct tutti_engine_options options = { .draft = draft, .max_context = 64 };
    tutti_engine *engine = NULL;
    struct tutti_error err;
    assert_int_equal(tutti_engine_open(&engine, model, &options, &err), TUTTI_E_ARGUMENT);
    assert_string_equal(err.param, "draft");
    tutti_model_close(draft);
    tutti_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_the_same_as_without_it),
        cmocka_unit_test(drafts_do_not_depend_on_the_prefix_cache),
        cmocka_unit_test(pages_do_not_depend_on_how_a_prompt_is_cut),
        cmocka_unit_test(a_draft_model_is_refused_next_to_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
