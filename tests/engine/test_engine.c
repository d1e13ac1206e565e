/* The engine with a model whose answers are known: every request, in whatever company, gets exactly its own. */
#include "support/collect.h"
#include "support/mock_model.h"

#include "base/rng.h"
#include "base/system/clock.h"
#include "engine/run/engine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_CTX = 256 };

static uint64_t page_bytes(int n_pages)
{
    return (uint64_t)n_pages * MOCK_PAGE_TOKENS * sizeof(int32_t);
}

static struct tutti_request request_of(const int32_t *ids, size_t n_ids, uint64_t seed, int max_tokens)
{
    struct tutti_request r = { .ids = ids, .n_ids = n_ids, .max_tokens = max_tokens };
    r.sampling = (struct tutti_sampling){
        .temperature = 1, .top_p = 1, .repetition_penalty = 1, .has_seed = true, .seed = seed
    };
    return r;
}

/* Prompts of a few families, so that beginnings are shared; ids [N_CTX]. */
static size_t make_prompt(uint64_t number, int32_t *ids)
{
    size_t n = 1 + mix64(number) % 100;
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)(mix64((i < 40 ? number % 3 : number) ^ (uint64_t)i << 32) % MOCK_USABLE);
    return n;
}

static void check_answer(const struct collect *c, const struct tutti_request *r, int max_context,
                         bool has_stop)
{
    int32_t want[N_CTX];
    for (int choice = 0; choice < c->n_choices; choice++) {
        int n = mock_answer(r, choice, max_context, has_stop, want, N_CTX);
        const struct collected *got = &c->choices[choice];
        assert_int_equal(got->ids.n, n);
        assert_memory_equal(got->ids.ids, want, (size_t)n * sizeof *want);
        bool is_full = n == r->max_tokens || (size_t)n + r->n_ids == (size_t)max_context;
        assert_int_equal(got->finish, is_full ? TUTTI_FINISH_LENGTH : TUTTI_FINISH_STOP);
    }
}

/* Runs n requests at once and checks each; returns the figures afterwards. */
static struct tutti_stats run_many(const struct tutti_engine_options *options, int n, int n_choices,
                                   bool has_stop)
{
    struct mock_model *mock = mock_model_new(N_CTX, has_stop);
    tutti_engine *engine = mock_engine(mock, options, NULL);
    struct tutti_stats stats;
    tutti_engine_stats(engine, &stats);
    struct collect *all = calloc((size_t)n, sizeof *all);
    struct tutti_request *requests = calloc((size_t)n, sizeof *requests);
    int32_t(*ids)[N_CTX] = calloc((size_t)n, sizeof *ids);
    for (int i = 0; i < n; i++) {
        size_t n_ids = make_prompt((uint64_t)i, ids[i]);
        requests[i] = request_of(ids[i], n_ids, (uint64_t)i, 1 + (int)(mix64((uint64_t)i + 99) % 60));
        requests[i].n_choices = n_choices;
        if (i % 4 == 0)
            requests[i].sampling.temperature = 0;
        if (i % 4 == 1)
            requests[i].sampling.repetition_penalty = 1.3f;
        if (i % 4 == 2)
            requests[i].sampling.top_p = 0.7f;
        collect_init(&all[i]);
        collect_submit(&all[i], engine, &requests[i]);
    }
    for (int i = 0; i < n; i++) {
        collect_wait(&all[i]);
        check_answer(&all[i], &requests[i], stats.max_context, has_stop);
        collect_clear(&all[i]);
    }
    wait_until_idle(engine, &stats);
    assert_int_equal(stats.kv_pages_cached + stats.kv_pages_free, stats.kv_pages_total);
    assert_int_equal(stats.n_finished, n);
    assert_int_equal(stats.n_text_waits, 0);
    tutti_engine_close(engine);
    mock_model_free(mock);
    free(ids);
    free(requests);
    free(all);
    return stats;
}

static void one_request_is_answered(void **state)
{
    (void)state;
    run_many(&(struct tutti_engine_options){ .kv_bytes = page_bytes(64) }, 1, 1, true);
}

static void many_requests_each_get_their_own_answer(void **state)
{
    (void)state;
    struct tutti_stats stats = run_many(
        &(struct tutti_engine_options){ .kv_bytes = page_bytes(4096), .max_seqs = 70 }, 200, 1, true);
    assert_true(stats.n_cached_tokens > 0);
    assert_int_equal(stats.n_preemptions, 0);
}

