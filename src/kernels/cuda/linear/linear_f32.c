/* Linear layers with weights of type F32, by fused multiply-add: for weights that must not be rounded, such as a router's.
 *
 * A unit is 64 columns of 16 outputs, column by column. The columns have 16 splits; a thread runs through those of one output
 * and split, in order, for eight rows. */
#include "kernels/cuda/linear/linear.h"

enum { F32_ROWS = 8, F32_THREADS = LINEAR_TILE * LINEAR_F32_SPLITS };

/* Rows from row on; those after the last are the last again. */
DEVICE void linear_f32_split(float acc[F32_ROWS], const struct linear_job *job, const struct linear_args *a,
                             int tile, int split, int row)
{
    int begin = linear_split_begin(&a->m, split) * LINEAR_STEP;
    int end = linear_least(linear_split_begin(&a->m, split + 1) * LINEAR_STEP, a->n_in);
    const float *w = (const float *)job->weights +
                     (int64_t)tile * a->m.n_units * (LINEAR_STEP * LINEAR_TILE) + thread_id() % LINEAR_TILE;
    const float *x[F32_ROWS];
    UNROLL for (int r = 0; r < F32_ROWS; r++)
        x[r] = (const float *)(job->x + (int64_t)linear_least(row + r, job->n_rows - 1) * job->x_bytes);
    UNROLL_4 for (int column = begin; column < end; column++)
    {
        float weight = w[column * LINEAR_TILE];
        UNROLL for (int r = 0; r < F32_ROWS; r++) acc[r] = fma_f32(x[r][column], weight, acc[r]);
    }
}

/* The result of an output of the tile, from sums [split][output][row]. */
DEVICE float linear_f32_sum(const struct linear_job *job, const float *sums, int tile, int output, int row)
{
    float sum = sums[output * F32_ROWS + row];
    for (int s = 1; s < LINEAR_F32_SPLITS; s++)
        sum += sums[(s * LINEAR_TILE + output) * F32_ROWS + row];
    return job->bias ? sum + job->bias[tile * LINEAR_TILE + output] : sum;
}

DEVICE void linear_f32_store(const struct linear_job *job, const struct linear_args *a, const float *sums,
                             int tile, int row)
{
    int place = thread_id() % 8, r = thread_id() / 8;
    if (r >= F32_ROWS || row + r >= job->n_rows)
        return;
    float first = linear_f32_sum(job, sums, tile, place, r),
          second = linear_f32_sum(job, sums, tile, place + 8, r);
    linear_store_two(job, a, row + r, tile, place, first, second);
}

/* Grid x: tiles; y: groups of eight rows, or lists; z: heads. */
KERNEL(linear_f32, struct linear_args, F32_THREADS)
{
    SHARED(float, sums, F32_THREADS *F32_ROWS);
    struct linear_job job;
    if (!linear_job(&job, LINEAR_F32, &a, F32_ROWS))
        return;
    int tile = job.first_tile + block_id();
    if (tile >= a.m.n_tiles)
        return;
    for (int row = 0; row < job.n_rows; row += F32_ROWS) {
        float acc[F32_ROWS] = { 0 };
        linear_f32_split(acc, &job, &a, tile, thread_id() / LINEAR_TILE, row);
        block_sync(); /* the sums before these were read */
        UNROLL for (int r = 0; r < F32_ROWS; r++) sums[thread_id() * F32_ROWS + r] = acc[r];
        block_sync();
        linear_f32_store(&job, &a, sums, tile, row);
    }
}

/* As linear_read() of linear.h. */
KERNEL(linear_f32_read, struct linear_read_args, READ_THREADS)
{
    int id = (a.ids ? a.ids[block_id()] : block_id()) - a.first_id, tile, place;
    bool is_there = linear_place(&tile, &place, &a, id);
    const float *w = (const float *)a.m.weights + (int64_t)tile * a.m.n_units * (LINEAR_STEP * LINEAR_TILE) +
                     place;
    float *y = a.y + (int64_t)block_id() * a.n_in;
    for (int column = thread_id(); column < a.n_in; column += READ_THREADS)
        y[column] = is_there ? w[column * LINEAR_TILE] : 0;
}
