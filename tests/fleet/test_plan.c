/* The arithmetic of plans against figures worked out by hand. */
#include "fleet/plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A row's operations: 2 layers * 64 * (128 + 128 + 3 * 256), and 64 * 1024 for logits, times two: 393,216. A token's keys and values:
 * 2 * 2 layers * 4 heads * 32 bytes: 512. */
static const struct plan_model MODEL = {
    .desc = { .n_layers = 2,
              .d_model = 64,
              .n_heads = 4,
              .n_kv_heads = 4,
              .head_dim = 16,
              .d_ff = 256,
              .n_vocab = 1024,
              .n_ctx = 4096,
              .has_gate = true },
    .kv_type = DTYPE_F16,
    .qkv_bytes = 6e6,
    .attn_out_bytes = 2e6,
    .gate_up_bytes = 8e6,
    .down_bytes = 4e6,
    .embedding_bytes = 10e6,
    .output_bytes = 10e6,
    .whole_bytes = 1e6,
    .blocks = { 1, 1 },
};
static const struct plan_rates RATES = { .type = DTYPE_F16,
                                         .n_cores = 2,
                                         .read_gbps = 40,
                                         .linear_gbps = 30,
                                         .linear_gops = 3.93216,
                                         .attention_gbps = 5.12 };
static const struct plan_hosts HOSTS = {
    .n_hosts = 4, .n_cores = 2, .link_gbps = 8, .latency_us = 10, .memory_bytes = 50e6
};

static void assert_near(double found, double expected)
{
    if (!(fabs(found - expected) <= 1e-6 * fabs(expected)))
        fail_msg("%.9g, expected %.9g", found, expected);
}

/* 10 users with 99 tokens behind them: matrices are read in 1 ms, as long as computing takes; keys and values in 0.1 ms. */
static void a_step_on_one_host_reads_and_computes_at_once(void **state)
{
    (void)state;
    struct plan_work work = plan_decode(&MODEL, 10, 99);
    struct plan_step s = plan_reckon(&RATES, &MODEL, &HOSTS, 1, &work);
    assert_near(s.read_s, 1.1e-3);
    assert_near(s.compute_s, 1e-3);
    assert_near(s.network_s, 0);
    assert_near(s.total_s, 1.189207115e-3 + 0.1e-3);
}

/* Half of everything on each of two; five sums of 2,560 bytes take 10 + 2.56 us each, the plan 10 us, half of the logits (20,480 bytes)
 * 10 + 20.48 us. */
static void two_hosts_halve_the_work_and_wait_for_sums(void **state)
{
    (void)state;
    struct plan_work work = plan_decode(&MODEL, 10, 99);
    struct plan_step s = plan_reckon(&RATES, &MODEL, &HOSTS, 2, &work);
    assert_near(s.read_s, 0.55e-3);
    assert_near(s.compute_s, 0.5e-3);
    assert_near(s.network_s, (5 * 12.56 + 10 + 30.48) * 1e-6);
    assert_near(s.total_s, 594.6035575e-6 + 50e-6 + 103.28e-6);
}

/* Of a prompt of 1,000 tokens a sum is 256,000 bytes: two exchanges of half of it, 10 + 128 us each. One row has logits. */
static void large_sums_take_two_exchanges(void **state)
{
    (void)state;
    struct plan_work work = plan_prefill(&MODEL, 1000);
    struct plan_step s = plan_reckon(&RATES, &MODEL, &HOSTS, 2, &work);
    assert_near(work.seen, 500500);
    assert_near(work.stored, 1000);
    assert_near(s.network_s, (5 * 276 + 10 + 12.048) * 1e-6);
}

static void other_hosts_scale_what_was_measured(void **state)
{
    (void)state;
    struct plan_hosts hosts = HOSTS;
    struct plan_work work = plan_decode(&MODEL, 10, 99);
    hosts.n_cores = 8;
    hosts.read_gbps = 80;
    struct plan_step s = plan_reckon(&RATES, &MODEL, &hosts, 1, &work);
    assert_near(s.read_s, 0.55e-3);
    assert_near(s.compute_s, 0.25e-3);
}

/* All of it is 41 MB: 9 MB are left, for 156 users of 7 pages (57,344 bytes), four times. Two ranks have 21 MB and half a user each. */
static void memory_says_how_many_users_fit(void **state)
{
    (void)state;
    struct plan_layout l[LIMIT_RANKS];
    assert_int_equal(plan_layouts(l, &MODEL, &HOSTS, 100), 3); /* four heads: not 3 */
    assert_int_equal(l[0].tp, 1);
    assert_int_equal(l[0].dp, 4);
    assert_near(l[0].weight_bytes, 41e6);
    assert_near(l[0].user_bytes, 57344);
    assert_int_equal(l[0].n_users_fit, 4 * 156);
    assert_int_equal(l[1].tp, 2);
    assert_int_equal(l[1].dp, 2);
    assert_near(l[1].weight_bytes, 21e6);
    assert_int_equal(l[1].n_users_fit, 2 * 1011);
    assert_int_equal(l[2].tp, 4);
    assert_int_equal(l[2].dp, 1);
    assert_int_equal(l[2].n_users_fit, 2720);
    struct plan_hosts small = HOSTS;
    small.memory_bytes = 21e6;
    assert_int_equal(plan_layouts(l, &MODEL, &small, 100), 3);
    assert_int_equal(l[0].n_users_fit, 0);
    assert_int_equal(l[1].n_users_fit, 0);
    assert_int_equal(l[2].n_users_fit, (int)(10e6 / 14336));
}