static void chunks_of_any_size_give_the_same_answers(void **state)
{
    (void)state;
    static const int sizes[] = { 1, 2, 7, 16, 64, 512 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        run_many(&(struct tutti_engine_options){ .kv_bytes = page_bytes(1024), .max_batch_tokens = sizes[i] },
                 40, 1, true);
}

static void a_full_pool_preempts_and_loses_nothing(void **state)
{
    (void)state;
    struct tutti_stats stats = { 0 };
    for (int no_cache = 0; no_cache < 2; no_cache++) {
        stats = run_many(&(struct tutti_engine_options){ .kv_bytes = page_bytes(20),
                                                         .no_prefix_cache = no_cache,
                                                         .max_slowdown = 1000 },
                         150, 1, false);
        assert_true(stats.n_preemptions > 0);
        assert_int_equal(stats.n_cached_tokens > 0, !no_cache);
    }
}

static void a_given_size_of_the_pool_is_kept(void **state)
{
    (void)state;
    int n_pages = 0;
    assert_int_equal(engine_kv_pages(&n_pages, (struct kv_page_size){ 64, 16 }, 64 * 5000, 0, 2, 160, NULL),
                     TUTTI_OK);
    assert_int_equal(n_pages, 5000); /* two contexts have 20: the others are for idle conversations */
    assert_int_equal(
        engine_kv_pages(&n_pages, (struct kv_page_size){ 64, 16 }, 0, UINT64_C(1) << 40, 2, 160, NULL),
        TUTTI_OK);
    assert_int_equal(n_pages, 22); /* beams of full contexts fit as well */
    assert_int_equal(engine_kv_pages(&n_pages, (struct kv_page_size){ 64, 16 }, UINT64_MAX, 0, 2, 160, NULL),
                     TUTTI_OK);
    assert_int_equal(n_pages, INT32_MAX / 2);
    struct tutti_error err;
    assert_int_equal(engine_kv_pages(&n_pages, (struct kv_page_size){ 6144, 16 }, 1024, 0, 1, 512, &err),
                     TUTTI_E_LIMIT);
    assert_string_equal(err.text,
                        "--kv-memory of 1K holds 0 tokens (6K for each page of 16 tokens); the context of "
                        "512 tokens needs 192K: give --kv-memory 192K");
    assert_int_equal(engine_kv_too_small((struct kv_page_size){ 98304, 16 }, 8 << 20, true, 85, 4096, &err),
                     TUTTI_E_LIMIT);
    assert_string_equal(
        err.text, "--kv-memory of 8M holds 1360 tokens (96K for each page of 16 tokens); the context of "
                  "4096 tokens needs 24M: give --kv-memory 24M, or at most --context 1360");
    assert_int_equal(engine_kv_too_small((struct kv_page_size){ 1 << 20, 16 }, UINT64_C(3) << 30, false, 3072,
                                         131072, &err),
                     TUTTI_E_LIMIT);
    assert_string_equal(
        err.text, "without --kv-memory, the share of free memory of 3G holds 49152 tokens (1M for each "
                  "page of 16 tokens); the context of 131072 tokens needs 8G: give --kv-memory 8G, or at "
                  "most --context 49152");
    assert_int_equal(
        engine_kv_too_small((struct kv_page_size){ 98304, 16, 49152 + 512 }, 8 << 20, true, 85, 4096, &err),
        TUTTI_E_LIMIT);
    assert_non_null(
        strstr(err.text, "or at most --context 1360, or --kv-type int8, with which it needs 12416K"));
    struct tutti_stats stats = run_many(
        &(struct tutti_engine_options){ .kv_bytes = page_bytes(700), .max_seqs = 3 }, 40, 1, true);
    assert_int_equal(stats.kv_pages_total, 700);
    assert_int_equal(stats.max_context, N_CTX);
}

/* 4 GiB are left: 512 MiB and an eighth of them are not for keys and values. */
static void a_pool_larger_than_free_memory_is_refused_with_what_fits(void **state)
{
    (void)state;
    struct tutti_error err;
    struct mock_model *mock = mock_model_new(N_CTX, false);
    assert_int_equal(engine_kv_too_large((struct kv_page_size){ 1 << 20, 16 }, UINT64_C(8) << 30,
                                         UINT64_C(4) << 30, 8192, &err),
                     TUTTI_E_LIMIT);
    assert_string_equal(
        err.text,
        "--kv-memory of 8G, but 4G of memory are available: give at most --kv-memory 3G, which holds "
        "49152 tokens, 6 users of 8192 tokens");
    assert_int_equal(
        mock_engine_try(mock, &(struct tutti_engine_options){ .kv_bytes = UINT64_C(1) << 50 }, &err),
        TUTTI_E_LIMIT);
    assert_non_null(strstr(err.text, "--kv-memory of 1024T, but "));
    /* Given memory replaces what is measured; the model's weights are part of it. */
    mock->model.memory_bytes = 4 << 20;
    mock->model.weight_bytes = 3 << 20;
    assert_int_equal(mock_engine_try(mock, &(struct tutti_engine_options){ .kv_bytes = (1 << 20) + 1 }, &err),
                     TUTTI_E_LIMIT);
    assert_non_null(strstr(err.text, "but 1M of memory are available"));
    assert_int_equal(mock_engine_try(mock, &(struct tutti_engine_options){ .kv_bytes = 1 << 20 }, &err),
                     TUTTI_OK);
    mock_model_free(mock);
}

static void a_pool_smaller_than_the_context_limits_the_context(void **state)
{
    (void)state;
    struct tutti_stats stats = run_many(&(struct tutti_engine_options){ .kv_bytes = page_bytes(8) }, 60, 1,
                                        true);
    assert_int_equal(stats.max_context, 8 * MOCK_PAGE_TOKENS);
}

/* The size of a page is the backend's: nothing outside of it may rely on 16, or on a power of two. */
static void pages_of_any_size_give_the_same_answers(void **state)
{
    (void)state;
    static const int SIZES[] = { 1, 5, 24, 64, 1024 };
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        int context_pages = (N_CTX + SIZES[i] - 1) / SIZES[i];
        uint64_t bytes = (uint64_t)(2 * context_pages + 1) * (uint64_t)SIZES[i] * sizeof(int32_t);
        mock_page_tokens = SIZES[i];
        struct tutti_stats stats = run_many(&(struct tutti_engine_options){ .kv_bytes = bytes }, 60, 2, true);
        mock_page_tokens = MOCK_PAGE_TOKENS;
        assert_int_equal(stats.kv_page_tokens, SIZES[i]);
        assert_int_equal(stats.kv_pages_total, 2 * context_pages + 1);
        if (SIZES[i] < 16) /* the prompts share less than 64 tokens */
            assert_true(stats.n_cached_tokens > 0);
    }
}

