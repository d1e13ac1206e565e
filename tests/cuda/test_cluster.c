/* Collectives of ranks whose memory is on cards: the sums of cluster/, whatever the number of ranks, in a step and between
 * steps; and failures of the functions that they call. The ranks are threads, and the cards those of the stand-in for the
 * driver. */
#include "backend/cuda/cuda.h"
#include "cluster/state.h"
#include "cuda/child.h"
#include "cuda/narrow_card.h"
#include "cuda/standin_find.h"
#include "support/ranks.h"

#include "backend/cuda/ranks/cuda_cluster.h"
#include "backend/cuda/ranks/nccl.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

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

static enum tutti_status open_rank(struct backend **out, struct cluster *cluster, struct tutti_error *err)
{
    const struct backend_options options = narrow_options(cluster);
    return backend_cuda_new(out, CUDA_ANY_CARD, &options, err);
}

static struct backend *open_card(struct cluster *cluster)
{
    struct backend *be = NULL;
    struct tutti_error err;
    if (open_rank(&be, cluster, &err) != TUTTI_OK)
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
    assert_true(be->ops->feeds_tokens(be) == (can || cluster_n_ranks(cluster) == 1));
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

/* ---- failures ---- */

static const char *const FUNCTIONS[] = {
#define FUNCTION(field, symbol, arguments) symbol,
    NCCL_FUNCTIONS(FUNCTION)
    /* Of the driver, those that collectives add to what a single process calls. */
    "cuDeviceGetCount",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuLaunchKernel",
    "cuStreamSynchronize",
    "cuCtxSetCurrent",
#undef FUNCTION
};
enum {
    N_FUNCTIONS = sizeof FUNCTIONS / sizeof *FUNCTIONS,
    LIFE_ROWS = 3,
    LIFE_WIDTH = 24,
    LIFE_STEPS = 3, /* that are alike, so that their list is recorded or found to be hopeless */
    PATIENCE = 120
};

/* What a process of ranks ends with. */
enum outcome { WENT_ON, FAILED_CLEARLY, WRONG, UNCLEAR };

/* A rank that fails ends its process, and that ends the others. */
static _Noreturn void end_rank(enum tutti_status st, const struct tutti_error *err)
{
    bool is_clear = st != TUTTI_OK && strncmp(err->text, "device cuda", 11) == 0;
    if (!is_clear)
        fprintf(stderr, "unclear: %s\n", err->text);
    _exit(is_clear ? FAILED_CLEARLY : UNCLEAR);
}

static void check_rank(struct backend *be)
{
    struct tutti_error err = { 0 };
    enum tutti_status st = be->ops->check(be, &err);
    if (st != TUTTI_OK)
        end_rank(st, &err);
}

static void check_sums(struct backend *be, struct floats x, int n_ranks)
{
    float got[LIFE_ROWS * LIFE_WIDTH];
    be->ops->download(be, got, x, LIFE_ROWS * LIFE_WIDTH);
    check_rank(be);
    for (int i = 0; i < LIFE_ROWS * LIFE_WIDTH; i++)
        if (got[i] != sum_of(n_ranks, i))
            _exit(WRONG);
}

/* A step whose rows have these tokens and sources. */
static struct step make_step(const int32_t *token_ids, const int32_t *sources)
{
    static const int32_t numbers[LIFE_ROWS] = { 0, 1, 2 };
    static const int32_t *const tables[LIFE_ROWS] = { numbers, numbers, numbers };
    return (struct step){ .n_rows = LIFE_ROWS,
                          .n_seqs = LIFE_ROWS,
                          .n_outputs = LIFE_ROWS,
                          .token_ids = token_ids,
                          .token_sources = sources,
                          .positions = numbers,
                          .seqs = numbers,
                          .page_tables = tables,
                          .output_rows = numbers };
}

static void sum_in_steps(struct backend *be, struct floats x, const float *own, int n_ranks)
{
    static const int32_t ids[LIFE_ROWS] = { 0 };
    const struct step step = make_step(ids, NULL);
    for (int i = 0; i < LIFE_STEPS; i++) {
        be->ops->upload(be, x, own, LIFE_ROWS * LIFE_WIDTH);
        be->ops->step_begin(be, &step);
        (void)be->ops->reduce(be, x, LIFE_ROWS * LIFE_WIDTH);
        be->ops->step_submit(be);
        be->ops->step_wait(be);
        check_rank(be);
        check_sums(be, x, n_ranks);
    }
}

/* Submits greedy draws from rows of logits [LIFE_ROWS][LIFE_WIDTH], each with its largest at id firsts[row]. */
static void submit_draws(struct backend *be, struct floats logits, const int32_t *firsts,
                         struct sample_input *inputs, struct sample *samples)
{
    static const struct tutti_sampling GREEDY = { .repetition_penalty = 1, .top_p = 1, .typical_p = 1 };
    float values[LIFE_ROWS * LIFE_WIDTH] = { 0 };
    for (int row = 0; row < LIFE_ROWS; row++) {
        values[row * LIFE_WIDTH + firsts[row]] = 1;
        inputs[row] = (struct sample_input){
            .kind = SAMPLE_DRAW, .row = row, .n_usable = LIFE_WIDTH, .sampling = &GREEDY, .out = &samples[row]
        };
    }
    be->ops->upload(be, logits, values, LIFE_ROWS * LIFE_WIDTH);
    if (!be->ops->sample_submit(be, logits, LIFE_WIDTH, inputs, LIFE_ROWS))
        _exit(WRONG);
}

/* Steps with tokens that rank 0 draws, and the other ranks have no other way to know. */
static void feed_steps(struct backend *be, int rank)
{
    struct tutti_error err = { 0 };
    struct floats logits = NO_FLOATS;
    struct sample_input inputs[LIFE_ROWS];
    struct sample samples[LIFE_ROWS];
    if (!be->ops->feeds_tokens(be))
        return;
    if (rank == 0) {
        enum tutti_status st = be->ops->reserve_sampling(be, LIFE_WIDTH, &err);
        if (st != TUTTI_OK)
            end_rank(st, &err);
        logits = be->ops->alloc(be, LIFE_ROWS * LIFE_WIDTH);
        check_rank(be);
        if (!logits.buffer) /* the caller's to tell */
            _exit(FAILED_CLEARLY);
    }
    for (int i = 0; i < LIFE_STEPS; i++) {
        const int32_t drawn[LIFE_ROWS] = { 5 + i, 9 - i, 17 + i }, sources[LIFE_ROWS] = { 2, -1, 0 };
        const int32_t known[LIFE_ROWS] = { 0, 3 * i, 0 }, want[LIFE_ROWS] = { drawn[2], 3 * i, drawn[0] };
        const struct step step = make_step(known, sources);
        int32_t got[LIFE_ROWS];
        if (rank == 0)
            submit_draws(be, logits, drawn, inputs, samples);
        be->ops->step_begin(be, &step);
        be->ops->step_submit(be);
        if (rank == 0)
            be->ops->sample_wait(be);
        be->ops->step_wait(be);
        check_rank(be);
        cuda_copy_out(cuda_of(be), got, cuda_of(be)->rows.token_ids, sizeof got);
        check_rank(be);
        for (int row = 0; row < LIFE_ROWS; row++)
            if (got[row] != want[row] || (rank == 0 && samples[row].token != drawn[row]))
                _exit(WRONG);
    }
    be->ops->dealloc(be, logits);
}

/* Opening, collectives in steps and between them, and closing; is_lost: at the end a rank is lost. */
static void live_as_rank(void *arg, struct cluster *cluster)
{
    static const int begins[MAX_RANKS + 1] = { 0, 10, LIFE_WIDTH };
    const bool *is_lost = arg;
    struct backend *be = NULL;
    struct tutti_error err = { 0 };
    int rank = cluster_rank(cluster), n_ranks = cluster_n_ranks(cluster);
    size_t n = LIFE_ROWS * LIFE_WIDTH, n_part = (size_t)(begins[rank + 1] - begins[rank]);
    float own[LIFE_ROWS * 64];
    enum tutti_status st = open_rank(&be, cluster, &err);
    if (st == TUTTI_OK)
        st = be->ops->reserve(be, LIFE_ROWS, &err);
    if (st != TUTTI_OK)
        end_rank(st, &err);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        own[i] = value_of(rank, (int)i);
    size_t n_padded = (size_t)backend_padded_rows(be->caps, LIFE_ROWS) * LIFE_WIDTH;
    struct floats x = be->ops->alloc_shared(be, n_padded), part = be->ops->alloc(be, LIFE_ROWS * n_part);
    struct floats whole = rank == 0 ? be->ops->alloc(be, n) : NO_FLOATS;
    check_rank(be);
    if (!x.buffer || !part.buffer || (rank == 0 && !whole.buffer)) /* the caller's to tell */
        _exit(FAILED_CLEARLY);
    sum_in_steps(be, x, own, n_ranks);
    feed_steps(be, rank);
    be->ops->upload(be, x, own, n);
    (void)be->ops->reduce_rows(be, x, LIFE_ROWS, LIFE_WIDTH);
    (void)be->ops->all_gather_rows(be, x, LIFE_ROWS, LIFE_WIDTH);
    check_sums(be, x, n_ranks);
    be->ops->upload(be, part, own, LIFE_ROWS * n_part);
    (void)be->ops->collect(be, whole, part, LIFE_ROWS, begins);
    check_rank(be);
    (void)cluster_end(cluster); /* all have called what they call together */
    be->ops->dealloc(be, whole);
    be->ops->dealloc(be, part);
    be->ops->dealloc_shared(be, x);
    if (*is_lost)
        atomic_store(&cluster->is_broken, true);
    be->ops->free(be);
    cluster_close(cluster);
}

/* Call number call of a function fails. *n_calls: how many there were; *has_failed: the failure was given. */
static int ranks_in_process(const char *function, long call, bool is_lost, long *n_calls)
{
    int status = 0, ends[2];
    long told = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = child_fork(PATIENCE);
    if (child == 0) {
        standin_functions()->fail_call(function, call, 719);
        const struct ranks_setting setting = { .n_ranks = 2, .n_groups = 1 };
        ranks_run_in(&setting, live_as_rank, &is_lost);
        told = standin_functions()->calls(function);
        _exit(write(ends[1], &told, sizeof told) == sizeof told ? WENT_ON : WRONG);
    }
    close(ends[1]);
    assert_int_equal(waitpid(child, &status, 0), child);
    *n_calls = read(ends[0], &told, sizeof told) == sizeof told ? told : 0;
    close(ends[0]);
    if (!WIFEXITED(status) || WEXITSTATUS(status) >= WRONG)
        fail_msg("%s fails at call %ld: the process ended with %#x", function, call, (unsigned)status);
    return WEXITSTATUS(status);
}

static void every_function_of_collectives_may_fail(void **state)
{
    (void)state;
    bool has_nccl = getenv("TUTTI_TEST_NCCL") != NULL;
    for (int i = 0; i < N_FUNCTIONS; i++) {
        int counts[WRONG] = { 0 };
        long n_calls = 0, none;
        bool is_of_nccl = strncmp(FUNCTIONS[i], "nccl", 4) == 0;
        bool is_lost = strcmp(FUNCTIONS[i], "ncclCommAbort") == 0; /* which is called then only */
        if (is_of_nccl && !has_nccl)
            continue;
        assert_int_equal(ranks_in_process(FUNCTIONS[i], 0, is_lost, &n_calls), WENT_ON);
        assert_true(n_calls > 0);
        for (long call = 1, step = 1 + n_calls / 6; call <= n_calls;
             call += call + step < n_calls || call == n_calls ? step : n_calls - call)
            counts[ranks_in_process(FUNCTIONS[i], call, is_lost, &none)]++;
        print_message("# %s: %ld calls; %d failures end clearly, %d make no difference\n", FUNCTIONS[i],
                      n_calls, counts[FAILED_CLEARLY], counts[WENT_ON]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            every_function_of_collectives_may_fail), /* first: its processes begin without a driver */
        cmocka_unit_test(ranks_on_cards_sum_in_their_order),
        cmocka_unit_test(parts_are_gathered_as_columns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
