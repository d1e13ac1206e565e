/* The router of the card against kernels/route.c: equal choices and weights, bit for bit; and the rows in the order of
 * their experts. */
#include "cuda/emulator.h"
#include "kernels/cuda/experts/experts_args.h"
#include "kernels/route.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

extern const struct emulated_kernel route_rows_kernel, group_rows_kernel, route_few_kernel,
    sum_experts_kernel;

enum { MAX_ROWS = 72, MAX_CHOICES = MAX_ROWS * 32, MAX_LISTS = MAX_CHOICES };

static uint64_t random_state = 7;

/* -1 to 1. */
static float draw(void)
{
    random_state = random_state * 6364136223846793005 + 1442695040888963407;
    return (float)((int32_t)(random_state >> 32)) / 2147483648.0f;
}

/* What the card's memory has after a step; ids, weights and the like as in the arguments of the kernels. */
struct routed {
    struct step_counts counts;
    float scores[MAX_ROWS * 301], bias[300], factors[300], weights[MAX_CHOICES];
    int32_t ids[MAX_CHOICES], rows[MAX_CHOICES], entries[MAX_CHOICES], n_lists;
    struct linear_rows lists[MAX_LISTS];
    uint32_t n_rows_of[300];
    uint64_t n_read;
};

static struct routed *routed_new(const struct routing *r, int n_scores, float spread)
{
    struct routed *d = malloc(sizeof *d);
    assert_non_null(d);
    memset(d, 0xff, sizeof *d);
    memset(d->n_rows_of, 0, sizeof d->n_rows_of);
    d->n_read = 0;
    for (int i = 0; i < MAX_ROWS * n_scores; i++)
        d->scores[i] = draw() * spread;
    for (int i = 0; i < r->n_experts; i++) {
        d->bias[i] = draw() * 0.1f;
        d->factors[i] = draw();
    }
    return d;
}

/* Weights that are normed have a factor of each expert, too. */
static bool has_factors(const struct routing *r)
{
    return r->is_normed;
}

static struct route_args route_args(struct routed *d, const struct routing *r, bool has_bias, int n_scores,
                                    int n_rows)
{
    d->counts = (struct step_counts){ .n_rows = n_rows };
    return (struct route_args){ .counts = &d->counts,
                                .scores = d->scores,
                                .bias = has_bias ? d->bias : NULL,
                                .factors = has_factors(r) ? d->factors : NULL,
                                .ids = d->ids,
                                .weights = d->weights,
                                .n_rows_of = d->n_rows_of,
                                .n_scores = n_scores,
                                .n_experts = r->n_experts,
                                .n_chosen = r->n_chosen,
                                .is_sigmoid = r->kind == ROUTE_SIGMOID,
                                .is_normed = r->is_normed,
                                .n_groups = r->n_groups,
                                .n_chosen_groups = r->n_chosen_groups,
                                .group_best = r->group_best,
                                .scale = r->scale };
}

static void route(struct routed *d, const struct routing *r, bool has_bias, int n_scores, int n_rows,
                  int n_padded)
{
    const struct route_args args = route_args(d, r, has_bias, n_scores, n_rows);
    const struct emulated_grid grid = {
        .x = n_padded, .y = 1, .z = 1, .n_threads = WARP, .shared_bytes = route_shared_bytes(r->n_experts)
    };
    emulate(&route_rows_kernel, &grid, &args);
}

/* The choices of row from, which is at d's row to. */
static void check_row(const struct routed *d, const struct routing *r, const float *bias, const float *logits,
                      int row)
{
    struct kernels k;
    float scores[300], weights[32];
    int32_t ids[32];
    kernels_init(&k, CPU_REF);
    memcpy(scores, logits, (size_t)r->n_experts * sizeof *scores);
    route_row(&k, r, bias, has_factors(r) ? d->factors : NULL, scores, ids, weights);
    assert_memory_equal(ids, d->ids + row * r->n_chosen, (size_t)r->n_chosen * sizeof *ids);
    assert_memory_equal(weights, d->weights + row * r->n_chosen, (size_t)r->n_chosen * sizeof *weights);
}

