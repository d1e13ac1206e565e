/* Arrival times and the order of prompts: their distribution, and that the seed alone makes them. */
#include "load/arrivals.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N = 200000 };

static void gaps_of_poisson_arrivals_have_the_mean_and_variance_of_their_law(void **state)
{
    (void)state;
    static const double RATES[] = { 0.05, 6, 20000 };
    for (size_t k = 0; k < sizeof RATES / sizeof *RATES; k++) {
        struct arrivals a;
        double last = 0, sum = 0, squares = 0, cubes = 0, rate = RATES[k];
        arrivals_init(&a, ARRIVALS_POISSON, rate, 17 + k);
        for (int i = 0; i < N; i++) {
            double at = arrivals_next(&a), gap = (at - last) * rate;
            assert_true(at >= last);
            last = at;
            sum += gap;
            squares += gap * gap;
            cubes += gap * gap * gap;
        }
        /* The moments of an exponential distribution are 1, 2 and 6; five standard errors of each. */
        assert_true(fabs(sum / N - 1) < 5 * sqrt(1.0 / N));
        assert_true(fabs(squares / N - 2) < 5 * sqrt(20.0 / N));
        assert_true(fabs(cubes / N - 6) < 5 * sqrt(684.0 / N));
    }
}

static void numbers_of_arrivals_in_equal_times_have_a_variance_of_their_mean(void **state)
{
    (void)state;
    enum { WINDOWS = 20000, RATE = 5 };
    struct arrivals a;
    arrivals_init(&a, ARRIVALS_POISSON, RATE, 3);
    double at = arrivals_next(&a), sum = 0, squares = 0;
    for (int window = 0; window < WINDOWS; window++) {
        int n = 0;
        for (; at < window + 1; at = arrivals_next(&a))
            n++;
        sum += n;
        squares += (double)n * n;
    }
    double mean = sum / WINDOWS, variance = squares / WINDOWS - mean * mean;
    assert_true(fabs(mean - RATE) < 5 * sqrt((double)RATE / WINDOWS));
    assert_true(fabs(variance / mean - 1) < 5 * sqrt(2.2 / WINDOWS)); /* 2 + 1 / mean */
}

static void gaps_do_not_depend_on_each_other(void **state)
{
    (void)state;
    struct arrivals a;
    arrivals_init(&a, ARRIVALS_POISSON, 1, 99);
    double last = arrivals_next(&a), before = 1, products = 0;
    for (int i = 0; i < N; i++) {
        double at = arrivals_next(&a);
        products += (at - last - 1) * (before - 1);
        before = at - last;
        last = at;
    }
    assert_true(fabs(products / N) < 5 * sqrt(1.0 / N));
}

static void even_arrivals_have_equal_gaps(void **state)
{
    (void)state;
    struct arrivals a;
    arrivals_init(&a, ARRIVALS_EVEN, 3, 1);
    for (int i = 1; i <= 30000; i++) {
        double at = arrivals_next(&a);
        assert_true(fabs(at - i / 3.0) < 1e-9);
    }
}

static void the_same_seed_gives_the_same_arrivals(void **state)
{
    (void)state;
    struct arrivals a, b, other;
    int n_equal = 0;
    arrivals_init(&a, ARRIVALS_POISSON, 10, 5);
    arrivals_init(&b, ARRIVALS_POISSON, 10, 5);
    arrivals_init(&other, ARRIVALS_POISSON, 10, 6);
    for (int i = 0; i < 1000; i++) {
        double at = arrivals_next(&a);
        assert_true(at == arrivals_next(&b));
        n_equal += at == arrivals_next(&other);
    }
    assert_int_equal(n_equal, 0);
}

/* ---- rounds ---- */

static void every_round_takes_each_prompt_once(void **state)
{
    (void)state;
    enum { PROMPTS = 257 };
    uint32_t first[PROMPTS], again[PROMPTS];
    struct rounds r;
    assert_int_equal(rounds_init(&r, PROMPTS, false, 11, NULL), TUTTI_OK);
    for (int round = 0; round < 3; round++) {
        bool seen[PROMPTS] = { false };
        for (int i = 0; i < PROMPTS; i++) {
            uint32_t id = rounds_next(&r);
            assert_true(id < PROMPTS && !seen[id]);
            seen[id] = true;
            (round == 0 ? first : again)[i] = id;
        }
        if (round > 0)
            assert_true(memcmp(first, again, sizeof first) != 0);
    }
    rounds_clear(&r);
    assert_int_equal(rounds_init(&r, PROMPTS, false, 11, NULL), TUTTI_OK);
    for (int i = 0; i < PROMPTS; i++)
        assert_int_equal(rounds_next(&r), first[i]);
    rounds_clear(&r);
}

static void each_order_of_few_prompts_is_as_frequent_as_the_others(void **state)
{
    (void)state;
    enum { ROUNDS = 60000, ORDERS = 6 };
    int n_seen[27] = { 0 };
    struct rounds r;
    assert_int_equal(rounds_init(&r, 3, false, 1, NULL), TUTTI_OK);
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t a = rounds_next(&r), b = rounds_next(&r), c = rounds_next(&r);
        n_seen[9 * a + 3 * b + c]++;
    }
    double chi_squared = 0, expected = (double)ROUNDS / ORDERS;
    int n_orders = 0;
    for (int i = 0; i < 27; i++) {
        n_orders += n_seen[i] > 0;
        chi_squared += n_seen[i] > 0 ? (n_seen[i] - expected) * (n_seen[i] - expected) / expected : 0;
    }
    assert_int_equal(n_orders, ORDERS);
    assert_true(chi_squared < 25.7); /* 5 degrees of freedom, p = 0.0001 */
    rounds_clear(&r);
}

static void rounds_in_order_are_those_of_the_file(void **state)
{
    (void)state;
    struct rounds r;
    assert_int_equal(rounds_init(&r, 5, true, 11, NULL), TUTTI_OK);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(rounds_next(&r), i % 5);
    rounds_clear(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gaps_of_poisson_arrivals_have_the_mean_and_variance_of_their_law),
        cmocka_unit_test(numbers_of_arrivals_in_equal_times_have_a_variance_of_their_mean),
        cmocka_unit_test(gaps_do_not_depend_on_each_other),
        cmocka_unit_test(even_arrivals_have_equal_gaps),
        cmocka_unit_test(the_same_seed_gives_the_same_arrivals),
        cmocka_unit_test(every_round_takes_each_prompt_once),
        cmocka_unit_test(each_order_of_few_prompts_is_as_frequent_as_the_others),
        cmocka_unit_test(rounds_in_order_are_those_of_the_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
