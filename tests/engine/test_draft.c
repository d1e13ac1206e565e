/* The draft model: every answer is the same as without it, for one request and for several, with few rows, without pages,
 * for choices of one prompt; it follows the sequences it drafts for; and models that do not fit are refused with what differs. */
#include "support/asked.h"
#include "support/questions.h"

#include "engine/speculate/draft.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_REQUESTS = 60 };

/* ---- a mock model ---- */

static struct tutti_stats ask(struct tutti_engine_options options, int percent_wrong, int n_choices)
{
    struct mock_model *draft = mock_model_new(ASKED_CTX, true);
    draft->percent_wrong = percent_wrong;
    options.kv_bytes *= 2; /* half of it is the draft model's */
    struct tutti_stats stats = asked_all(&options, draft, N_REQUESTS / n_choices, n_choices);
    assert_true(stats.n_accepted_model_drafts <= stats.n_accepted_drafts);
    assert_int_equal(stats.n_draft_rows, draft->n_rows);
    assert_int_equal(stats.n_draft_passes, draft->n_steps);
    mock_model_free(draft);
    return stats;
}

/* One that says the same as the target is always right: all that it has computed is what the target has. */
static void a_perfect_draft_model_is_always_right(void **state)
{
    (void)state;
    for (int max_seqs = 1; max_seqs <= 16; max_seqs *= 4)
        for (int most = 1; most <= MAX_DRAFT_TOKENS; most *= 4)
            for (int n_choices = 1; n_choices <= 4; n_choices += 3) {
                struct tutti_stats stats = ask(
                    (struct tutti_engine_options){
                        .kv_bytes = asked_page_bytes(512), .max_seqs = max_seqs, .max_draft_tokens = most },
                    0, n_choices);
                assert_true(stats.n_accepted_model_drafts > 500);
                assert_int_equal(stats.n_rejected_model_drafts, 0);
                assert_true(stats.draft_pages_cached > 0);
            }
}

/* One that errs in 30 of 100 places is right in the other 70, so rejected drafts are forgotten. */
static void rejected_drafts_are_forgotten(void **state)
{
    (void)state;
    for (int no_cache = 0; no_cache < 2; no_cache++) {
        struct tutti_stats stats = ask((struct tutti_engine_options){ .kv_bytes = asked_page_bytes(512),
                                                                      .max_seqs = 4,
                                                                      .no_prefix_cache = no_cache,
                                                                      .max_draft_tokens = 1 },
                                       30, 1);
        assert_true(stats.n_rejected_model_drafts > 100);
        assert_true((double)stats.n_accepted_model_drafts >
                    0.68 * (double)(stats.n_accepted_model_drafts + stats.n_rejected_model_drafts));
    }
}

/* What the draft model need not read again shows in its rows, and so in the time of a step. */
static void its_cache_is_divided_by_tenant(void **state)
{
    (void)state;
    static const uint64_t order[] = { 1, 1, 2, 2, 0, 1 };
    uint64_t n_rows[6], before = 0;
    struct mock_model *mock = mock_model_new(ASKED_CTX, true), *draft = mock_model_new(ASKED_CTX, true);
    struct tutti_engine_options options = { .kv_bytes = 2 * asked_page_bytes(512),
                                            .max_seqs = 1,
                                            .max_draft_tokens = 4,
                                            .draft = model_handle(&draft->model) };
    tutti_engine *engine = mock_engine(mock, &options, &(struct engine_hooks){ .forces_drafts = true });
    for (int i = 0; i < 6; i++) {
        struct asked a;
        struct collect c;
        struct tutti_stats stats;
        asked_make(&a, 3, 1);
        a.request.tenant = order[i];
        collect_init(&c);
        collect_submit(&c, engine, &a.request);
        collect_wait(&c);
        asked_check(&c, &a.request, ASKED_CTX, true);
        collect_clear(&c);
        tutti_engine_stats(engine, &stats);
        n_rows[i] = stats.n_draft_rows - before;
        before = stats.n_draft_rows;
    }
    assert_true(n_rows[1] + MOCK_PAGE_TOKENS <= n_rows[0]);
    assert_int_equal(n_rows[2], n_rows[0]);
    assert_int_equal(n_rows[3], n_rows[1]);
    assert_int_equal(n_rows[4], n_rows[0]);
    assert_int_equal(n_rows[5], n_rows[1]);
    tutti_engine_close(engine);
    mock_model_free(draft);
    mock_model_free(mock);
}

