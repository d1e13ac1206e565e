/* Collectives of ranks whose memory is on cards: the sums of cluster/, whatever the number of ranks, in a step and between
 * steps. The ranks are threads, and the cards those of the stand-in for the driver. */
#include "backend/cuda/cuda.h"
#include "support/ranks.h"

#include "backend/cuda/cuda_cluster.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_ROWS = 7, N = 24, N_FLOATS = N_ROWS * N, BEFORE = 16, MAX_RANKS = 3 };

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

/* Checks floats begin to end - 1 of x, which begins at BEFORE of its buffer. */
static void check(struct backend *be, struct floats x, int n_ranks, int begin, int end)
{
    float got[N_FLOATS];
    be->ops->download(be, got, x, N_FLOATS);
    for (int i = begin; i < end; i++) {
        float want = sum_of(n_ranks, i);
        assert_memory_equal(&got[i], &want, sizeof want);
    }
}

static void sum_rows(void *arg, struct cluster *cluster)
{
    (void)arg;
    struct backend *be = open_card(cluster);
    const struct backend_ops *op = be->ops;
    int rank = cluster_rank(cluster), n_ranks = cluster_n_ranks(cluster), begin, end;
    float own[N_FLOATS];
    for (int i = 0; i < N_FLOATS; i++)
        own[i] = value_of(rank, i);
    struct floats memory = op->alloc_shared(be, BEFORE + N_FLOATS), x = floats_at(memory, BEFORE);
    assert_non_null(memory.buffer);
    op->upload(be, x, own, N_FLOATS);
    assert_true(op->reduce(be, x, N_FLOATS));
    check(be, x, n_ranks, 0, N_FLOATS);

    op->upload(be, x, own, N_FLOATS);
    assert_true(op->reduce_rows(be, x, N_ROWS, N));
    cluster_own_rows(cluster, N_ROWS, &begin, &end);
    check(be, x, n_ranks, begin * N, end * N);
    assert_true(op->all_gather_rows(be, x, N_ROWS, N));
    check(be, x, n_ranks, 0, N_FLOATS);
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
    struct floats part = op->alloc(be, part_floats);
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
    for (int n_ranks = 1; n_ranks <= MAX_RANKS; n_ranks++)
        for (int is_apart = 0; is_apart < 2; is_apart++)
            ranks_run_in(&(struct ranks_setting){ .n_ranks = n_ranks, .n_groups = 1, .is_apart = is_apart },
                         sum_rows, NULL);
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
