/* Deadlines, early refusals and places in the queue, through the public API and a model that is slow on purpose. */
#include "base/system/clock.h"
#include "engine/run/engine_state.h"
#include "support/collect.h"
#include "support/mock_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { N_CTX = 256, N_PROMPT = 20, N_ANSWER = 40, STEP_US = 2000, MAX_SEQS = 2, N_FLOOD = 100 };

struct bench {
    struct mock_model *mock;
    tutti_engine *engine;
    int32_t ids[N_PROMPT];
    struct collect flood[N_FLOOD];
};

static struct tutti_request request_of(struct bench *b, uint64_t owner)
{
    return (struct tutti_request){ .ids = b->ids,
                                   .n_ids = N_PROMPT,
                                   .max_tokens = N_ANSWER,
                                   .owner = owner,
                                   .sampling = { .temperature = 0, .top_p = 1, .repetition_penalty = 1 } };
}

/* An engine that runs two answers at a time and has a hundred more to begin: seconds of work. */
static int begin_flood(void **state)
{
    struct bench *b = calloc(1, sizeof *b);
    struct tutti_engine_options options = { .kv_bytes = 64 * 64, .max_seqs = MAX_SEQS, .max_queue = 126 };
    assert_non_null(b);
    b->mock = mock_model_new(N_CTX, false);
    b->mock->step_us = STEP_US;
    b->engine = mock_engine(b->mock, &options, NULL);
    for (int i = 0; i < N_PROMPT; i++)
        b->ids[i] = i + 3;
    struct tutti_request r = request_of(b, 1);
    for (int i = 0; i < N_FLOOD; i++) {
        collect_init(&b->flood[i]);
        collect_submit(&b->flood[i], b->engine, &r);
    }
    struct tutti_stats stats;
    do { /* until it is known how fast work begins */
        usleep(1000);
        tutti_engine_stats(b->engine, &stats);
    } while (stats.waiting_tokens_per_s == 0);
    assert_true(stats.waiting_tokens > 0);
    assert_true(stats.waiting[-TUTTI_PRIORITY_FIRST].n > N_FLOOD / 4);
    *state = b;
    return 0;
}

static int end_flood(void **state)
{
    struct bench *b = *state;
    struct tutti_stats stats;
    for (int i = 0; i < N_FLOOD; i++)
        tutti_engine_cancel(b->engine, b->flood[i].id);
    for (int i = 0; i < N_FLOOD; i++) {
        collect_wait(&b->flood[i]);
        collect_clear(&b->flood[i]);
    }
    wait_until_idle(b->engine, &stats);
    tutti_engine_stats(b->engine, &stats);
    assert_int_equal(stats.n_waiting, 0);
    assert_true(stats.waiting_tokens == 0); /* nothing is counted twice or forgotten */
    tutti_engine_close(b->engine);
    mock_model_free(b->mock);
    free(b);
    return 0;
}

static void what_cannot_begin_in_time_is_refused_at_once(void **state)
{
    struct bench *b = *state;
    struct tutti_request r = request_of(b, 1);
    struct tutti_error err = { 0 };
    struct tutti_stats stats;
    r.max_queue_ms = 1;
    assert_int_equal(tutti_engine_submit(b->engine, &r, collect_event, NULL, NULL, &err), TUTTI_E_BUSY);
    assert_non_null(strstr(err.text, "would wait about"));
    /* At the fastest, each pair of answers takes its steps; at the slowest nobody knows: the machine may be busy. */
    assert_true(err.retry_after_ms > (N_FLOOD - 20) / MAX_SEQS * N_ANSWER * STEP_US / 1000 / 3);
    r.priority = TUTTI_PRIORITY_LAST;
    assert_int_equal(tutti_engine_submit(b->engine, &r, collect_event, NULL, NULL, &err), TUTTI_E_BUSY);
    assert_int_equal(tutti_engine_check_queue(b->engine, 1, 1, 0, &err),
                     TUTTI_OK); /* without a limit of the engine */
    b->engine->limits.max_queue_ms = 1;
    assert_int_equal(tutti_engine_check_queue(b->engine, 1, 1, 0, &err), TUTTI_E_BUSY);
    assert_non_null(strstr(err.text, "would wait about"));
    assert_true(err.retry_after_ms > 0);
    assert_int_equal(tutti_engine_check_queue(b->engine, 1, 1, -1, &err), TUTTI_OK);
    assert_int_equal(tutti_engine_check_queue(b->engine, 2, 1, 0, &err), TUTTI_OK);
    tutti_engine_stats(b->engine, &stats);
    assert_int_equal(stats.n_refused_early, 3);
    assert_int_equal(stats.n_refused, 3);
    assert_int_equal(stats.n_timed_out, 0);
}