static void choices_share_the_prompt_and_differ_after_it(void **state)
{
    (void)state;
    run_many(&(struct tutti_engine_options){ .kv_bytes = page_bytes(512) }, 30, 3, true);
    run_many(&(struct tutti_engine_options){ .kv_bytes = page_bytes(512), .max_seqs = 2 }, 10, 5, true);
    run_many(&(struct tutti_engine_options){ .kv_bytes = page_bytes(20) }, 30, 4, true);
    run_many(
        &(struct tutti_engine_options){ .kv_bytes = page_bytes(20), .no_prefix_cache = true, .max_seqs = 7 },
        20, 8, true);
}

static void choices_do_not_take_pages_for_the_prompt_again(void **state)
{
    (void)state;
    struct mock_model *mock = mock_model_new(N_CTX, false);
    mock->step_us = 2000;
    tutti_engine *engine = mock_engine(mock, &(struct tutti_engine_options){ .kv_bytes = page_bytes(64) },
                                       NULL);
    int32_t ids[160];
    for (int i = 0; i < 160; i++)
        ids[i] = i % MOCK_USABLE;
    struct tutti_request r = request_of(ids, 155, 1, 8);
    r.n_choices = 4;
    struct collect c;
    collect_init(&c);
    collect_submit(&c, engine, &r);
    uint64_t most = 0;
    struct tutti_stats stats;
    do {
        tutti_engine_stats(engine, &stats);
        most = stats.kv_pages_used > most ? stats.kv_pages_used : most;
        usleep(200);
    } while (stats.n_finished == 0);
    collect_wait(&c);
    check_answer(&c, &r, N_CTX, false);
    assert_true(most > 0);
    assert_in_range(most, 10, 9 + 4 * 2); /* nine full pages of the prompt once, the rest four times */
    assert_int_equal(mock->n_copies, 3);  /* the last holder of the partial page writes in place */
    collect_clear(&c);
    tutti_engine_close(engine);
    mock_model_free(mock);
}

static void a_prompt_seen_before_comes_from_the_cache(void **state)
{
    (void)state;
    struct mock_model *mock = mock_model_new(N_CTX, false);
    tutti_engine *engine = mock_engine(mock, &(struct tutti_engine_options){ .kv_bytes = page_bytes(64) },
                                       NULL);
    int32_t ids[64];
    for (int i = 0; i < 64; i++)
        ids[i] = (i * 7) % MOCK_USABLE;
    for (int round = 0; round < 3; round++) {
        struct tutti_request r = request_of(ids, round == 2 ? 50 : 64, 5, 10);
        struct collect c;
        collect_init(&c);
        collect_submit(&c, engine, &r);
        collect_wait(&c);
        check_answer(&c, &r, N_CTX, false);
        assert_int_equal(c.n_cached_tokens, round == 0 ? 0 : 48); /* the last token is always computed */
        collect_clear(&c);
    }
    tutti_engine_close(engine);
    mock_model_free(mock);
}