static const struct {
    struct routing routing;
    int n_rows, n_padded;
    float spread;
    bool has_bias, has_gate;
} CASES[] = {
    { { .n_experts = 3, .n_chosen = 2, .kind = ROUTE_SOFTMAX, .is_normed = true }, 1, 1, 1, false, false },
    { { .n_experts = 3, .n_chosen = 2, .kind = ROUTE_SOFTMAX }, 5, 8, 1, true, true },
    { { .n_experts = 8, .n_chosen = 2, .kind = ROUTE_SOFTMAX, .is_normed = true }, 70, 72, 9, false, true },
    { { .n_experts = 128, .n_chosen = 8, .kind = ROUTE_SOFTMAX, .is_normed = true, .scale = 2.5f },
      9,
      16,
      4,
      false,
      false },
    { { .n_experts = 300, .n_chosen = 32, .kind = ROUTE_SOFTMAX }, 3, 4, 60, true, false },
    { { .n_experts = 40,
        .n_chosen = 3,
        .kind = ROUTE_SIGMOID,
        .is_normed = true,
        .scale = 2.5f,
        .n_groups = 5,
        .n_chosen_groups = 2,
        .group_best = 2 },
      17,
      32,
      3,
      true,
      false },
    { { .n_experts = 40,
        .n_chosen = 8,
        .kind = ROUTE_SOFTMAX,
        .n_groups = 5,
        .n_chosen_groups = 1,
        .group_best = 1,
        .scale = 16 },
      7,
      8,
      3,
      false,
      false },
    { { .n_experts = 256,
        .n_chosen = 8,
        .kind = ROUTE_SIGMOID,
        .is_normed = true,
        .n_groups = 8,
        .n_chosen_groups = 4,
        .group_best = 2 },
      4,
      4,
      2,
      true,
      false },
    { { .n_experts = 35,
        .n_chosen = 4,
        .kind = ROUTE_SIGMOID,
        .n_groups = 35,
        .n_chosen_groups = 9,
        .group_best = 2 },
      4,
      4,
      2,
      true,
      true },
};
enum { N_CASES = sizeof CASES / sizeof *CASES };

static void rows_choose_what_they_choose_on_the_cpu(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        const struct routing *r = &CASES[i].routing;
        int n_scores = r->n_experts + CASES[i].has_gate;
        struct routed *d = routed_new(r, n_scores, CASES[i].spread);
        uint32_t n_rows_of[300] = { 0 };
        if (i % 2 == 1) /* ties */
            for (int c = 1; c < n_scores; c += 2)
                d->scores[c] = d->scores[c - 1];
        if (CASES[i].n_rows > 3) { /* scores of 0, and of 0 but one */
            for (int c = 0; c < r->n_experts; c++)
                d->scores[2 * n_scores + c] = -400, d->scores[3 * n_scores + c] = 0;
            d->scores[2 * n_scores + 1] = 400;
        }
        emulated_seed((uint64_t)i);
        route(d, r, CASES[i].has_bias, n_scores, CASES[i].n_rows, CASES[i].n_padded);
        for (int row = 0; row < CASES[i].n_rows; row++) {
            check_row(d, r, CASES[i].has_bias ? d->bias : NULL, d->scores + row * n_scores, row);
            for (int c = 0; c < r->n_chosen; c++)
                n_rows_of[d->ids[row * r->n_chosen + c]]++;
        }
        for (int c = CASES[i].n_rows * r->n_chosen; c < CASES[i].n_padded * r->n_chosen; c++)
            assert_int_equal(d->ids[c], -1);
        assert_memory_equal(n_rows_of, d->n_rows_of, (size_t)r->n_experts * sizeof *n_rows_of);
        free(d);
    }
}