static void answers_are_the_same_whatever_it_says(void **state)
{
    (void)state;
    static const int rows[] = { 0, 1, 2, 5, 17 };
    for (int percent = 0; percent <= 100; percent += 50)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            for (int lookup = 0; lookup <= 5; lookup += 5) {
                bool is_narrow = rows[i] > 0 && rows[i] <= 5;
                struct tutti_stats stats = ask(
                    (struct tutti_engine_options){ .kv_bytes = asked_page_bytes(512),
                                                   .max_seqs = 5,
                                                   .max_batch_tokens = rows[i],
                                                   .max_lookup_tokens = lookup },
                    percent, 1);
                assert_true(is_narrow || stats.n_accepted_model_drafts + stats.n_rejected_model_drafts > 100);
                assert_true(lookup == 0 || is_narrow ||
                            stats.n_accepted_drafts > stats.n_accepted_model_drafts);
            }
}

static void answers_are_the_same_when_pages_run_out(void **state)
{
    (void)state;
    for (int n_choices = 1; n_choices <= 4; n_choices += 3)
        for (int n_pages = 5; n_pages <= 20; n_pages += 5) {
            struct tutti_stats stats = ask(
                (struct tutti_engine_options){ .kv_bytes = asked_page_bytes(n_pages),
                                               .max_seqs = 8,
                                               .max_lookup_tokens = n_pages % 2 ? 4 : 0,
                                               .max_slowdown = 1000 },
                20, n_choices);
            assert_true(stats.n_accepted_model_drafts > 0);
            assert_true(stats.n_preemptions > 0);
        }
}

static void it_stops_at_the_end_of_its_own_context(void **state)
{
    (void)state;
    struct mock_model *draft = mock_model_new(40, true);
    struct tutti_engine_options options = { .kv_bytes = asked_page_bytes(512), .max_seqs = 3 };
    struct tutti_stats stats = asked_all(&options, draft, N_REQUESTS, 1);
    assert_true(stats.n_accepted_model_drafts > 50);
    assert_int_equal(stats.n_rejected_model_drafts, 0);
    mock_model_free(draft);
}

static void its_pages_may_have_another_size(void **state)
{
    (void)state;
    static const int SIZES[] = { 5, 24 };
    for (int i = 0; i < 2; i++) {
        mock_page_tokens = SIZES[i];
        struct mock_model *draft = mock_model_new(ASKED_CTX, true);
        mock_page_tokens = MOCK_PAGE_TOKENS;
        struct tutti_engine_options options = { .kv_bytes = asked_page_bytes(128), .max_seqs = 3 };
        struct tutti_stats stats = asked_all(&options, draft, N_REQUESTS, 1);
        assert_true(stats.n_accepted_drafts > 0);
        mock_model_free(draft);
    }
}

static void it_shares_the_memory_for_keys_and_values(void **state)
{
    (void)state;
    struct mock_model *draft = mock_model_new(ASKED_CTX, true);
    struct tutti_engine_options options = { .kv_bytes = asked_page_bytes(64), .max_seqs = 8 };
    assert_int_equal(asked_all(&options, NULL, 4, 1).kv_pages_total, 64);
    assert_int_equal(asked_all(&options, draft, 4, 1).kv_pages_total, 32);
    mock_model_free(draft);
}

/* No drafts where they cannot be verified, or where the request switches them off. */
static void requests_that_do_not_speculate_do_not_ask_it(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        struct mock_model *mock = mock_model_new(ASKED_CTX, false), *draft = mock_model_new(ASKED_CTX, false);
        struct tutti_engine_options options = { .kv_bytes = asked_page_bytes(128),
                                                .draft = model_handle(&draft->model) };
        tutti_engine *engine = mock_engine(mock, &options, &(struct engine_hooks){ .forces_drafts = true });
        struct asked asked;
        struct collect c;
        struct tutti_stats stats;
        asked_make(&asked, 2, 1);
        asked.request.max_tokens = 40;
        asked.request.max_draft_tokens = kind == 0 ? -1 : 0;
        asked.request.n_beams = kind == 1 ? 3 : 0;
        asked.request.no_kv_cache = kind == 2;
        collect_init(&c);
        collect_submit(&c, engine, &asked.request);
        collect_wait(&c);
        wait_until_idle(engine, &stats);
        assert_int_equal(draft->n_steps, 0);
        assert_int_equal(stats.n_accepted_drafts + stats.n_rejected_drafts, 0);
        collect_clear(&c);
        tutti_engine_close(engine);
        mock_model_free(draft);
        mock_model_free(mock);
    }
}