static void of_many_who_begin_alike_one_reads(void **state)
{
    (void)state;
    struct mock_model *mock = mock_model_new(N_CTX, false);
    struct tutti_engine_options options = { .kv_bytes = page_bytes(1024), .max_batch_tokens = 32 };
    mock->step_us = 1000;
    tutti_engine *engine = mock_engine(mock, &options, NULL);
    enum { N = 20, N_SHARED = 160 };
    struct collect all[N];
    struct tutti_request requests[N];
    int32_t ids[N][N_SHARED + 1];
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < N_SHARED; k++)
            ids[i][k] = k % 40;
        ids[i][N_SHARED] = i;
        requests[i] = request_of(ids[i], N_SHARED + 1, 5, 4);
        collect_init(&all[i]);
        collect_submit(&all[i], engine, &requests[i]);
    }
    for (int i = 0; i < N; i++) {
        collect_wait(&all[i]);
        check_answer(&all[i], &requests[i], N_CTX, false);
        assert_int_equal(all[i].n_cached_tokens, i == 0 ? 0 : N_SHARED);
        collect_clear(&all[i]);
    }
    assert_int_equal(mock->n_rows, N_SHARED + N * 4);
    tutti_engine_close(engine);
    mock_model_free(mock);
}

/* A cached page shows in n_cached_tokens and in the rows that are computed: neither may tell a tenant of another. */
static void the_cache_is_divided_by_tenant(void **state)
{
    (void)state;
    static const struct {
        uint64_t tenant;
        size_t n_cached;
    } rounds[] = { { 1, 0 }, { 1, 48 }, { 2, 0 }, { 0, 0 }, { 2, 48 }, { 1, 48 }, { 0, 48 } };
    struct mock_model *mock = mock_model_new(N_CTX, false);
    tutti_engine *engine = mock_engine(mock, &(struct tutti_engine_options){ .kv_bytes = page_bytes(64) },
                                       NULL);
    int32_t ids[64];
    for (int i = 0; i < 64; i++)
        ids[i] = (i * 7) % MOCK_USABLE;
    for (size_t i = 0; i < sizeof rounds / sizeof *rounds; i++) {
        struct tutti_request r = request_of(ids, 64, 5, 1);
        int64_t n_rows = (int64_t)mock->n_rows;
        struct collect c;
        r.tenant = rounds[i].tenant;
        collect_init(&c);
        collect_submit(&c, engine, &r);
        collect_wait(&c);
        check_answer(&c, &r, N_CTX, false);
        assert_int_equal(c.n_cached_tokens, rounds[i].n_cached);
        assert_int_equal((int64_t)mock->n_rows - n_rows, 64 - rounds[i].n_cached);
        collect_clear(&c);
    }
    tutti_engine_close(engine);
    mock_model_free(mock);
}

/* Prompts that run side by side take over each other's pages as they are computed: within a tenant. */
static void of_each_tenant_one_reads(void **state)
{
    (void)state;
    struct mock_model *mock = mock_model_new(N_CTX, false);
    enum { STEP_ROWS = 32 }; /* two pages */
    struct tutti_engine_options options = { .kv_bytes = page_bytes(1024), .max_batch_tokens = STEP_ROWS };
    atomic_store(&mock->is_held, true); /* so that all requests are there before the second step */
    tutti_engine *engine = mock_engine(mock, &options, NULL);
    enum { N = 12, N_TENANTS = 3, N_SHARED = 160 };
    struct collect all[N];
    struct tutti_request requests[N];
    int32_t ids[N][N_SHARED + 1];
    for (int i = 0; i < N; i++) {
        for (int k = 0; k < N_SHARED; k++)
            ids[i][k] = k % 40;
        ids[i][N_SHARED] = i;
        requests[i] = request_of(ids[i], N_SHARED + 1, 5, 4);
        requests[i].tenant = (uint64_t)(i % N_TENANTS + 1);
        requests[i].n_choices = i < N_TENANTS ? 3 : 1; /* choices of one prompt share it in every tenant */
        collect_init(&all[i]);
        collect_submit(&all[i], engine, &requests[i]);
    }
    mock_release(mock, engine);
    int n_again = 0; /* rows of pages that others were computing in the step in which a request began */
    for (int i = 0; i < N; i++) {
        collect_wait(&all[i]);
        check_answer(&all[i], &requests[i], N_CTX, false);
        if (i < N_TENANTS)
            assert_int_equal(all[i].n_cached_tokens, 0);
        else
            assert_in_range(all[i].n_cached_tokens, N_SHARED - STEP_ROWS, N_SHARED);
        n_again += i < N_TENANTS ? 0 : N_SHARED - all[i].n_cached_tokens;
        collect_clear(&all[i]);
    }
    /* Of each request the last token of the prompt is a row of its own, and of each answer all tokens but the last. */
    int n_choices = N + 2 * N_TENANTS;
    assert_int_equal(mock->n_rows, N_TENANTS * N_SHARED + n_again + N + n_choices * 3);
    tutti_engine_close(engine);
    mock_model_free(mock);
}

