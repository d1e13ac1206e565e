/* Plans compared with figures calculated by hand. */
#include "fleet/plan.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A token's keys and values: 2 * 2 layers * 4 heads * 32 bytes: 512. */
static const struct plan_model MODEL = {
    .desc = { .n_layers = 2,
              .n_kinds = 1,
              .d_model = 64,
              .kinds[0].attn.n_heads = 4,
              .kinds[0].attn.n_kv_heads = 4,
              .kinds[0].attn.head_dim = 16,
              .kinds[0].ffn.d_ff = 256,
              .n_vocab = 1024,
              .n_ctx = 4096,
              .kinds[0].ffn.has_gate = true },
    .kv_type = DTYPE_F16,
    .bytes[0] = { [SLOT_QKV] = 6e6,
                  [SLOT_ATTN_OUT] = 2e6,
                  [SLOT_GATE_UP] = 8e6,
                  [SLOT_DOWN] = 4e6,
                  [SLOT_EMBEDDING] = 10e6,
                  [SLOT_OUTPUT] = 10e6,
                  [SLOT_ATTN_NORM] = 1e6 },
    .blocks = { 1, 1 },
};
static void assert_near(double found, double expected)
{
    if (!(fabs(found - expected) <= 1e-6 * fabs(expected)))
        fail_msg("%.9g, expected %.9g", found, expected);
}

static const double MEMORY = 50e6;

/* All weights are 41 MB. The remaining 9 MB hold 156 users of 7 pages (57,344 bytes), four times. Two ranks have 21 MB, and half of each
 * user, each. */
static void memory_limits_users(void **state)
{
    (void)state;
    struct plan_layout l[LIMIT_RANKS];
    assert_int_equal(plan_layouts(l, &MODEL, 4, MEMORY, 100), 3); /* four heads: not 3 */
    assert_int_equal(l[0].tp, 1);
    assert_int_equal(l[0].dp, 4);
    assert_int_equal(l[0].n_heads, 4);
    assert_near(l[0].weight_bytes, 41e6);
    assert_near(l[0].user_bytes, 57344);
    assert_int_equal(l[0].n_users_fit, 4 * 156);
    assert_int_equal(l[1].tp, 2);
    assert_int_equal(l[1].dp, 2);
    assert_int_equal(l[1].n_heads, 2);
    assert_int_equal(l[1].n_kv_heads, 2);
    assert_near(l[1].weight_bytes, 21e6);
    assert_near(l[1].user_bytes, 28672);
    assert_int_equal(l[1].n_users_fit, 2 * 1011);
    assert_int_equal(l[2].tp, 4);
    assert_int_equal(l[2].dp, 1);
    assert_int_equal(l[2].n_users_fit, 2720);
    assert_int_equal(plan_layouts(l, &MODEL, 4, 21e6, 100), 3);
    assert_int_equal(l[0].n_users_fit, 0);
    assert_int_equal(l[1].n_users_fit, 0);
    assert_int_equal(l[2].n_users_fit, (int)(10e6 / 14336));
}

/* Four heads do not divide over three ranks, so three machines have one replica of two. */
static void machines_left_over_stay_idle(void **state)
{
    (void)state;
    struct plan_layout l[LIMIT_RANKS];
    assert_int_equal(plan_layouts(l, &MODEL, 3, MEMORY, 100), 2);
    assert_int_equal(l[1].tp, 2);
    assert_int_equal(l[1].dp, 1);
    assert_int_equal(l[1].n_users_fit, 1011);
}

/* Two KV heads over four ranks: each rank has one, so two copies are kept. */
static void copies_of_kv_heads_cost_memory(void **state)
{
    (void)state;
    struct plan_model model = MODEL;
    struct plan_layout l[LIMIT_RANKS];
    model.desc.kinds[0].attn.n_kv_heads = 2;
    assert_int_equal(plan_layouts(l, &model, 4, MEMORY, 100), 3);
    assert_int_equal(l[2].n_heads, 1);
    assert_int_equal(l[2].n_kv_heads, 1);
    assert_near(l[2].user_bytes, 14336); /* one of two heads of 28,672 */
    /* q's quarter and half of k's and v's, 16 + 2 * 16 of 128 rows; a quarter of all else, and what is whole */
    assert_near(l[2].weight_bytes, 6e6 * 48 / 128 + 24e6 / 4 + 10e6 / 4 + 1e6);
}

/* The second layer keeps 25 pages at most: 7 of its window, 16 of a step, and 2. */
static void layers_with_a_window_keep_few_pages(void **state)
{
    (void)state;
    struct plan_model model = MODEL;
    struct plan_layout l[LIMIT_RANKS];
    model.desc.n_kinds = 2;
    model.desc.kinds[1] = model.desc.kinds[0];
    model.desc.kinds[1].attn.window = 100;
    model.desc.kind_of[1] = 1;
    assert_int_equal(plan_layouts(l, &model, 1, MEMORY, 100), 1);
    assert_near(l[0].user_bytes, 57344);
    assert_int_equal(plan_layouts(l, &model, 1, MEMORY, 4096), 1);
    assert_near(l[0].user_bytes, 256 * (256 + 25) * 16);
}

static void int8_keys_and_values_take_half_and_their_scales(void **state)
{
    (void)state;
    struct plan_model model = MODEL;
    struct plan_layout l[LIMIT_RANKS];
    model.kv_type = DTYPE_I8;
    assert_int_equal(plan_layouts(l, &model, 1, MEMORY, 100), 1);
    assert_near(l[0].user_bytes, 7 * 16 * 2 * 2 * 4 * (16 + 4));
    assert_int_equal(l[0].n_users_fit, (int)(9e6 / 35840));
}

static void assert_fewest(double memory_bytes, int64_t n_users, int tp, int dp)
{
    struct plan_layout l;
    assert_true(plan_fewest(&l, &MODEL, memory_bytes, 100, n_users));
    assert_int_equal(l.tp, tp);
    assert_int_equal(l.dp, dp);
    assert_true(l.n_users_fit >= n_users);
}

/* One machine holds 156 users, two 1,011, four 2,720. */
static void the_fewest_machines_are_found(void **state)
{
    (void)state;
    struct plan_layout l;
    assert_fewest(MEMORY, 1, 1, 1);
    assert_fewest(MEMORY, 156, 1, 1);
    assert_fewest(MEMORY, 157, 1, 2); /* of layouts with two machines, that with the smaller tp */
    assert_fewest(MEMORY, 313, 2, 1);
    assert_fewest(MEMORY, 2023, 4, 1);
    assert_fewest(MEMORY, 2721, 2, 3); /* six machines; with four each it would be eight */
    assert_fewest(21e6, 1, 4, 1);      /* smaller machines hold less than a half of the weights */
    assert_fewest(MEMORY, 16 * 2720, 4, 16);
    assert_false(plan_fewest(&l, &MODEL, MEMORY, 100, 16 * 2720 + 1)); /* more than 64 machines */
    assert_false(plan_fewest(&l, &MODEL, 5e6, 100, 1)); /* less than a quarter of the weights */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_limits_users),
        cmocka_unit_test(machines_left_over_stay_idle),
        cmocka_unit_test(copies_of_kv_heads_cost_memory),
        cmocka_unit_test(layers_with_a_window_keep_few_pages),
        cmocka_unit_test(int8_keys_and_values_take_half_and_their_scales),
        cmocka_unit_test(the_fewest_machines_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
