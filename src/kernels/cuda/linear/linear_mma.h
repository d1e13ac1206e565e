/* Products by mma instructions, which one warp executes: for levels 75 and 80. Included by linear.h. */
#ifndef TUTTI_KERNELS_CUDA_LINEAR_LINEAR_MMA_H
#define TUTTI_KERNELS_CUDA_LINEAR_LINEAR_MMA_H

#include "kernels/cuda/linear/linear.h"

#define MMA_THREADS(n_rows) ((n_rows) == 32 || (n_rows) == 64 ? 4 * WARP : STREAM_THREADS)

/* ---- few rows: a warp multiplies 16 outputs by up to 16 rows, and a block's warps are the splits of one or several
 * tiles. Input rows are read through the L1 cache, which the weights pass by. Grid x: tiles * splits / 8; y: groups of
 * 8 * n rows, or lists; z: heads ---- */

struct linear_ahead {
    struct linear_words w;
    struct linear_scales scales; /* with linear_stream_is_all(): only of step 0, those of all */
    u32x4 x[2][2];
};

/* Whether the scales of a super-block are loaded at once. On level 75, 16 rows leave no registers for that. */
DEVICE bool linear_stream_is_all(enum linear_format f, int n)
{
    return linear_unit_steps(f) > 1 && (n == 1 || LEVEL >= 80);
}

/* Loads step d of STREAM_DEPTH steps, which begin at a unit and at columns x of the rows. */
DEVICE void linear_stream_load(enum linear_format f, int n, struct linear_ahead *to, const uint8_t *units,
                               const uint8_t *const x[2], int d)
{
    const int steps = linear_unit_steps(f);
    const uint8_t *unit = units + d / steps * linear_unit_bytes(f);
    linear_load(f, &to->w, unit, d % steps, lane_id());
    if (!linear_stream_is_all(f, n))
        linear_load_scales(f, &to->scales, unit, d % steps, lane_id());
    UNROLL for (int i = 0; i < n; i++)
    {
        to->x[i][0] = load_16(x[i] + d * LINEAR_STEP * 2);
        to->x[i][1] = load_16(x[i] + d * LINEAR_STEP * 2 + 16);
    }
}

DEVICE void linear_stream_multiply(enum linear_format f, int n, float acc[2][4],
                                   const struct linear_ahead *from, struct linear_factors factors)
{
    UNROLL for (int h = 0; h < 2; h++)
    {
        half2 a[2][4];
        linear_unpack(f, a, &from->w, factors, h);
        UNROLL for (int j = 0; j < 2; j++)
        {
            UNROLL for (int i = 0; i < n; i++)
                mma_half(acc[i], a[j], (half2[2]){ from->x[i][h][2 * j], from->x[i][h][2 * j + 1] });
        }
    }
}

/* A split of a tile for n groups of 8 rows. */
DEVICE void linear_stream_split(enum linear_format f, int n, float acc[2][4], const struct linear_job *job,
                                const struct linear_matrix *m, int tile, int split)
{
    const int steps = linear_unit_steps(f), ahead_bytes = STREAM_DEPTH / steps * linear_unit_bytes(f);
    const bool is_all = linear_stream_is_all(f, n);
    int begin = linear_split_begin(m, split), n_steps = (linear_split_begin(m, split + 1) - begin) * steps;
    const uint8_t *units = job->weights + ((int64_t)tile * m->n_units + begin) * linear_unit_bytes(f);
    const uint8_t *x[2];
    struct linear_ahead ahead[STREAM_DEPTH];
    UNROLL for (int i = 0; i < n; i++)
    {
        int row = linear_least(8 * i + lane_id() / 4, job->n_rows - 1);
        x[i] = job->x + (int64_t)row * job->x_bytes + begin * steps * (LINEAR_STEP * 2) + lane_id() % 4 * 32;
    }
    if (is_all && n_steps > 0)
        linear_load_scales(f, &ahead[0].scales, units, LINEAR_ALL, lane_id());
    UNROLL for (int d = 0; d < STREAM_DEPTH; d++)
    {
        if (d < n_steps)
            linear_stream_load(f, n, &ahead[d], units, x, d);
    }
    for (; n_steps > 0; n_steps -= STREAM_DEPTH) {
        struct linear_factors factors[STREAM_DEPTH];
        units += ahead_bytes;
        UNROLL for (int i = 0; i < n; i++) x[i] += STREAM_DEPTH * LINEAR_STEP * 2;
        if (is_all) {
            UNROLL for (int d = 0; d < STREAM_DEPTH; d++) factors[d] = linear_factors(f, &ahead[0].scales, d);
            if (n_steps > STREAM_DEPTH)
                linear_load_scales(f, &ahead[0].scales, units, LINEAR_ALL, lane_id());
        }
        UNROLL for (int d = 0; d < STREAM_DEPTH; d++)
        {
            if (!is_all && d >= n_steps)
                continue;
            if (!is_all)
                factors[d] = linear_factors(f, &ahead[d].scales, 0);
            linear_stream_multiply(f, n, acc, &ahead[d], factors[d]);
            if (is_all ? n_steps > STREAM_DEPTH : d + STREAM_DEPTH < n_steps)
                linear_stream_load(f, n, &ahead[d], units, x, d);
        }
    }
}