static void cancelled_requests_give_their_pages_back(void **state)
{
    (void)state;
    struct mock_model *mock = mock_model_new(N_CTX, false);
    mock->step_us = 500;
    struct tutti_engine_options options = { .kv_bytes = page_bytes(40), .max_seqs = 8 };
    tutti_engine *engine = mock_engine(mock, &options, NULL);
    enum { N = 24 };
    struct collect all[N];
    int32_t ids[N][N_CTX];
    for (int i = 0; i < N; i++) { /* running, choices that wait, and requests that wait */
        struct tutti_request r = request_of(ids[i], make_prompt((uint64_t)i, ids[i]), 1, 0);
        r.n_choices = i % 3 + 1;
        collect_init(&all[i]);
        all[i].cancel_after = i % 2 ? 3 : 0;
        collect_submit(&all[i], engine, &r);
    }
    usleep(10000);
    for (int i = 0; i < N; i++)
        tutti_engine_cancel(engine, all[i].id);
    tutti_engine_cancel(engine, 12345678); /* nobody's */
    for (int i = 0; i < N; i++) {
        collect_wait(&all[i]);
        for (int k = 0; k < all[i].n_choices; k++)
            assert_in_range(all[i].choices[k].finish, TUTTI_FINISH_LENGTH, TUTTI_FINISH_CANCELLED);
        collect_clear(&all[i]);
    }
    struct tutti_stats stats;
    wait_until_idle(engine, &stats);
    assert_true(stats.n_cancelled > 0);
    assert_int_equal(stats.n_cancelled + stats.n_finished, N);
    tutti_engine_close(engine);
    mock_model_free(mock);
}

/* Cancels one request within a step, and counts the steps in which it still takes part. */
struct canceller {
    tutti_engine *engine;
    atomic_uint_least64_t id;
    bool is_cancelled;
    int n_steps_after;
};

static void cancel_in_a_step(void *user, uint64_t request_id, int choice, int index, float *logits,
                             int n_vocab)
{
    struct canceller *c = user;
    (void)choice;
    (void)index;
    (void)logits;
    (void)n_vocab;
    if (request_id != atomic_load(&c->id))
        return;
    c->n_steps_after += c->is_cancelled;
    if (!c->is_cancelled)
        tutti_engine_cancel(c->engine, request_id);
    c->is_cancelled = true;
}

static void a_cancelled_request_is_gone_within_two_steps(void **state)
{
    (void)state;
    struct mock_model *mock = mock_model_new(N_CTX, false);
    mock->step_us = 20000;
    struct canceller canceller = { .id = UINT64_MAX };
    const struct engine_hooks hooks = { .logits = cancel_in_a_step, .user = &canceller };
    tutti_engine *engine = mock_engine(mock, &(struct tutti_engine_options){ .kv_bytes = page_bytes(64) },
                                       &hooks);
    canceller.engine = engine;
    int32_t ids[2] = { 3, 4 };
    struct tutti_request r = request_of(ids, 2, 1, 0);
    struct collect c, other;
    collect_init(&c);
    collect_init(&other);
    collect_submit(&other, engine, &r); /* keeps the steps going */
    collect_submit(&c, engine, &r);
    atomic_store(&canceller.id, c.id);
    collect_wait(&c);
    assert_int_equal(c.choices[0].finish, TUTTI_FINISH_CANCELLED);
    tutti_engine_cancel(engine, other.id);
    collect_wait(&other);
    assert_true(canceller.is_cancelled);
    assert_in_range(canceller.n_steps_after, 0, 2);
    collect_clear(&c);
    collect_clear(&other);
    tutti_engine_close(engine);
    mock_model_free(mock);
}

static void closing_ends_every_request_with_one_last_event(void **state)
{
    (void)state;
    struct mock_model *mock = mock_model_new(N_CTX, false);
    mock->step_us = 300;
    tutti_engine *engine = mock_engine(
        mock, &(struct tutti_engine_options){ .kv_bytes = page_bytes(16), .max_seqs = 4 }, NULL);
    enum { N = 20 };
    struct collect all[N];
    int32_t ids[N][N_CTX];
    for (int i = 0; i < N; i++) {
        struct tutti_request r = request_of(ids[i], make_prompt((uint64_t)i, ids[i]), 1, 0);
        collect_init(&all[i]);
        collect_submit(&all[i], engine, &r);
    }
    usleep(5000);
    tutti_engine_drain(engine);
    struct tutti_request late = request_of(ids[0], 1, 1, 1);
    struct tutti_error err;
    assert_int_equal(tutti_engine_submit(engine, &late, collect_event, NULL, NULL, &err), TUTTI_E_CLOSED);
    tutti_engine_close(engine);
    for (int i = 0; i < N; i++) {
        assert_int_equal(all[i].n_last, 1);
        assert_null(all[i].complaint);
        collect_clear(&all[i]);
    }
    mock_model_free(mock);
}