/* Two KV heads over four ranks: each has one, so two copies are kept. */
static void copies_of_kv_heads_cost_memory(void **state)
{
    (void)state;
    struct plan_model model = MODEL;
    struct plan_layout l[LIMIT_RANKS];
    model.desc.n_kv_heads = 2;
    plan_layouts(l, &model, &HOSTS, 100);
    assert_near(l[2].user_bytes, 14336); /* one of two heads of 28,672 */
    /* q's quarter and half of k's and v's, 16 + 2 * 16 of 128 rows; a quarter of all else, and what is whole */
    assert_near(l[2].weight_bytes, 6e6 * 48 / 128 + 24e6 / 4 + 10e6 / 4 + 1e6);
}

static void replicas_share_users(void **state)
{
    (void)state;
    struct plan_layout l[LIMIT_RANKS];
    struct plan_step step;
    plan_layouts(l, &MODEL, &HOSTS, 100);
    assert_near(plan_tokens(&RATES, &MODEL, &HOSTS, &l[0], 40, 99, &step), 40 / 1.289207115e-3);
    assert_near(step.total_s, 1.289207115e-3);
    assert_near(plan_tokens(&RATES, &MODEL, &HOSTS, &l[0], 37, 99, &step), 37 / 1.289207115e-3);
    assert_near(plan_tokens(&RATES, &MODEL, &HOSTS, &l[1], 20, 99, &step), 20 / 747.8835575e-6);
}

static void a_window_hides_what_lies_before_it(void **state)
{
    (void)state;
    struct plan_model model = MODEL;
    model.desc.window = 50;
    assert_near(plan_decode(&model, 10, 99).seen, 500);
    assert_near(plan_prefill(&model, 100).seen, 50 * 51 / 2 + 50 * 50);
}

/* Steps of 1 and 32 rows as the rates above give them: 1 ms of reading and 0.1 of computing, and 3.2 of computing. */
static void rates_come_out_of_measured_steps(void **state)
{
    (void)state;
    struct plan_work few = plan_decode(&MODEL, 1, 99), many = plan_decode(&MODEL, 32, 99);
    struct plan_sample samples[3] = { plan_sample_of(&MODEL, &many), plan_sample_of(&MODEL, &few) };
    struct plan_rates rates = { .type = DTYPE_F16, .n_cores = 2 };
    struct tutti_error err = { 0 };
    samples[0].n_rows = 32;
    samples[0].seconds = 3.207574e-3 + 0.32e-3; /* (1 + 3.2^4)^(1/4) */
    samples[1].n_rows = 1;
    samples[1].seconds = 1.000024999e-3 + 0.01e-3;
    const struct plan_attention_sample attention = { .seconds = 1e-3, .kv_bytes = 5.12e6, .read_gbps = 40 };
    assert_int_equal(plan_rates_fit(&rates, samples, 2, &attention, 40, 0, &err), TUTTI_OK);
    assert_near(rates.attention_gbps, 5.12);
    assert_true(fabs(rates.linear_gbps / 30 - 1) < 1e-5);
    assert_true(fabs(rates.linear_gops / 3.93216 - 1) < 1e-5);
}

static void steps_that_tell_nothing_are_refused(void **state)
{
    (void)state;
    struct plan_work work = plan_decode(&MODEL, 1, 0);
    struct plan_sample samples[2] = { plan_sample_of(&MODEL, &work), plan_sample_of(&MODEL, &work) };
    struct plan_rates rates = { .n_cores = 2 };
    struct tutti_error err = { 0 };
    samples[0].n_rows = 1;
    samples[0].seconds = 1e-3;
    samples[1].n_rows = 8;
    samples[1].seconds = 2e-3;
    assert_int_equal(plan_rates_fit(&rates, samples, 0, NULL, 40, 100, &err), TUTTI_E_ARGUMENT);
    assert_int_equal(plan_rates_fit(&rates, samples, 2, NULL, 40, 100, &err), TUTTI_E_ARGUMENT);
    assert_non_null(strstr(err.text, "steps of 1 to 8 rows were measured"));
    samples[1].n_rows = 32;
    samples[1].seconds = 0.5e-3; /* faster than one row */
    assert_int_equal(plan_rates_fit(&rates, samples, 2, NULL, 40, 100, &err), TUTTI_E_ARGUMENT);
    assert_non_null(strstr(err.text, "do not tell reading from computing"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_on_one_host_reads_and_computes_at_once),
        cmocka_unit_test(two_hosts_halve_the_work_and_wait_for_sums),
        cmocka_unit_test(large_sums_take_two_exchanges),
        cmocka_unit_test(other_hosts_scale_what_was_measured),
        cmocka_unit_test(memory_says_how_many_users_fit),
        cmocka_unit_test(copies_of_kv_heads_cost_memory),
        cmocka_unit_test(replicas_share_users),
        cmocka_unit_test(a_window_hides_what_lies_before_it),
        cmocka_unit_test(rates_come_out_of_measured_steps),
        cmocka_unit_test(steps_that_tell_nothing_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
