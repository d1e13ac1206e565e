/* Chunked prefill: how many rows of prompts a step with decoding sequences may have. */
#include "engine/schedule/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* A machine that takes 64 ms for the weights and 7 ms for each row; of prefill rows, one more for each 1000 tokens before. */
static double step_ms(int n_rows, double distance)
{
    double ms = n_rows * 7 + distance / 1000;
    return ms > 64 ? ms : 64;
}

static void decode(struct pace *p, int n_rows, int times)
{
    for (int i = 0; i < times; i++)
        pace_note(p, n_rows, 0, 0, (uint64_t)(step_ms(n_rows, 0) * 1000));
}

/* One step with as much of a prompt from *pos on as it may prefill. */
static double step_beside(struct pace *p, int n_decoding, int *pos)
{
    double budget = pace_budget(p, n_decoding);
    int n = budget > 0 ? pace_rows(p, budget, *pos) : 0;
    n = n < 256 ? n : 256;
    double distance = n * (*pos + n / 2.), ms = step_ms(n_decoding + n, distance);
    pace_note(p, n_decoding, n, distance, (uint64_t)(ms * 1000));
    *pos += n;
    return ms;
}

/* The longest of some steps at the beginning of prompts. */
static double read_beside(struct pace *p, int n_decoding, int times)
{
    double longest = 0;
    for (int i = 0; i < times; i++) {
        int pos = 0;
        double ms = step_beside(p, n_decoding, &pos);
        longest = ms > longest ? ms : longest;
    }
    return longest;
}

static void nothing_is_read_before_the_others_were_measured_alone(void **state)
{
    (void)state;
    struct pace p = { .max_slowdown = 2 };
    assert_true(pace_budget(&p, 1) == 0);
    decode(&p, 1, 5); /* says nothing of what a row costs */
    double budget = pace_budget(&p, 1);
    assert_true(budget > 0);
    assert_int_equal(pace_rows(&p, budget, 0), 16); /* a small piece first */
    assert_true(pace_spend(&p, budget, 16, 0) == 0);
}

static void a_step_that_reads_stays_within_the_slowdown_and_uses_it(void **state)
{
    (void)state;
    for (double slowdown = 1.25; slowdown < 6; slowdown *= 2)
        for (int n = 1; n <= 200; n = n * 3 / 2 + 1) {
            struct pace p = { .max_slowdown = slowdown };
            decode(&p, n, 40);
            read_beside(&p, n, 60);
            double alone = step_ms(n, 0), ms = read_beside(&p, n, 20);
            assert_true(ms <= slowdown * alone || pace_rows(&p, pace_budget(&p, n), 0) == 1);
            assert_true(ms >= 0.85 * slowdown * alone || ms >= step_ms(n + 256, 0));
        }
}

/* One decodes, then many, and prompts never stop: what was learned of one must not starve the prompts. */
static void prompts_are_read_beside_many_that_were_never_alone(void **state)
{
    (void)state;
    struct pace p = { .max_slowdown = 2 };
    decode(&p, 1, 40);
    for (int n = 1; n <= 64; n++)
        read_beside(&p, n, 8);
    double ms = read_beside(&p, 64, 20);
    assert_true(ms <= 2 * step_ms(64, 0) && ms >= 1.6 * step_ms(64, 0));
    for (int n = 64; n > 4; n--) /* nor must they slow down the few that are left */
        assert_true(read_beside(&p, n, 8) <= 2.1 * step_ms(n, 0));
}

/* The cost of a row grows fifty-fold while a prompt of 30,000 tokens is prefilled. */
static void a_very_long_prompt_stays_within_the_slowdown(void **state)
{
    (void)state;
    for (int n = 1; n <= 32; n *= 4) {
        struct pace p = { .max_slowdown = 2 };
        int pos = 0, n_steps = 0, n_late = 0;
        double alone = step_ms(n, 0), used = 0;
        decode(&p, n, 10);
        read_beside(&p, n, 30);
        for (; pos < 30000; n_steps++) {
            double ms = step_beside(&p, n, &pos);
            assert_true(ms <= 2.2 * alone); /* at the end a row costs half of what a step may take longer */
            n_late += ms > 2 * alone;
            used += ms;
        }
        assert_true(n_late * 10 <= n_steps && used < 1.9 * alone * n_steps);
        assert_true(used >= 1.6 * alone * n_steps); /* what is allowed is used */
    }
}

/* Short prompts come between: what their cheap rows teach must not be taken for the long one's. */
static void short_prompts_between_do_not_mislead(void **state)
{
    (void)state;
    enum { N = 8 };
    struct pace p = { .max_slowdown = 2 };
    int pos = 0, n_steps = 0, n_late = 0;
    decode(&p, N, 10);
    read_beside(&p, N, 30);
    while (pos < 30000) {
        for (int i = 0; i < 10 && pos < 30000; i++, n_steps++)
            n_late += step_beside(&p, N, &pos) > 2.2 * step_ms(N, 0);
        for (int i = 0; i < 10; i++, n_steps++)
            n_late += read_beside(&p, N, 1) > 2.2 * step_ms(N, 0);
    }
    assert_true(n_late * 100 <= n_steps);
}

static void one_delay_is_forgotten_and_a_slower_machine_is_learned(void **state)
{
    (void)state;
    struct pace p = { .max_slowdown = 2 };
    decode(&p, 16, 20);
    read_beside(&p, 16, 61);
    int before = pace_rows(&p, pace_budget(&p, 16), 0);
    pace_note(&p, 16, before, 0, 100 * 1000 * 1000); /* somebody closed the lid */
    assert_true(pace_rows(&p, 1, 0) >= 1);
    read_beside(&p, 16, 71);
    assert_in_range(pace_rows(&p, pace_budget(&p, 16), 0), before - 1, before + 1);
    for (int i = 0; i < 60; i++)
        pace_note(&p, 16, 16, 0, 32 * 14 * 1000);
    assert_true(p.row_us > 13900);
}

static void zero_means_no_limit(void **state)
{
    (void)state;
    struct pace p = { 0 };
    decode(&p, 1, 3);
    read_beside(&p, 1, 3);
    assert_int_equal(pace_rows(&p, pace_budget(&p, 1), 0), INT32_MAX);
    assert_true(pace_spend(&p, pace_budget(&p, 1), 1000, 0) > 1e300);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_read_before_the_others_were_measured_alone),
        cmocka_unit_test(a_step_that_reads_stays_within_the_slowdown_and_uses_it),
        cmocka_unit_test(prompts_are_read_beside_many_that_were_never_alone),
        cmocka_unit_test(a_very_long_prompt_stays_within_the_slowdown),
        cmocka_unit_test(short_prompts_between_do_not_mislead),
        cmocka_unit_test(one_delay_is_forgotten_and_a_slower_machine_is_learned),
        cmocka_unit_test(zero_means_no_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