static void draining_lets_what_runs_go_on(void **state)
{
    (void)state;
    struct mock_model *mock = mock_model_new(N_CTX, false);
    mock->step_us = 300;
    tutti_engine *engine = mock_engine(mock, &(struct tutti_engine_options){ .kv_bytes = page_bytes(16) },
                                       NULL);
    int32_t ids[3] = { 1, 2, 3 };
    struct tutti_request r = request_of(ids, 3, 9, 40);
    struct collect c;
    collect_init(&c);
    collect_submit(&c, engine, &r);
    tutti_engine_drain(engine);
    collect_wait(&c);
    check_answer(&c, &r, N_CTX, false);
    collect_clear(&c);
    tutti_engine_close(engine);
    mock_model_free(mock);
}

static void a_full_queue_refuses_and_recovers(void **state)
{
    (void)state;
    struct mock_model *mock = mock_model_new(N_CTX, false);
    mock->step_us = 1000;
    struct tutti_engine_options options = { .kv_bytes = page_bytes(64), .max_seqs = 2, .max_queue = 3 };
    tutti_engine *engine = mock_engine(mock, &options, NULL);
    int32_t ids[3] = { 1, 2, 3 };
    struct tutti_request r = request_of(ids, 3, 9, 100);
    struct collect all[5], more;
    for (int i = 0; i < 5; i++) {
        collect_init(&all[i]);
        collect_submit(&all[i], engine, &r);
    }
    struct tutti_error err;
    assert_int_equal(tutti_engine_submit(engine, &r, collect_event, NULL, NULL, &err), TUTTI_E_BUSY);
    assert_non_null(strstr(err.text, "5"));
    tutti_engine_cancel(engine, all[1].id);
    collect_wait(&all[1]);
    collect_init(&more); /* after the last event there is room at once */
    collect_submit(&more, engine, &r);
    collect_wait(&more);
    for (int i = 0; i < 5; i++) {
        if (i != 1)
            collect_wait(&all[i]);
        collect_clear(&all[i]);
    }
    collect_clear(&more);
    struct tutti_stats stats;
    wait_until_idle(engine, &stats);
    assert_int_equal(stats.n_refused, 1);
    tutti_engine_close(engine);
    mock_model_free(mock);
}

/* Two decode while a third's long prompt is read: with four rows a step nobody waits for another's end. */
static void neither_reading_nor_decoding_starves(void **state)
{
    (void)state;
    for (int rows = 1; rows <= 4; rows += 3) {
        struct mock_model *mock = mock_model_new(N_CTX, false);
        struct tutti_engine_options options = { .kv_bytes = page_bytes(256), .max_batch_tokens = rows };
        tutti_engine *engine = mock_engine(mock, &options, NULL);
        enum { N = 12 }; /* more decode than rows fit */
        struct collect all[N];
        int32_t ids[N_CTX] = { 0 };
        struct tutti_request r = request_of(ids, 10, 9, 60);
        for (int i = 0; i < N; i++) {
            if (i == N - 1)
                r = request_of(ids, 100, 9, 5);
            collect_init(&all[i]);
            collect_submit(&all[i], engine, &r);
        }
        for (int i = 0; i < N; i++)
            collect_wait(&all[i]);
        assert_true(mock->max_rows <= rows);
        for (int i = 0; i < N; i++)
            collect_clear(&all[i]);
        tutti_engine_close(engine);
        mock_model_free(mock);
    }
}

static void poison(void *user, uint64_t id, int choice, int index, float *logits, int n_vocab)
{
    (void)id;
    (void)n_vocab;
    if (choice == 1 && index == 5)
        logits[7] = *(const float *)user;
}

static void a_bad_logit_ends_its_choice_alone(void **state)
{
    (void)state;
    float bad[] = { (float)NAN, (float)INFINITY, -(float)INFINITY };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct mock_model *mock = mock_model_new(N_CTX, false);
        struct engine_hooks hooks = { .logits = poison, .user = &bad[i] };
        tutti_engine *engine = mock_engine(mock, &(struct tutti_engine_options){ .kv_bytes = page_bytes(64) },
                                           &hooks);
        int32_t ids[3] = { 1, 2, 3 };
        struct tutti_request r = request_of(ids, 3, 9, 20);
        r.n_choices = 3;
        struct collect c;
        collect_init(&c);
        collect_submit(&c, engine, &r);
        collect_wait(&c);
        assert_int_equal(c.choices[0].finish, TUTTI_FINISH_LENGTH);
        assert_int_equal(c.choices[1].finish, TUTTI_FINISH_ERROR);
        assert_int_equal(c.choices[1].error.status, TUTTI_E_NUMERIC);
        assert_int_equal(c.choices[1].ids.n, 5);
        assert_int_equal(c.choices[2].finish, TUTTI_FINISH_LENGTH);
        struct tutti_stats stats;
        wait_until_idle(engine, &stats);
        assert_int_equal(stats.n_failed, 1);
        collect_clear(&c);
        tutti_engine_close(engine);
        mock_model_free(mock);
    }
}