/* A prompt may hold any id of the target's rows, of which the draft model may have fewer: none beyond its own reach it. */
static void ids_that_it_does_not_have_do_not_reach_it(void **state)
{
    (void)state;
    struct mock_model *mock = mock_model_new(ASKED_CTX, false), *draft = mock_model_new(ASKED_CTX, false);
    struct tutti_engine_options options = { .kv_bytes = 2 * asked_page_bytes(512),
                                            .max_draft_tokens = 4,
                                            .draft = model_handle(&draft->model) };
    mock->model.desc.n_vocab += 8;
    tutti_engine *engine = mock_engine(mock, &options, &(struct engine_hooks){ .forces_drafts = true });
    struct collect c;
    struct asked asked;
    struct tutti_stats stats;
    asked_make(&asked, 1, 1);
    int32_t ids[] = { 5, MOCK_VOCAB + 7, 6, MOCK_VOCAB, 7 };
    asked.request.ids = ids;
    asked.request.n_ids = sizeof ids / sizeof *ids;
    asked.request.max_tokens = 20;
    collect_init(&c);
    collect_submit(&c, engine, &asked.request);
    collect_wait(&c);
    wait_until_idle(engine, &stats);
    assert_true(draft->n_rows > 0);
    collect_clear(&c);
    tutti_engine_close(engine);
    mock_model_free(draft);
    mock_model_free(mock);
}

/* Without being forced. What pays is for test_speculation.c to say: durations are not certain here. */
static void it_is_asked_of_its_own_accord(void **state)
{
    (void)state;
    for (int percent = 0; percent <= 100; percent += 100) {
        struct mock_model *mock = mock_model_new(ASKED_CTX, false), *draft = mock_model_new(ASKED_CTX, false);
        mock->step_us = 2000;
        draft->percent_wrong = percent;
        struct tutti_engine_options options = { .kv_bytes = asked_page_bytes(128),
                                                .draft = model_handle(&draft->model) };
        tutti_engine *engine = mock_engine(mock, &options, NULL);
        struct collect c;
        struct asked asked;
        struct tutti_stats stats;
        asked_make(&asked, 1, 1);
        asked.request.max_tokens = 180;
        asked.request.sampling = (struct tutti_sampling){
            .temperature = 1, .top_p = 1, .repetition_penalty = 1, .has_seed = true, .seed = 1
        };
        collect_init(&c);
        collect_submit(&c, engine, &asked.request);
        collect_wait(&c);
        asked_check(&c, &asked.request, ASKED_CTX, false);
        wait_until_idle(engine, &stats);
        assert_true(draft->n_steps > 0);
        assert_int_equal(stats.n_steps + stats.n_accepted_model_drafts, 180);
        collect_clear(&c);
        tutti_engine_close(engine);
        mock_model_free(draft);
        mock_model_free(mock);
    }
}

static void models_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    static const struct {
        int kind;
        enum tutti_status status;
        const char *words;
    } cases[] = {
        { 0, TUTTI_E_ARGUMENT, "draft model mock has a vocabulary of 44 tokens, model mock one of 45" },
        { 1, TUTTI_E_UNSUPPORTED, "has bidirectional attention over the prompt" },
        { 2, TUTTI_E_ARGUMENT, "cannot be its own draft model" },
        { 3, TUTTI_E_ARGUMENT, "an engine is open on it already" },
        { 4, TUTTI_E_ARGUMENT, "max_draft_tokens is 33, expected 0 to 32" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct mock_model *mock = mock_model_new(ASKED_CTX, false), *draft = mock_model_new(ASKED_CTX, false);
        struct tutti_engine_options options = { .kv_bytes = asked_page_bytes(128),
                                                .draft = model_handle(&draft->model) };
        struct tutti_error err = { 0 };
        draft->model.desc.n_usable_vocab -= cases[i].kind == 0;
        draft->model.desc.has_prefix = cases[i].kind == 1;
        if (cases[i].kind == 2)
            options.draft = model_handle(&mock->model);
        draft->model.in_use = cases[i].kind == 3;
        options.max_draft_tokens = cases[i].kind == 4 ? 33 : 0;
        assert_int_equal(mock_engine_try(mock, &options, &err), cases[i].status);
        if (!strstr(err.text, cases[i].words))
            fail_msg("\"%s\" does not say \"%s\"", err.text, cases[i].words);
        assert_string_equal(err.param, cases[i].kind == 3   ? ""
                                       : cases[i].kind == 4 ? "max_draft_tokens"
                                                            : "draft");
        draft->model.in_use = cases[i].kind == 3 && draft->model.in_use ? false : draft->model.in_use;
        mock_model_free(draft);
        mock_model_free(mock);
    }
}

/* ---- a real model ---- */

enum { MAX_TOKENS = 40 };

