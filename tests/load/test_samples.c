/* Percentiles of all samples, against values that NumPy gives for the same ones. */
#include "load/samples.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void assert_near(double found, double expected)
{
    if (!(fabs(found - expected) <= 1e-9 * (1 + fabs(expected))))
        fail_msg("found %.12g, expected %.12g", found, expected);
}

/* numpy.percentile(samples, [50, 90, 99]), numpy.mean, numpy.std; samples in microseconds, all divided by 1000. */
static void percentiles_are_those_of_numpy(void **state)
{
    (void)state;
    static const struct {
        size_t n;
        uint32_t us[12];
        double mean, deviation, min, p50, p90, p99, max;
    } CASES[] = {
        { 1, { 4500 }, 4.5, 0, 4.5, 4.5, 4.5, 4.5, 4.5 },
        { 2, { 3000, 1000 }, 2, 1, 1, 2, 2.8, 2.98, 3 },
        { 5, { 40, 10, 30, 50, 20 }, 0.03, 0.014142135623730951, 0.01, 0.03, 0.046, 0.0496, 0.05 },
        { 12,
          { 5, 5, 5, 100000, 7, 1, 9, 12, 2000, 4, 4, 3 },
          8.50458333333333,
          27.592367813879058,
          0.001,
          0.005,
          1.8012,
          89.22,
          100 },
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct load_samples s = { 0 };
        for (size_t k = 0; k < CASES[i].n; k++)
            assert_true(samples_add(&s, CASES[i].us[k]));
        struct sample_summary found = samples_summarize(&s);
        assert_int_equal(found.n, CASES[i].n);
        assert_near(found.mean, CASES[i].mean);
        assert_near(found.deviation, CASES[i].deviation);
        assert_near(found.min, CASES[i].min);
        assert_near(found.p50, CASES[i].p50);
        assert_near(found.p90, CASES[i].p90);
        assert_near(found.p99, CASES[i].p99);
        assert_near(found.max, CASES[i].max);
        samples_clear(&s);
    }
}

static void a_percentile_is_exact_among_many_samples(void **state)
{
    (void)state;
    enum { N = 100001, STEP = 7919 }; /* a prime that does not divide N: every value once, in mixed order */
    struct load_samples s = { 0 };
    for (uint64_t i = 0; i < N; i++)
        assert_true(samples_add(&s, i * STEP % N));
    assert_near(samples_quantile(&s, 0.5), 50.0);
    assert_near(samples_quantile(&s, 0.99), 99.0);
    assert_near(samples_quantile(&s, 0.99999), 99.999);
    assert_near(samples_quantile(&s, 1), 100.0);
    samples_clear(&s);
}

static void no_samples_give_no_figures(void **state)
{
    (void)state;
    struct load_samples s = { 0 };
    struct sample_summary found = samples_summarize(&s);
    assert_int_equal(found.n, 0);
    assert_true(isnan(found.mean) && isnan(found.p50) && isnan(found.max));
    assert_int_equal(samples_within(&s, 10), 0);
}

static void samples_beyond_the_type_are_the_largest(void **state)
{
    (void)state;
    struct load_samples s = { 0 };
    assert_true(samples_add(&s, UINT64_MAX));
    assert_near(samples_quantile(&s, 1), UINT32_MAX / 1e3);
    samples_clear(&s);
}

static void counts_the_samples_within_a_limit(void **state)
{
    (void)state;
    struct load_samples s = { 0 };
    static const uint32_t US[] = { 5000, 1000, 3000, 3000, 3001 };
    for (size_t i = 0; i < sizeof US / sizeof *US; i++)
        assert_true(samples_add(&s, US[i]));
    assert_int_equal(samples_within(&s, 0.5), 0);
    assert_int_equal(samples_within(&s, 1), 1);
    assert_int_equal(samples_within(&s, 3), 3);
    assert_int_equal(samples_within(&s, 3.001), 4);
    assert_int_equal(samples_within(&s, 1e9), 5);
    assert_true(samples_add(&s, 2000)); /* after a sort */
    assert_int_equal(samples_within(&s, 2.5), 2);
    samples_clear(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(percentiles_are_those_of_numpy),
        cmocka_unit_test(a_percentile_is_exact_among_many_samples),
        cmocka_unit_test(no_samples_give_no_figures),
        cmocka_unit_test(samples_beyond_the_type_are_the_largest),
        cmocka_unit_test(counts_the_samples_within_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