static void wrong_requests_are_refused_with_their_field(void **state)
{
    (void)state;
    struct mock_model *mock = mock_model_new(N_CTX, false);
    tutti_engine *engine = mock_engine(mock, &(struct tutti_engine_options){ .kv_bytes = page_bytes(8) },
                                       NULL);
    static const int32_t ids[200] = { 1 }, bad_ids[] = { 1, MOCK_VOCAB }, negative[] = { -1 };
    static const struct tutti_logit_bias bias[] = { { MOCK_VOCAB, 1 } }, nan_bias[] = { { 1, (float)NAN } };
    static const struct tutti_string stops[] = { { "", 0 } };
    static const struct tutti_message message[] = { { "user", "x", 1, NULL } };
    struct tutti_request good = request_of(ids, 3, 1, 4);
    struct {
        struct tutti_request r;
        enum tutti_status status;
        const char *param, *words;
    } cases[32];
    int n = 0;
#define CASE(field, value, st, name, text)                                                                   \
    (cases[n].r = good, cases[n].r.field = (value), cases[n].status = (st), cases[n].param = (name),         \
     cases[n++].words = (text))
    CASE(sampling.temperature, (float)NAN, TUTTI_E_ARGUMENT, "temperature", "nan");
    CASE(sampling.temperature, -1.0f, TUTTI_E_ARGUMENT, "temperature", "-1");
    CASE(sampling.temperature, 101.0f, TUTTI_E_ARGUMENT, "temperature", "100");
    CASE(sampling.top_k, -1, TUTTI_E_ARGUMENT, "top_k", "-1");
    CASE(sampling.top_p, 0.0f, TUTTI_E_ARGUMENT, "top_p", "more than 0");
    CASE(sampling.top_p, 1.5f, TUTTI_E_ARGUMENT, "top_p", "1.5");
    CASE(sampling.min_p, -0.5f, TUTTI_E_ARGUMENT, "min_p", "-0.5");
    CASE(sampling.repetition_penalty, 0.0f, TUTTI_E_ARGUMENT, "repetition_penalty", "0");
    CASE(sampling.presence_penalty, 3.0f, TUTTI_E_ARGUMENT, "presence_penalty", "3");
    CASE(sampling.frequency_penalty, -3.0f, TUTTI_E_ARGUMENT, "frequency_penalty", "-3");
    CASE(n_choices, 129, TUTTI_E_ARGUMENT, "n", "128");
    CASE(n_choices, -1, TUTTI_E_ARGUMENT, "n", "-1");
    CASE(max_tokens, -5, TUTTI_E_ARGUMENT, "max_tokens", "-5");
    CASE(top_logprobs, 21, TUTTI_E_ARGUMENT, "top_logprobs", "20");
    CASE(ids, NULL, TUTTI_E_ARGUMENT, "prompt", "missing");
    CASE(n_ids, 0, TUTTI_E_ARGUMENT, "prompt", "empty");
    CASE(n_ids, 128, TUTTI_E_LIMIT, "prompt", "128 tokens");
    CASE(text, "x", TUTTI_E_ARGUMENT, "prompt", "exactly one");
    CASE(n_stop_ids, 1, TUTTI_E_ARGUMENT, "stop_ids", "missing");
    CASE(n_stop_ids, 1000, TUTTI_E_ARGUMENT, "stop_ids", "1000");
    CASE(n_stop, 17, TUTTI_E_ARGUMENT, "stop", "17");
    CASE(ids, bad_ids, TUTTI_E_ARGUMENT, "prompt", "48");
    cases[n - 1].r.n_ids = 2;
    CASE(ids, negative, TUTTI_E_ARGUMENT, "prompt", "-1");
    cases[n - 1].r.n_ids = 1;
    CASE(sampling.logit_bias, bias, TUTTI_E_ARGUMENT, "logit_bias", "token 48");
    cases[n - 1].r.sampling.n_logit_bias = 1;
    CASE(sampling.logit_bias, nan_bias, TUTTI_E_ARGUMENT, "logit_bias", "nan");
    cases[n - 1].r.sampling.n_logit_bias = 1;
    CASE(stop, stops, TUTTI_E_ARGUMENT, "stop", "no tokenizer");
    cases[n - 1].r.n_stop = 1;
    CASE(ids, NULL, TUTTI_E_ARGUMENT, "messages", "no chat format");
    cases[n - 1].r.n_ids = 0;
    cases[n - 1].r.messages = message;
    cases[n - 1].r.n_messages = 1;
    CASE(ids, NULL, TUTTI_E_ARGUMENT, "prompt", "no tokenizer");
    cases[n - 1].r.n_ids = 0;
    cases[n - 1].r.text = "x";
    cases[n - 1].r.n_text_bytes = 1;
#undef CASE
    for (int i = 0; i < n; i++) {
        struct tutti_error err = { 0 };
        assert_int_equal(tutti_engine_submit(engine, &cases[i].r, collect_event, NULL, NULL, &err),
                         cases[i].status);
        assert_string_equal(err.param, cases[i].param);
        if (!strstr(err.text, cases[i].words))
            fail_msg("case %d: \"%s\" should say \"%s\"", i, err.text, cases[i].words);
    }
    tutti_engine_close(engine);
    mock_model_free(mock);
}