static void what_is_no_number_goes_to_experts_that_exist(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        const struct routing *r = &CASES[i].routing;
        struct routed *d = routed_new(r, r->n_experts, 1);
        for (int c = 0; c < r->n_experts; c++) {
            d->scores[c] = NAN;
            d->scores[r->n_experts + c] = INFINITY;
            d->scores[2 * r->n_experts + c] = -INFINITY;
        }
        d->scores[3 * r->n_experts] = NAN;
        route(d, r, CASES[i].has_bias, r->n_experts, 4, 4);
        for (int row = 0; row < 4; row++) {
            const int32_t *ids = d->ids + row * r->n_chosen;
            for (int c = 0; c < r->n_chosen; c++)
                assert_true(ids[c] >= 0 && ids[c] < r->n_experts && (c == 0 || ids[c] > ids[c - 1]));
        }
        free(d);
    }
}

static struct group_args group_args(struct routed *d, const struct routing *r, int n_padded, int list_rows)
{
    return (struct group_args){ .ids = d->ids,
                                .n_rows_of = d->n_rows_of,
                                .rows = d->rows,
                                .entries = d->entries,
                                .lists = d->lists,
                                .n_lists = &d->n_lists,
                                .n_read = &d->n_read,
                                .expert_bytes = 1000,
                                .n_choices = n_padded * r->n_chosen,
                                .n_chosen = r->n_chosen,
                                .n_experts = r->n_experts,
                                .list_rows = list_rows };
}

static void group(struct routed *d, const struct routing *r, int n_padded, int list_rows)
{
    const struct group_args args = group_args(d, r, n_padded, list_rows);
    emulate(&group_rows_kernel,
            &(struct emulated_grid){ .x = r->n_experts, .y = 1, .z = 1, .n_threads = 256 }, &args);
}

/* Both in one launch, in the memory of another step; everything is the same. */
static void check_few(const struct routed *d, const struct routing *r, bool has_bias, int n_rows,
                      int n_padded, int list_rows)
{
    struct routed *few = malloc(sizeof *few);
    assert_non_null(few);
    *few = *d;
    few->n_read = 0;
    memset(few->weights, 0xff, sizeof few->weights);
    memset(few->ids, 0xff, sizeof few->ids);
    memset(few->rows, 0xff, sizeof few->rows);
    memset(few->entries, 0xff, sizeof few->entries);
    memset(few->lists, 0xff, sizeof few->lists);
    struct route_few_args args = { .route = route_args(few, r, has_bias, r->n_experts, n_rows),
                                   .group = group_args(few, r, n_padded, list_rows) };
    struct emulated_grid grid = { .x = 1,
                                  .y = 1,
                                  .z = 1,
                                  .n_threads = ROUTE_FEW_THREADS,
                                  .shared_bytes = route_few_bytes(n_padded, r->n_experts, r->n_chosen) };
    args.route.n_rows_of = NULL;
    if (n_padded > ROUTE_FEW_ROWS || grid.shared_bytes > ROUTE_FEW_BYTES) {
        free(few);
        return;
    }
    emulate(&route_few_kernel, &grid, &args);
    assert_memory_equal(few, d, sizeof *few);
    free(few);
}

/* Entries are the choices by expert, then by row; lists cover them in order, each of one expert. */
static void check_groups(const struct routed *d, const struct routing *r, int n_rows, int list_rows)
{
    int n_entries = 0, n_lists = 0, n_used = 0;
    for (int e = 0; e < r->n_experts; e++) {
        int first = n_entries;
        for (int i = 0; i < n_rows * r->n_chosen; i++) {
            if (d->ids[i] != e)
                continue;
            assert_int_equal(d->rows[n_entries], i / r->n_chosen);
            assert_int_equal(d->entries[i], n_entries++);
        }
        n_used += n_entries > first;
        for (int begin = first; begin < n_entries; begin += list_rows) {
            const struct linear_rows *list = &d->lists[n_lists++];
            assert_int_equal(list->expert, e);
            assert_int_equal(list->begin, begin);
            assert_int_equal(list->n, n_entries - begin < list_rows ? n_entries - begin : list_rows);
        }
    }
    assert_int_equal(d->n_lists, n_lists);
    assert_true(n_lists <= expert_lists(n_rows * r->n_chosen, r->n_experts, list_rows));
    assert_int_equal(d->n_read, 1000 * n_used);
}

