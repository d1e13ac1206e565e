/* Collectives of ranks whose memory is on cards: the sums of cluster/, whatever the number of ranks, in a step and between
 * steps. The ranks are threads, and the cards those of the stand-in for the driver. */
#include "backend/cuda/cuda.h"
#include "support/ranks.h"

#include "backend/cuda/ranks/cuda_cluster.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BEFORE = 16, MAX_RANKS = 3 };

/* Rows to sum: few, and more than ranks send to one another whole. */
struct shape {
    int n_rows, n;
};

static float value_of(int rank, int i)
{
    return (float)((i * 37 + rank * 101) % 97) / 7 + (rank == 1 ? 1e6f : 0);
}

static float sum_of(int n_ranks, int i)
{
    float sum = value_of(0, i);
    for (int r = 1; r < n_ranks; r++)
        sum += value_of(r, i);
    return sum;
}

static struct backend *open_card(struct cluster *cluster)
{
    static const float freqs[4] = { 1, 1, 1, 1 };
    static const struct attention_shape shape = { .n_heads = 1,
                                                  .n_kv_heads = 1,
                                                  .head_dim = 8,
                                                  .rotary_dim = 8,
                                                  .rope = ROPE_HALF,
                                                  .rope_freqs = freqs,
                                                  .rope_scale = 1,
                                                  .scale = 1 };
    struct backend *be = NULL;
    struct tutti_error err;
    struct backend_options options = {
        .n_threads = 1, .n_layers = 1, .n_kinds = 1, .attention = &shape, .cluster = cluster
    };
    if (backend_cuda_new(&be, CUDA_ANY_CARD, &options, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return be;
}

/* Checks floats begin to end - 1 of x [n]. */
static void check(struct backend *be, struct floats x, size_t n, int n_ranks, int begin, int end)
{
    float *got = malloc(n * sizeof *got);
    assert_non_null(got);
    be->ops->download(be, got, x, n);
    for (int i = begin; i < end; i++) {
        float want = sum_of(n_ranks, i);
        assert_memory_equal(&got[i], &want, sizeof want);
    }
    free(got);
}

/* The stand-in for NCCL has two cards, and ranks that share a card do without it. */
static void check_way(struct backend *be, struct cluster *cluster)
{
    bool can = getenv("TUTTI_TEST_NCCL") && cluster_n_ranks(cluster) > 1 && cluster_n_local(cluster) <= 2;
    assert_true(can == (cuda_of(be)->nccl != NULL));
}

static void sum_rows(void *arg, struct cluster *cluster)
{
    const struct shape *shape = arg;
    struct backend *be = open_card(cluster);
    const struct backend_ops *op = be->ops;
    int rank = cluster_rank(cluster), n_ranks = cluster_n_ranks(cluster), begin, end, n_rows = shape->n_rows,
        n = shape->n;
    size_t n_floats = (size_t)n_rows * (size_t)n;
    float *own = malloc(n_floats * sizeof *own);
    assert_non_null(own);
    for (size_t i = 0; i < n_floats; i++)
        own[i] = value_of(rank, (int)i);
    struct floats memory = op->alloc_shared(be, BEFORE + n_floats), x = floats_at(memory, BEFORE);
    assert_non_null(memory.buffer);
    check_way(be, cluster);
    op->upload(be, x, own, n_floats);
    assert_true(op->reduce(be, x, n_floats));
    check(be, x, n_floats, n_ranks, 0, (int)n_floats);

    op->upload(be, x, own, n_floats);
    assert_true(op->reduce_rows(be, x, n_rows, n));
    cluster_own_rows(cluster, n_rows, &begin, &end);
    check(be, x, n_floats, n_ranks, begin * n, end * n);
    assert_true(op->all_gather_rows(be, x, n_rows, n));
    check(be, x, n_floats, n_ranks, 0, (int)n_floats);
    free(own);
    op->dealloc_shared(be, memory);
    be->ops->free(be);
    cluster_close(cluster);
}

/* Parts of different width; the rows of all are more than the memory of a transfer. */
static void collect_parts(void *arg, struct cluster *cluster)
{
    (void)arg;
    enum { ROWS = 5, PART = 600000 };
    struct backend *be = open_card(cluster);
    const struct backend_ops *op = be->ops;
    int rank = cluster_rank(cluster), n_ranks = cluster_n_ranks(cluster), begins[MAX_RANKS + 1] = { 0 };
    for (int r = 0; r < n_ranks; r++)
        begins[r + 1] = begins[r] + PART + 1000 * r;
    int n_part = begins[rank + 1] - begins[rank], n_whole = begins[n_ranks];
    size_t part_floats = (size_t)ROWS * (size_t)n_part, whole_floats = (size_t)ROWS * (size_t)n_whole;
    float *own = malloc(part_floats * sizeof *own), *all = malloc(whole_floats * sizeof *all);
    assert_true(own && all);
    for (size_t i = 0; i < part_floats; i++)
        own[i] = value_of(rank, (int)i);
    struct floats shared = op->alloc_shared(be, 1), part = op->alloc(be, part_floats);
    struct floats whole = rank == 0 ? op->alloc(be, whole_floats) : NO_FLOATS;
    op->upload(be, part, own, part_floats);
    assert_true(op->collect(be, whole, part, ROWS, begins));
    if (rank == 0) {
        op->download(be, all, whole, whole_floats);
        for (int row = 0; row < ROWS; row++)
            for (int r = 0; r < n_ranks; r++)
                for (int i = 0, n = begins[r + 1] - begins[r]; i < n; i++)
                    assert_true(all[(size_t)row * (size_t)n_whole + (size_t)(begins[r] + i)] ==
                                value_of(r, row * n + i));
    }
    op->dealloc_shared(be, shared);
    op->dealloc(be, part);
    op->dealloc(be, whole);
    free(own);
    free(all);
    be->ops->free(be);
    cluster_close(cluster);
}

static void ranks_on_cards_sum_in_their_order(void **state)
{
    (void)state;
    static const struct shape shapes[] = { { 7, 24 }, { 1, 5 }, { 5, 33333 } };
    for (int n_ranks = 1; n_ranks <= MAX_RANKS; n_ranks++)
        for (int i = 0; i < 3; i++)
            for (int is_apart = 0; is_apart < 2; is_apart++)
                ranks_run_in(
                    &(struct ranks_setting){ .n_ranks = n_ranks, .n_groups = 1, .is_apart = is_apart },
                    sum_rows, (void *)(uintptr_t)&shapes[i]);
}

static void parts_are_gathered_as_columns(void **state)
{
    (void)state;
    ranks_run(2, 1, false, collect_parts, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_on_cards_sum_in_their_order),
        cmocka_unit_test(parts_are_gathered_as_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