static void who_would_be_refused_hears_it_before_the_request_is_read(void **state)
{
    (void)state;
    struct bench b = { .mock = mock_model_new(N_CTX, false) };
    struct tutti_engine_options options = { .kv_bytes = 64 * 64, .max_seqs = 1, .max_queue = 62 };
    enum { N = 56 }; /* eight times as many as are free: no owner may have more */
    struct collect c[N];
    struct tutti_error err = { 0 };
    struct tutti_stats stats;
    static const struct {
        double weight;
        int priority;
        const char *param;
    } WRONG[] = {
        { 1, TUTTI_PRIORITY_LAST + 1, "priority" },
        { 1, TUTTI_PRIORITY_FIRST - 1, "priority" },
        { 1, INT32_MAX, "priority" },
        { -1, 0, "weight" },
        { 1001, 0, "weight" },
        { NAN, 0, "weight" },
    };
    b.mock->step_us = 25 * STEP_US; /* none ends meanwhile */
    b.engine = mock_engine(b.mock, &options, NULL);
    assert_int_equal(tutti_engine_check_queue(b.engine, 1, 0, 0, &err), TUTTI_OK);
    struct tutti_request r = request_of(&b, 1);
    for (int i = 0; i < N; i++) {
        collect_init(&c[i]);
        collect_submit(&c[i], b.engine, &r);
    }
    assert_int_equal(tutti_engine_check_queue(b.engine, 1, 1, TUTTI_PRIORITY_FIRST, &err), TUTTI_E_BUSY);
    assert_non_null(strstr(err.text, "for you"));
    assert_int_equal(tutti_engine_check_queue(b.engine, 2, 1, TUTTI_PRIORITY_LAST, &err), TUTTI_OK);
    tutti_engine_stats(b.engine, &stats);
    assert_int_equal(stats.n_refused_full, 1);
    assert_int_equal(stats.n_refused, 1);
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
        assert_int_equal(tutti_engine_check_queue(b.engine, 2, WRONG[i].weight, WRONG[i].priority, &err),
                         TUTTI_E_ARGUMENT);
        assert_string_equal(err.param, WRONG[i].param);
    }
    tutti_engine_drain(b.engine);
    assert_int_equal(tutti_engine_check_queue(b.engine, 2, 1, 0, &err), TUTTI_E_CLOSED);
    for (int i = 0; i < N; i++) {
        tutti_engine_cancel(b.engine, c[i].id);
        collect_wait(&c[i]);
        collect_clear(&c[i]);
    }
    tutti_engine_close(b.engine);
    mock_model_free(b.mock);
}

static void a_better_priority_or_another_owner_is_not(void **state)
{
    struct bench *b = *state;
    struct collect c[2];
    for (int i = 0; i < 2; i++) {
        struct tutti_request r = request_of(b, i == 0 ? 1 : 2);
        r.priority = i == 0 ? -1 : 0;
        r.max_queue_ms = 60000;
        collect_init(&c[i]);
        collect_submit(&c[i], b->engine, &r);
    }
    for (int i = 0; i < 2; i++) {
        collect_wait(&c[i]);
        assert_int_equal(c[i].choices[0].finish, TUTTI_FINISH_LENGTH);
        collect_clear(&c[i]);
    }
    struct tutti_stats stats;
    tutti_engine_stats(b->engine, &stats);
    assert_true(stats.n_finished < N_FLOOD / 2); /* most of the flood waits still */
}