static tutti_model *open_model(const char *path, const char *weight_type)
{
    tutti_model *model = NULL;
    struct tutti_error err = { 0 };
    struct tutti_model_options options = { .n_threads = 2, .weight_type = weight_type };
    if (tutti_model_open(&model, path, &options, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return model;
}

/* all [N_QUESTIONS]. */
static struct tutti_stats ask_model(tutti_model *model, const struct tutti_engine_options *options,
                                    bool forces, struct collect *all)
{
    static const struct tutti_string stop = { " the ", 5 };
    tutti_engine *engine = NULL;
    struct tutti_error err = { 0 };
    struct tutti_stats stats;
    struct question *q = calloc(N_QUESTIONS, sizeof *q);
    if (engine_open(&engine, model_of(model), options, &(struct engine_hooks){ .forces_drafts = forces },
                    &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < N_QUESTIONS; i++) {
        question_make(&q[i], i, MAX_TOKENS);
        q[i].request.ignore_eos = i % 3 == 1;
        q[i].request.logprobs = true;
        q[i].request.top_logprobs = 2;
        q[i].request.stop = &stop;
        q[i].request.n_stop = i % 5 == 2;
        if (i % 7 == 3) {
            q[i].request.grammar_kind = TUTTI_GRAMMAR_GBNF;
            q[i].request.grammar = "root ::= [a-z ]+";
            q[i].request.n_grammar_bytes = strlen(q[i].request.grammar);
        }
        collect_init(&all[i]);
        collect_submit(&all[i], engine, &q[i].request);
    }
    for (int i = 0; i < N_QUESTIONS; i++)
        collect_wait(&all[i]);
    wait_until_idle(engine, &stats);
    tutti_engine_close(engine);
    free(q);
    return stats;
}

static void check_same(struct collect *got, const struct collect *want)
{
    for (int i = 0; i < N_QUESTIONS; i++) {
        const struct collected *a = &got[i].choices[0], *b = &want[i].choices[0];
        assert_int_equal(a->ids.n, b->ids.n);
        assert_memory_equal(a->ids.ids, b->ids.ids, a->ids.n * sizeof *a->ids.ids);
        assert_int_equal(a->logprob_bits.n, b->logprob_bits.n);
        assert_memory_equal(a->logprob_bits.ids, b->logprob_bits.ids,
                            a->logprob_bits.n * sizeof *a->logprob_bits.ids);
        assert_int_equal(a->text.n_bytes, b->text.n_bytes);
        if (a->text.n_bytes > 0)
            assert_memory_equal(a->text.bytes, b->text.bytes, a->text.n_bytes);
        assert_int_equal(a->finish, b->finish);
        collect_clear(&got[i]);
    }
}

static void texts_and_probabilities_of_a_model_are_the_same(void **state)
{
    (void)state;
    tutti_model *model = open_model(TEST_DEMO_MODEL, NULL), *draft = open_model(TEST_DEMO_MODEL, "q8_0");
    struct tutti_model_info info;
    tutti_model_info(model, &info);
    uint64_t bytes = info.kv_bytes_per_token * 16;
    struct collect *want = calloc(N_QUESTIONS, sizeof *want), *got = calloc(N_QUESTIONS, sizeof *got);
    /* The more run at once, the fewer are drafted for. */
    struct tutti_engine_options options = { .kv_bytes = 4000 * bytes, .max_seqs = 4 };
    ask_model(model, &options, false, want);
    options.draft = draft;
    for (int lookup = 0; lookup <= 6; lookup += 6)
        for (int forces = 0; forces < 2; forces++) {
            options.max_lookup_tokens = lookup;
            struct tutti_stats stats = ask_model(model, &options, forces, got);
            check_same(got, want);
            if (forces) {
                assert_true(stats.n_accepted_model_drafts > 100);
                assert_true(stats.n_accepted_model_drafts > 4 * stats.n_rejected_model_drafts);
            }
        }
    options.max_batch_tokens = 24;
    options.max_seqs = 8;
    options.kv_bytes = 18 * bytes;
    options.max_slowdown = 1000;
    struct tutti_stats stats = ask_model(model, &options, true, got);
    assert_true(stats.n_preemptions > 0);
    check_same(got, want);
    for (int i = 0; i < N_QUESTIONS; i++)
        collect_clear(&want[i]);
    free(want);
    free(got);
    tutti_model_close(draft);
    tutti_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_perfect_draft_model_is_always_right),
        cmocka_unit_test(rejected_drafts_are_forgotten),
        cmocka_unit_test(its_cache_is_divided_by_tenant),
        cmocka_unit_test(answers_are_the_same_whatever_it_says),
        cmocka_unit_test(answers_are_the_same_when_pages_run_out),
        cmocka_unit_test(it_stops_at_the_end_of_its_own_context),
        cmocka_unit_test(its_pages_may_have_another_size),
        cmocka_unit_test(it_shares_the_memory_for_keys_and_values),
        cmocka_unit_test(requests_that_do_not_speculate_do_not_ask_it),
        cmocka_unit_test(ids_that_it_does_not_have_do_not_reach_it),
        cmocka_unit_test(it_is_asked_of_its_own_accord),
        cmocka_unit_test(models_that_do_not_fit_are_refused),
        cmocka_unit_test(texts_and_probabilities_of_a_model_are_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
