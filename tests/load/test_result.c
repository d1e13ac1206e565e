/* Figures of a run whose records are written by hand. */
#include "load/result.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Arrived at 1 s, sent 5 ms later; first piece at 1.1 s, last at 1.5 s, end at 1.6 s; 5 tokens in 3 pieces. */
static const struct load_record GOOD = {
    .scheduled_us = 1000000,
    .started_us = 1005000,
    .first_us = 1100000,
    .last_us = 1500000,
    .ended_us = 1600000,
    .n_pieces = 3,
    .prompt_tokens = 20,
    .cached_tokens = 16,
    .output_tokens = 5,
    .status = 200,
    .outcome = LOAD_COMPLETE,
    .has_usage = true,
    .has_prompt_tokens = true,
};

static struct load_run run_of(const struct load_record *records, size_t n)
{
    struct load_run run = { .total_s = 2, .n_records = n, .records = calloc(n, sizeof *records) };
    assert_non_null(run.records);
    memcpy(run.records, records, n * sizeof *records);
    return run;
}

static void assert_near(double found, double expected)
{
    if (!(fabs(found - expected) <= 1e-9 * (1 + fabs(expected))))
        fail_msg("found %.12g, expected %.12g", found, expected);
}

static const struct load_targets NO_TARGETS = { NAN, NAN };

static void times_count_from_the_scheduled_arrival(void **state)
{
    (void)state;
    struct load_run run = run_of(&GOOD, 1);
    struct load_result r;
    assert_int_equal(load_result_compute(&r, &run, &NO_TARGETS, NULL), TUTTI_OK);
    assert_near(r.ttft_ms.p50, 100);
    assert_near(r.latency_ms.p50, 600);
    assert_near(r.late_ms.p50, 5);
    assert_near(r.token_time_ms.p50, 100); /* 400 ms for the four tokens after the first */
    assert_near(r.requests_per_s, 0.5);
    assert_int_equal(r.prompt_tokens, 20);
    assert_int_equal(r.cached_tokens, 16);
    assert_int_equal(r.output_tokens, 5);
    assert_true(r.has_prompt_tokens);
    assert_false(r.has_targets);
    assert_int_equal(r.counted, LOAD_COUNTED_SERVER);
    load_result_clear(&r);
    load_run_clear(&run);
}

static void failures_are_counted_and_their_tokens_are_not(void **state)
{
    (void)state;
    struct load_record records[LOAD_OUTCOMES + 1];
    for (int i = 0; i < LOAD_OUTCOMES; i++) {
        records[i] = GOOD;
        records[i].outcome = (uint8_t)i;
    }
    records[LOAD_OUTCOMES] = (struct load_record){ .scheduled_us = 5,
                                                   .started_us = -1,
                                                   .first_us = -1,
                                                   .last_us = -1,
                                                   .ended_us = -1,
                                                   .outcome = LOAD_UNFINISHED };
    struct load_run run = run_of(records, LOAD_OUTCOMES + 1);
    struct load_result r;
    assert_int_equal(load_result_compute(&r, &run, &NO_TARGETS, NULL), TUTTI_OK);
    for (int i = 0; i < LOAD_OUTCOMES; i++)
        assert_int_equal(r.n_outcomes[i], i == LOAD_UNFINISHED ? 2 : 1);
    assert_int_equal(r.latency_ms.n, 1);
    assert_int_equal(r.output_tokens, 5);
    assert_int_equal(r.n_lost_pieces, 3 * (LOAD_OUTCOMES - 1));
    assert_int_equal(r.late_ms.n, LOAD_OUTCOMES); /* the last one never left */
    load_result_clear(&r);
    load_run_clear(&run);
}

static void says_who_counted_the_tokens(void **state)
{
    (void)state;
    struct load_record records[2] = { GOOD, GOOD };
    struct load_result r;
    records[1].has_usage = records[1].has_prompt_tokens = false;
    struct load_run run = run_of(records, 2);
    assert_int_equal(load_result_compute(&r, &run, &NO_TARGETS, NULL), TUTTI_OK);
    assert_int_equal(r.counted, LOAD_COUNTED_BOTH);
    assert_false(r.has_prompt_tokens);
    load_result_clear(&r);
    run.records[0].has_usage = false;
    assert_int_equal(load_result_compute(&r, &run, &NO_TARGETS, NULL), TUTTI_OK);
    assert_int_equal(r.counted, LOAD_COUNTED_DELTAS);
    load_result_clear(&r);
    run.n_records = 0;
    assert_int_equal(load_result_compute(&r, &run, &NO_TARGETS, NULL), TUTTI_OK);
    assert_int_equal(r.counted, LOAD_COUNTED_NONE);
    load_result_clear(&r);
    load_run_clear(&run);
}

static void goodput_counts_answers_that_keep_each_target(void **state)
{
    (void)state;
    struct load_record silent = GOOD, single = GOOD, failed = GOOD;
    silent.first_us = silent.last_us = -1;
    silent.n_pieces = silent.output_tokens = 0;
    single.n_pieces = single.output_tokens = 1; /* has no time between tokens */
    single.last_us = single.first_us;
    failed.outcome = LOAD_CUT;
    struct load_record records[] = { GOOD, silent, single, failed };
    static const struct {
        struct load_targets targets;
        uint64_t n_good;
    } CASES[] = {
        { { 100, NAN }, 2 }, /* GOOD and single */
        { { 99.9, NAN }, 0 }, { { NAN, 100 }, 3 },  { { NAN, 99.9 }, 2 },
        { { 100, 100 }, 2 },  { { 100, 99.9 }, 1 },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct load_run run = run_of(records, 4);
        struct load_result r;
        assert_int_equal(load_result_compute(&r, &run, &CASES[i].targets, NULL), TUTTI_OK);
        assert_true(r.has_targets);
        assert_int_equal(r.n_good, CASES[i].n_good);
        assert_int_equal(r.n_silent, 1);
        load_result_clear(&r);
        load_run_clear(&run);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_count_from_the_scheduled_arrival),
        cmocka_unit_test(failures_are_counted_and_their_tokens_are_not),
        cmocka_unit_test(says_who_counted_the_tokens),
        cmocka_unit_test(goodput_counts_answers_that_keep_each_target),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