static void a_deadline_is_told_with_the_time_to_come_again(void **state)
{
    (void)state;
    struct bench b = { .mock = mock_model_new(N_CTX, false) };
    struct tutti_engine_options options = { .kv_bytes = 64 * 64, .max_seqs = 1 };
    struct tutti_stats stats;
    b.mock->step_us = STEP_US;
    b.engine = mock_engine(b.mock, &options, NULL);
    struct tutti_request r = request_of(&b, 1);
    struct collect running, c;
    collect_init(&running);
    collect_init(&c);
    r.max_tokens = 200; /* 400 ms at least */
    collect_submit(&running, b.engine, &r);
    r.max_queue_ms = 20; /* nothing has waited before, so nothing can be foreseen */
    r.n_choices = 2;
    uint64_t start_us = clock_now_us();
    collect_submit(&c, b.engine, &r);
    collect_wait(&c);
    assert_true(clock_now_us() - start_us >= 20000);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(c.choices[i].finish, TUTTI_FINISH_ERROR);
        assert_int_equal(c.choices[i].error.status, TUTTI_E_TIMEOUT);
        assert_true(c.choices[i].error.retry_after_ms > 0);
        assert_int_equal(c.choices[i].n_generated, 0);
    }
    collect_wait(&running);
    assert_int_equal(running.choices[0].n_generated, 200);
    collect_clear(&running);
    collect_clear(&c);
    tutti_engine_stats(b.engine, &stats);
    assert_int_equal(stats.n_timed_out, 1);
    assert_int_equal(stats.n_failed, 1);
    assert_true(stats.waiting_tokens == 0);
    tutti_engine_close(b.engine);
    mock_model_free(b.mock);
}

static void some_places_are_left_for_others(void **state)
{
    struct bench *b = *state;
    struct tutti_error err = { 0 };
    struct tutti_request r = request_of(b, 1);
    struct collect more[32];
    int n = 0;
    for (; n < 32; n++) {
        collect_init(&more[n]);
        more[n].n_choices = 1;
        if (tutti_engine_submit(b->engine, &r, collect_event, &more[n], &more[n].id, &err) != TUTTI_OK)
            break;
    }
    assert_int_equal(err.status, TUTTI_E_BUSY);
    assert_non_null(strstr(err.text, "places in the queue are for others"));
    assert_true(err.retry_after_ms > 0);
    struct collect other;
    r.owner = 2;
    collect_init(&other);
    collect_submit(&other, b->engine, &r);
    collect_wait(&other);
    collect_clear(&other);
    for (int i = 0; i < n; i++) {
        tutti_engine_cancel(b->engine, more[i].id);
        collect_wait(&more[i]);
    }
    for (int i = 0; i <= n && i < 32; i++)
        collect_clear(&more[i]);
}

static void the_engine_has_a_limit_of_its_own(void **state)
{
    (void)state;
    struct mock_model *mock = mock_model_new(N_CTX, false);
    struct tutti_engine_options options = {
        .kv_bytes = 64 * 64, .max_seqs = 1, .max_queue = 64, .max_queue_ms = 400
    };
    enum { N = 30 };
    struct bench b = { 0 };
    struct collect all[N];
    mock->step_us = STEP_US;
    tutti_engine *engine = mock_engine(mock, &options, NULL);
    struct tutti_request r = request_of(&b, 0);
    r.max_queue_ms = 100000; /* no more than the engine's */
    int n_taken = 0, n_done = 0, n_late = 0;
    for (int i = 0; i < N; i++) {
        struct tutti_error err = { 0 };
        collect_init(&all[i]);
        all[i].n_choices = 1;
        if (tutti_engine_submit(engine, &r, collect_event, &all[i], &all[i].id, &err) != TUTTI_OK)
            break;
        n_taken++;
    }
    if (n_taken < N)
        collect_clear(&all[n_taken]);
    for (int i = 0; i < n_taken; i++) {
        collect_wait(&all[i]);
        n_done += all[i].choices[0].finish == TUTTI_FINISH_LENGTH;
        n_late += all[i].choices[0].error.status == TUTTI_E_TIMEOUT;
        collect_clear(&all[i]);
    }
    assert_int_equal(n_done + n_late, n_taken);
    assert_true(n_late > 0 && n_done > 0);
    tutti_engine_close(engine);
    mock_model_free(mock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_cannot_begin_in_time_is_refused_at_once, begin_flood, end_flood),
        cmocka_unit_test(who_would_be_refused_hears_it_before_the_request_is_read),
        cmocka_unit_test_setup_teardown(a_better_priority_or_another_owner_is_not, begin_flood, end_flood),
        cmocka_unit_test(a_deadline_is_told_with_the_time_to_come_again),
        cmocka_unit_test_setup_teardown(some_places_are_left_for_others, begin_flood, end_flood),
        cmocka_unit_test(the_engine_has_a_limit_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