DEVICE void linear_stream(enum linear_format f, int n, const struct linear_args *a)
{
    SHARED(f32x4, sums, STREAM_WARPS * 2 * WARP);
    struct linear_job job;
    int n_splits = (1 << a->m.split_shift), n_tiles = STREAM_WARPS / n_splits;
    if (!linear_job(&job, f, a, 8 * n))
        return;
    int first = job.first_tile + block_id() * n_tiles, tile = first + warp_id() / n_splits;
    float acc[2][4] = { { 0 } };
    if (tile < a->m.n_tiles)
        linear_stream_split(f, n, acc, &job, &a->m, tile, warp_id() % n_splits);
    UNROLL for (int i = 0; i < n; i++)
        sums[(warp_id() * 2 + i) * WARP + lane_id()] = (f32x4){ acc[i][0], acc[i][1], acc[i][2], acc[i][3] };
    block_sync();
    struct linear_job again; /* the loop over columns need not keep the first */
    if (!linear_job(&again, f, a, 8 * n))
        return;
    for (int k = warp_id(); k < n_tiles * n; k += STREAM_WARPS) {
        const f32x4 *from = sums + (k / n * n_splits * 2 + k % n) * WARP + lane_id();
        f32x4 sum = from[0];
        for (int s = 1; s < n_splits; s++)
            sum += from[s * 2 * WARP];
        float total[4] = { sum[0], sum[1], sum[2], sum[3] };
        if (first + k / n < a->m.n_tiles)
            linear_store(&again, a, first + k / n, k % n, total);
    }
}

/* ---- more rows: a warp multiplies 32 outputs by 8 n rows, a block 32 * warps_out outputs by 8 n * warps_row rows, whose
 * inputs go through shared memory. Grid x: tiles / (2 * warps_out); y: rows, or lists; z: heads, or with partial the
 * splits ---- */

enum { TILE_STAGES = 3, TILE_STAGE_ROW = LINEAR_STEP * 2, TILE_CHUNKS = TILE_STAGE_ROW / 16 };

/* Chunk c of 16 bytes of a row of a stage. Lanes 4g + t load chunks 2t or 2t + 1 of rows g: the two rows that eight lanes
 * load at a time then use different banks. */
DEVICE int linear_stage_at(int row, int c)
{
    return row * TILE_STAGE_ROW + (c ^ (row & 1)) * 16;
}

DEVICE void linear_stage(uint8_t *stage, const struct linear_job *job, int n_rows, int n_threads, int step)
{
    UNROLL for (int i = 0; i < n_rows * TILE_CHUNKS / n_threads; i++)
    {
        int k = i * n_threads + thread_id(), row = k / TILE_CHUNKS, c = k % TILE_CHUNKS;
        copy_16(stage + linear_stage_at(row, c),
                job->x + (int64_t)row * job->x_bytes + step * TILE_STAGE_ROW + c * 16, true);
    }
}

/* acc += half h of a step's weights times the rows of a stage from row on. */
DEVICE void linear_tile_multiply(enum linear_format f, int n, float acc[2][8][4],
                                 const struct linear_words w[2], const struct linear_scales scales[2],
                                 const uint8_t *stage, int row, int h)
{
    half2 a[2][2][4];
    UNROLL for (int k = 0; k < 2; k++) linear_unpack(f, a[k], &w[k], linear_factors(f, &scales[k], 0), h);
    UNROLL for (int i = 0; i < n; i++)
    {
        u32x4 x = *(const u32x4 *)(stage +
                                   linear_stage_at(row + 8 * i + lane_id() / 4, lane_id() % 4 * 2 + h));
        UNROLL for (int j = 0; j < 2; j++)
        {
            UNROLL for (int k = 0; k < 2; k++)
                mma_half(acc[k][i], a[k][j], (half2[2]){ x[2 * j], x[2 * j + 1] });
        }
    }
}

/* The words of a warp's tiles of a step. */
DEVICE void linear_tile_load(enum linear_format f, struct linear_words w[2], struct linear_scales scales[2],
                             const uint8_t *const weights[2], int step)
{
    const int steps = linear_unit_steps(f);
    UNROLL for (int k = 0; k < 2; k++)
    {
        const uint8_t *unit = weights[k] + (int64_t)(step / steps) * linear_unit_bytes(f);
        linear_load(f, &w[k], unit, step % steps, lane_id());
        linear_load_scales(f, &scales[k], unit, step % steps, lane_id());
    }
}