static void rows_are_grouped_by_expert_in_their_order(void **state)
{
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        const struct routing *r = &CASES[i].routing;
        for (int list_rows = 1; list_rows <= 16; list_rows += 15) {
            struct routed *d = routed_new(r, r->n_experts, CASES[i].spread);
            for (int row = 0; row < CASES[i].n_rows;
                 row++) /* rows of a batch are alike: some experts have none */
                for (int e = 0; e < r->n_experts; e++)
                    d->scores[row * r->n_experts + e] += e % 3 == 0 ? 3 * CASES[i].spread : 0;
            route(d, r, CASES[i].has_bias, r->n_experts, CASES[i].n_rows, CASES[i].n_padded);
            group(d, r, CASES[i].n_padded, list_rows);
            check_groups(d, r, CASES[i].n_rows, list_rows);
            check_few(d, r, CASES[i].has_bias, CASES[i].n_rows, CASES[i].n_padded, list_rows);
            free(d);
        }
    }
}

static void products_are_summed_in_the_order_of_the_experts(void **state)
{
    (void)state;
    enum { ROWS = 3, PADDED = 4, CHOSEN = 3, N = 300, SCORES = 6 };
    static const int32_t entries[PADDED * CHOSEN] = { 8, 0, 3, 1, 7, 2, 4, 6, 5, -1, -1, -1 };
    float products[ROWS * CHOSEN * N], weights[PADDED * CHOSEN], scores[PADDED * SCORES], base[PADDED * N],
        y[PADDED * N];
    const struct step_counts counts = { .n_rows = ROWS };
    uint32_t n_rows_of[5];
    for (int i = 0; i < ROWS * CHOSEN * N; i++)
        products[i] = draw();
    for (int i = 0; i < PADDED * CHOSEN; i++)
        weights[i] = draw();
    for (int i = 0; i < PADDED * SCORES; i++)
        scores[i] = draw();
    for (int i = 0; i < PADDED * N; i++)
        base[i] = draw();
    for (int kind = 0; kind < 3; kind++) { /* no base, a base, a base with a gate */
        const struct sum_args args = { .counts = &counts,
                                       .products = products,
                                       .entries = entries,
                                       .weights = weights,
                                       .scores = kind == 2 ? scores : NULL,
                                       .y = y,
                                       .n_rows_of = n_rows_of,
                                       .n = N,
                                       .n_chosen = CHOSEN,
                                       .n_experts = 5,
                                       .n_scores = SCORES,
                                       .has_base = kind > 0 };
        memset(n_rows_of, 0xff, sizeof n_rows_of);
        memcpy(y, base, sizeof y);
        if (kind == 0)
            memset(y, 0xff, sizeof y);
        emulate(&sum_experts_kernel, &(struct emulated_grid){ .x = PADDED, .y = 2, .z = 1, .n_threads = 256 },
                &args);
        for (int i = 0; i < ROWS * N; i++) {
            int r = i / N;
            float want = kind == 0 ? 0.0f : base[i];
            if (kind == 2)
                want *= route_sigmoid(scores[r * SCORES + SCORES - 1]);
            for (int c = 0; c < CHOSEN; c++)
                want = fmaf(weights[r * CHOSEN + c], products[entries[r * CHOSEN + c] * N + i % N], want);
            assert_memory_equal(&want, &y[i], sizeof want);
        }
        for (int e = 0; e < 5; e++)
            assert_int_equal(n_rows_of[e], 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_choose_what_they_choose_on_the_cpu),
        cmocka_unit_test(what_is_no_number_goes_to_experts_that_exist),
        cmocka_unit_test(rows_are_grouped_by_expert_in_their_order),
        cmocka_unit_test(products_are_summed_in_the_order_of_the_experts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