static void wrong_options_are_refused(void **state)
{
    (void)state;
    struct mock_model *mock = mock_model_new(N_CTX, false);
    const struct {
        struct tutti_engine_options options;
        enum tutti_status status;
        const char *param;
    } cases[] = {
        { { .max_batch_tokens = -1 }, TUTTI_E_ARGUMENT, "max_batch_tokens" },
        { { .max_seqs = 1 << 20 }, TUTTI_E_ARGUMENT, "max_seqs" },
        { { .max_queue = -7 }, TUTTI_E_ARGUMENT, "max_queue" },
        { { .max_context = N_CTX + 1 }, TUTTI_E_ARGUMENT, "max_context" },
        { { .max_context = 200, .kv_bytes = page_bytes(4) }, TUTTI_E_LIMIT, "max_context" },
        { { .kv_bytes = 7 }, TUTTI_E_LIMIT, "kv_bytes" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tutti_engine *engine = NULL;
        struct tutti_error err = { 0 };
        struct engine_hooks hooks = { 0 };
        tutti_engine *probe = mock_engine(mock, &(struct tutti_engine_options){ .kv_bytes = page_bytes(4) },
                                          NULL);
        assert_int_equal(engine_open(&engine, &mock->model, NULL, &hooks, &err), TUTTI_E_ARGUMENT);
        assert_non_null(strstr(err.text, "already"));
        tutti_engine_close(probe);
        assert_int_equal(mock_engine_try(mock, &cases[i].options, &err), cases[i].status);
        assert_string_equal(err.param, cases[i].param);
        assert_null(engine);
    }
    mock_model_free(mock);
}

/* A window of 4096 in steps of 512 rows: 256 + 32 + 2 slots, of the 1024 pages that four windows take. */
static void layers_with_a_window_get_fewer_slots_than_pages(void **state)
{
    (void)state;
    struct window_room room = engine_window_room(16, 4096, 512, 32768);
    assert_float_equal(room.slots_per_page, 290.0 / 1024, 1e-9);
    assert_int_equal(room.n_least_pages, 1024);
    assert_float_equal(engine_window_room(16, 4096, 512, 8192).slots_per_page, 290.0 / 512, 1e-9);
    assert_float_equal(engine_window_room(16, 4096, 512, 4096).slots_per_page, 1,
                       0); /* no longer than a context */
    assert_float_equal(engine_window_room(16, 0, 512, 32768).slots_per_page, 1, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_request_is_answered),
        cmocka_unit_test(many_requests_each_get_their_own_answer),
        cmocka_unit_test(chunks_of_any_size_give_the_same_answers),
        cmocka_unit_test(a_full_pool_preempts_and_loses_nothing),
        cmocka_unit_test(a_given_size_of_the_pool_is_kept),
        cmocka_unit_test(a_pool_larger_than_free_memory_is_refused_with_what_fits),
        cmocka_unit_test(a_pool_smaller_than_the_context_limits_the_context),
        cmocka_unit_test(pages_of_any_size_give_the_same_answers),
        cmocka_unit_test(choices_share_the_prompt_and_differ_after_it),
        cmocka_unit_test(choices_do_not_take_pages_for_the_prompt_again),
        cmocka_unit_test(a_prompt_seen_before_comes_from_the_cache),
        cmocka_unit_test(of_many_who_begin_alike_one_reads),
        cmocka_unit_test(the_cache_is_divided_by_tenant),
        cmocka_unit_test(of_each_tenant_one_reads),
        cmocka_unit_test(cancelled_requests_give_their_pages_back),
        cmocka_unit_test(a_cancelled_request_is_gone_within_two_steps),
        cmocka_unit_test(closing_ends_every_request_with_one_last_event),
        cmocka_unit_test(draining_lets_what_runs_go_on),
        cmocka_unit_test(a_full_queue_refuses_and_recovers),
        cmocka_unit_test(neither_reading_nor_decoding_starves),
        cmocka_unit_test(a_bad_logit_ends_its_choice_alone),
        cmocka_unit_test(wrong_requests_are_refused_with_their_field),
        cmocka_unit_test(layers_with_a_window_get_fewer_slots_than_pages),
        cmocka_unit_test(wrong_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