/* The first of the warp's two tiles. */
DEVICE int linear_first_tile(const struct linear_job *job, int warps_out)
{
    return job->first_tile + (block_id() * warps_out + forget(warp_id()) % warps_out) * 2;
}

DEVICE void linear_tile(enum linear_format f, int warps_out, int warps_row, int n,
                        const struct linear_args *a)
{
    DYNAMIC_SHARED(uint8_t, stages);
    const int steps = linear_unit_steps(f), n_rows = 8 * n * warps_row,
              n_threads = WARP * warps_out * warps_row;
    const int stage_bytes = n_rows * TILE_STAGE_ROW;
    struct linear_job job;
    if (!linear_job(&job, f, a, n_rows))
        return;
    int tile = linear_first_tile(&job, warps_out), row = warp_id() / warps_out * 8 * n;
    int split = a->partial ? block_id_z() : 0, last = a->partial ? split + 1 : (1 << a->m.split_shift);
    int step = linear_split_begin(&a->m, split) * steps, end = linear_split_begin(&a->m, last) * steps;
    int split_end = linear_split_begin(&a->m, split + 1) * steps;
    const int64_t tile_bytes = (int64_t)a->m.n_units * linear_unit_bytes(f);
    const uint8_t *weights[2]; /* the last tile again, where there is none */
    struct linear_words w[2];
    struct linear_scales scales[2];
    float acc[2][8][4], total[2][8][4];
    UNROLL for (int k = 0; k < 2; k++)
    {
        weights[k] = job.weights + linear_least(tile + k, a->m.n_tiles - 1) * tile_bytes;
        UNROLL for (int i = 0; i < n; i++)
        {
            UNROLL for (int c = 0; c < 4; c++)
            {
                acc[k][i][c] = 0;
                total[k][i][c] = -0.0f; /* what is added to it stays as it is */
            }
        }
    }
    linear_tile_load(f, w, scales, weights, step);
    UNROLL for (int s = 0; s < TILE_STAGES - 1; s++)
    {
        if (step + s < end)
            linear_stage(stages + s * stage_bytes, &job, n_rows, n_threads, step + s);
        copy_commit();
    }
    for (int stage = 0; step < end; step++) {
        copy_wait(TILE_STAGES - 2);
        block_sync(); /* all have their copies, and no thread reads the stage before this one any more */
        int free_stage = stage == 0 ? TILE_STAGES - 1 : stage - 1;
        if (step + TILE_STAGES - 1 < end)
            linear_stage(stages + free_stage * stage_bytes, &job, n_rows, n_threads, step + TILE_STAGES - 1);
        copy_commit();
        linear_tile_multiply(f, n, acc, w, scales, stages + stage * stage_bytes, row, 0);
        linear_tile_multiply(f, n, acc, w, scales, stages + stage * stage_bytes, row, 1);
        if (step + 1 < end)
            linear_tile_load(f, w, scales, weights, step + 1);
        stage = stage + 1 < TILE_STAGES ? stage + 1 : 0;
        if (step + 1 < split_end)
            continue;
        UNROLL for (int k = 0; k < 2; k++)
        {
            UNROLL for (int i = 0; i < n; i++)
            {
                UNROLL for (int c = 0; c < 4; c++)
                {
                    total[k][i][c] += acc[k][i][c];
                    acc[k][i][c] = 0;
                }
            }
        }
        split++;
        split_end = linear_split_begin(&a->m, split + 1) * steps;
    }
    /* The results go through the stages' memory, which makes the loop that stores them short. */
    f32x4 *sums = (f32x4 *)stages + warp_id() * n * WARP + lane_id();
    block_sync();
    struct linear_job again; /* the loop need not keep the first */
    if (!linear_job(&again, f, a, n_rows))
        return;
    tile = linear_first_tile(&again, warps_out);
    row = forget(warp_id()) / warps_out * 8 * n;
    UNROLL for (int k = 0; k < 2; k++)
    {
        UNROLL for (int i = 0; i < n; i++)
            sums[i * WARP] = (f32x4){ total[k][i][0], total[k][i][1], total[k][i][2], total[k][i][3] };
        NO_UNROLL for (int i = 0; i < n && tile + k < a->m.n_tiles; i++)
            linear_tile_store(&again, a, tile + k, row / 8 + i, block_id_z(), sums[i * WARP]);
    }
}

/* Up to n_rows rows of a block: a constant. */
DEVICE void linear_product_mma(enum linear_format f, int n_rows, const struct linear_args *a)
{
    if (n_rows <= 16)
        linear_stream(f, n_rows / 8, a);
    else if (n_rows <= 64)
        linear_tile(f, 4, 1, n_rows / 8, a);
    else
        linear_tile(f, 4, 2, 8, a);
}

#endif
