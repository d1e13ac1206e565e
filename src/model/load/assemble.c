#include "model/load/assemble.h"

#include "base/system/os.h"
#include "base/system/team.h"
#include "kernels/quantize/quantize.h"
#include "model/weights/weights.h"

#include <stdatomic.h>
#include <stdlib.h>

/* Rows of a thread: scales of 8-bit floats are shared by as many rows at most in common uploads. */
enum { ROWS_TOGETHER = 128 };

static void run(struct backend *be, team_fn *fn, void *arg)
{
    if (be->ops->run)
        be->ops->run(be, fn, arg);
    else
        fn(arg, 0, 1);
}

struct assembling {
    const struct tensor_view *view;
    uint8_t *out;
    atomic_bool fails;
};

static void assemble_some(void *arg, int thread, int n_threads)
{
    struct assembling *job = arg;
    const struct tensor_view *view = job->view;
    size_t row_bytes = tensor_columns_bytes(view->tensor, view->n_columns);
    int64_t begin, end;
    team_range(view->n_rows, ROWS_TOGETHER, thread, n_threads, &begin, &end);
    const struct tensor_part part = { begin, end - begin, 0, view->n_columns };
    if (begin < end && !tensor_view_copy(view, &part, job->out + (size_t)begin * row_bytes))
        atomic_store(&job->fails, true);
}

/* As tensor_bytes(). */
static const void *assemble(struct backend *be, const struct tensor *matrix, void **owned)
{
    struct tensor_view view;
    if (!matrix->source || !matrix->source->make_part)
        return tensor_bytes(matrix, owned);
    *owned = NULL;
    if (!tensor_view_init(&view, matrix))
        return NULL;
    struct assembling job = { .view = &view, .out = os_alloc_huge(matrix->n_bytes) };
    if (job.out)
        run(be, assemble_some, &job);
    if (job.fails) {
        free(job.out);
        job.out = NULL;
    }
    tensor_view_clear(&view);
    return *owned = job.out;
}

struct transposing {
    const struct tensor *matrix;
    const uint8_t *in;
    uint8_t *out;
};

static void transpose_some(void *arg, int thread, int n_threads)
{
    const struct transposing *job = arg;
    int64_t begin, end;
    team_range(job->matrix->shape[1], ROWS_TOGETHER, thread, n_threads, &begin, &end);
    weights_transpose_rows(job->out, job->matrix, job->in, begin, end);
}

const void *assemble_matrix(struct backend *be, const struct tensor *matrix, bool is_transposed, void **owned)
{
    struct transposing job = { .matrix = matrix, .in = assemble(be, matrix, owned) };
    if (!is_transposed || !job.in)
        return job.in;
    job.out = os_alloc_huge(matrix->n_bytes);
    if (job.out)
        run(be, transpose_some, &job);
    free(*owned);
    return *owned = job.out;
}

struct finding {
    const uint8_t *bytes;
    enum dtype dtype;
    int64_t n_rows, n_columns;
    _Atomic int64_t first; /* of all threads */
};

static void find_some(void *arg, int thread, int n_threads)
{
    struct finding *job = arg;
    size_t row_bytes = (size_t)(job->n_columns / dtype_block_elems(job->dtype)) *
                       (size_t)dtype_block_bytes(job->dtype);
    int64_t begin, end;
    team_range(job->n_rows, ROWS_TOGETHER, thread, n_threads, &begin, &end);
    int64_t at = dequantize_find_nan(job->bytes + (size_t)begin * row_bytes, job->dtype,
                                     (end - begin) * job->n_columns);
    int64_t first = atomic_load(&job->first);
    at = at < 0 ? -1 : at + begin * job->n_columns;
    while (at >= 0 && (first < 0 || at < first) && !atomic_compare_exchange_weak(&job->first, &first, at))
        ;
}

int64_t assemble_find_nan(struct backend *be, const void *bytes, enum dtype dtype, int64_t n_rows,
                          int64_t n_columns)
{
    struct finding job = {
        .bytes = bytes, .dtype = dtype, .n_rows = n_rows, .n_columns = n_columns, .first = -1
    };
    run(be, find_some, &job);
    return atomic_load(&job.first);
}
