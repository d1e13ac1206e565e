/* Reading beside decoding: how many rows. */
#include "engine/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

/* A machine that takes 64 ms for the weights and 7 ms for each row. */
static double step_ms(int n_rows)
{
    return n_rows * 7 > 64 ? n_rows * 7 : 64;
}

static void decode(struct pace *p, int n_rows, int times)
{
    for (int i = 0; i < times; i++)
        pace_note(p, n_rows, 0, (uint64_t)(step_ms(n_rows) * 1000));
}

/* Reads as many rows as it may. Returns the last step's time. */
static double read_beside(struct pace *p, int n_decoding, int times)
{
    double ms = 0;
    for (int i = 0; i < times; i++) {
        int rows = pace_reading_rows(p, n_decoding);
        ms = step_ms(n_decoding + (rows < 256 ? rows : 256));
        pace_note(p, n_decoding, rows < 256 ? rows : 256, (uint64_t)(ms * 1000));
    }
    return ms;
}

static void nothing_is_held_back_before_anything_is_known(void **state)
{
    (void)state;
    struct pace p = { .max_slowdown = 2 };
    assert_int_equal(pace_reading_rows(&p, 1), INT32_MAX);
    decode(&p, 1, 5); /* says nothing of what a row costs */
    assert_int_equal(pace_reading_rows(&p, 1), INT32_MAX);
}

static void a_step_that_reads_stays_within_the_slowdown_and_uses_it(void **state)
{
    (void)state;
    for (double slowdown = 1.25; slowdown < 6; slowdown *= 2)
        for (int n = 1; n <= 200; n = n * 3 / 2 + 1) {
            struct pace p = { .max_slowdown = slowdown };
            decode(&p, n, 40);
            read_beside(&p, n, 60);
            double alone = step_ms(n), ms = read_beside(&p, n, 1);
            assert_true(ms <= slowdown * alone || pace_reading_rows(&p, n) == 1);
            assert_true(ms >= 0.85 * slowdown * alone || ms >= step_ms(n + 256));
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
    double ms = read_beside(&p, 64, 1);
    assert_true(ms <= 2 * step_ms(64) && ms >= 1.6 * step_ms(64));
}

static void one_delay_is_forgotten_and_a_slower_machine_is_learned(void **state)
{
    (void)state;
    struct pace p = { .max_slowdown = 2 };
    decode(&p, 16, 20);
    read_beside(&p, 16, 60);
    int before = pace_reading_rows(&p, 16);
    pace_note(&p, 16, before, 100 * 1000 * 1000); /* somebody closed the lid */
    assert_true(pace_reading_rows(&p, 16) >= 1);
    read_beside(&p, 16, 60);
    assert_in_range(pace_reading_rows(&p, 16), before - 1, before + 1);
    for (int i = 0; i < 60; i++)
        pace_note(&p, 16, 16, 32 * 14 * 1000);
    assert_true(p.row_us > 13900);
}

static void zero_means_no_limit(void **state)
{
    (void)state;
    struct pace p = { 0 };
    decode(&p, 1, 3);
    read_beside(&p, 1, 3);
    assert_int_equal(pace_reading_rows(&p, 1), INT32_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_held_back_before_anything_is_known),
        cmocka_unit_test(a_step_that_reads_stays_within_the_slowdown_and_uses_it),
        cmocka_unit_test(prompts_are_read_beside_many_that_were_never_alone),
        cmocka_unit_test(one_delay_is_forgotten_and_a_slower_machine_is_learned),
        cmocka_unit_test(zero_means_no_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
