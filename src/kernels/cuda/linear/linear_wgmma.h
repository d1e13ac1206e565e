/* Products by wgmma, the matrix instructions of a warpgroup: for level 90, for any number of rows. Included by linear.h.
 *
 * A warpgroup multiplies 64 m outputs by up to n rows: each of its warps has m tiles, unpacked in registers. A block is two
 * warpgroups, which share input rows. Those come into shared memory by bulk copies, a batch of `depth` steps at a time, two batches
 * ahead. Weights are loaded into registers, `depth` steps ahead.
 *
 * Grid x: tiles / (8 m); y: groups of n rows, or lists; z: heads, or with partial the splits. Then the last block of a place to
 * finish adds the sums of the splits, in their order; else a block runs through all splits and adds them itself.
 *
 * Input rows (linear_input_at) lie as the instruction takes them: of each 8 columns, 16 bytes of every row. So any rows of 8 columns
 * are consecutive, and in shared memory 8 rows of them are one matrix of 128 bytes. A batch has only as many rows as there are:
 * what the instruction takes for the others are bytes of other columns, and their results are not used. */
#ifndef TUTTI_KERNELS_CUDA_LINEAR_LINEAR_WGMMA_H
#define TUTTI_KERNELS_CUDA_LINEAR_LINEAR_WGMMA_H

#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/warpgroup.h"

enum {
    WIDE_PIECES = LINEAR_STEP / 8, /* of 8 columns in a step */
};

/* The tile number i of a warp's m. */
DEVICE int linear_wide_tile(const struct linear_job *job, int m, int i)
{
    int warp = forget(warp_id());
    return job->first_tile + ((block_id() * 2 + warp / 4) * m + i) * 4 + warp % 4;
}

/* Warp: copies the inputs of depth steps, from step on. x_rows: of the buffer. */
DEVICE void linear_wide_copy(uint8_t *stage, const struct linear_job *job, int x_rows, int step, int depth,
                             uint64_t *barrier)
{
    const int n = depth * WIDE_PIECES;
    int n_rows = job->n_rows;
    const uint8_t *from = job->x + (int64_t)step * WIDE_PIECES * x_rows * 16;
    if (lane_id() == 0)
        barrier_expect(barrier, (uint32_t)(n * n_rows * 16));
    warp_sync();
    if (n_rows == x_rows) {
        if (lane_id() == 0)
            copy_bulk(stage, from, (uint32_t)(n * n_rows * 16), barrier);
        return;
    }
    if (lane_id() < n)
        copy_bulk(stage + lane_id() * n_rows * 16, from + (int64_t)lane_id() * x_rows * 16,
                  (uint32_t)(n_rows * 16), barrier);
}

/* The first step of a split: a multiple of 4, so that units and batches are not divided. */
DEVICE int linear_wide_begin(enum linear_format f, const struct linear_matrix *m, int split)
{
    const int steps = linear_unit_steps(f);
    int n = m->n_units * steps, begin = (int)((uint32_t)(split * ((n + 3) / 4)) >> m->split_shift) * 4;
    return linear_least(begin, n);
}

/* What a warp's tiles have in registers of a step: of step d after the first of a unit. */
struct linear_wide_words {
    struct linear_words w[2];
    struct linear_scales scales[2]; /* with is_all: only of a unit's first step, those of all its steps */
};

DEVICE void linear_wide_load(enum linear_format f, int m, struct linear_wide_words *to,
                             const uint8_t *const units[2], int d, bool is_all)
{
    const int steps = linear_unit_steps(f);
    UNROLL for (int i = 0; i < m; i++)
    {
        const uint8_t *unit = units[i] + d / steps * linear_unit_bytes(f);
        linear_load(f, &to->w[i], unit, d % steps, lane_id());
        if (!is_all)
            linear_load_scales(f, &to->scales[i], unit, d % steps, lane_id());
    }
}

DEVICE void linear_wide_load_all(enum linear_format f, int m, struct linear_wide_words *to,
                                 const uint8_t *const units[2])
{
    UNROLL for (int i = 0; i < m; i++) linear_load_scales(f, &to->scales[i], units[i], LINEAR_ALL, lane_id());
}

/* acc += half h of a step's weights times inputs. b: of the step; piece: from those of 8 columns to the next, in 16 bytes. The
 * products before the last are complete then. */
DEVICE void linear_wide_multiply(enum linear_format f, int n, int m, float acc[2][64], half2 a[2][2][4],
                                 const struct linear_words w[2], const struct linear_factors factors[2],
                                 uint32_t b, int piece, int h)
{
    UNROLL for (int i = 0; i < m; i++) linear_unpack(f, a[i], &w[i], factors[i], h);
    wgmma_fence(a[0][0], m * 8);
    UNROLL for (int j = 0; j < 2; j++)
    {
        UNROLL for (int i = 0; i < m; i++) wgmma(n, acc[i], a[i][j], b + (uint32_t)((4 * h + 2 * j) * piece));
    }
    wgmma_commit();
    wgmma_wait(1);
}

/* Adds the sums of the splits, once all blocks of this place have stored theirs: in the last of them. */
DEVICE void linear_wide_join(enum linear_format f, int n, int m, const struct linear_args *a)
{
    SHARED(uint32_t, is_last, 1);
    struct linear_job job;
    int n_splits = 1 << a->m.split_shift;
    uint32_t *arrived = a->arrived + block_id_y() * n_blocks() + block_id();
    memory_fence();
    block_sync();
    if (thread_id() == 0) {
        *is_last = atomic_add_u32(arrived, 1) + 1 == (uint32_t)n_splits;
        if (*is_last)
            *arrived = 0;
    }
    block_sync();
    if (!*is_last || !linear_job(&job, f, a, n))
        return;
    memory_fence();
    NO_UNROLL for (int k = 0; k < m * n / 8; k++)
    {
        int tile = linear_wide_tile(&job, m, k / (n / 8)), group = k % (n / 8);
        if (tile >= a->m.n_tiles || group * 8 >= job.n_rows)
            continue;
        const f32x4 *from = (const f32x4 *)a->partial +
                            ((int64_t)tile * a->n_groups + job.first_group + group) * WARP + lane_id();
        f32x4 sum = from[0];
        for (int s = 1; s < n_splits; s++)
            sum += from[(int64_t)s * a->m.n_tiles * a->n_groups * WARP];
        linear_store(&job, a, tile, group, (float[4]){ sum[0], sum[1], sum[2], sum[3] });
    }
}

DEVICE void linear_wide(enum linear_format f, int n, int m, int depth, const struct linear_args *a)
{
    DYNAMIC_SHARED(uint8_t, stages);
    SHARED(uint64_t, full, WIDE_STAGES);
    const int stage_bytes = linear_wide_stage(n, depth);
    f32x4 *sums = (f32x4 *)(stages + linear_wide_sums_at(n, depth)) + thread_id();
    struct linear_job job;
    if (a->lists)
        grid_wait();
    if (!linear_job(&job, f, a, n))
        return;
    int split = a->partial ? block_id_z() : 0, last = a->partial ? split + 1 : 1 << a->m.split_shift;
    const int first = split;
    int step = linear_wide_begin(f, &a->m, split), end = linear_wide_begin(f, &a->m, last);
    /* The units of the steps to load next, in kernels of one step ahead of all steps; the last tile again, where there is none. */
    const uint8_t *units[2];
    const int unit_steps = linear_unit_steps(f),
              ahead_bytes = depth > 1 ? 4 / unit_steps * linear_unit_bytes(f) : 0;
    const bool is_all = unit_steps > 1 && depth > 1; /* a batch is a unit, whose scales are loaded at once */
    struct linear_wide_words w[4];
    struct linear_factors factors[4][2];
    half2 fragments[2][2][2][4];
    float acc[2][64];
    UNROLL for (int i = 0; i < m; i++)
        units[i] = job.weights +
                   (linear_least(linear_wide_tile(&job, m, i), a->m.n_tiles - 1) * (int64_t)a->m.n_units +
                    (depth > 1 ? step / unit_steps : 0)) *
                       linear_unit_bytes(f);
    if (thread_id() == 0) {
        UNROLL for (int s = 0; s < WIDE_STAGES; s++) barrier_init(&full[s]);
    }
    block_sync();
    /* The first weights are on their way while the launch before ends. */
    if (step < end) {
        if (is_all)
            linear_wide_load_all(f, m, &w[0], units);
        /* Of steps after the last any weights will do: their inputs are zeros. */
        UNROLL for (int d = 0; d < depth; d++) linear_wide_load(f, m, &w[d], units,
                                                                is_all      ? d
                                                                : depth > 1 ? linear_least(d, end - 1 - step)
                                                                            : step,
                                                                is_all);
    }
    grid_wait();
    if (warp_id() == 0) {
        UNROLL for (int s = 0; s < 2; s++) if (step + s * depth < end)
            linear_wide_copy(stages + s * stage_bytes, &job, a->x_stride, step + s * depth, depth, &full[s]);
    }
    const int piece = same_in_warp(job.n_rows);
    const uint32_t b = shared_matrix(stages, (uint32_t)(piece * 16));
    for (uint32_t batch = 0; split < last; split++) {
        int split_end = linear_wide_begin(f, &a->m, split + 1);
        UNROLL for (int i = 0; i < m; i++)
        {
            UNROLL for (int k = 0; k < n / 2; k++) acc[i][k] = 0;
            wgmma_keep(acc[i], n / 2);
        }
        for (; step < split_end; step += depth, batch++) {
            const int stage = (int)(batch % WIDE_STAGES), next = (int)((batch + 2) % WIDE_STAGES);
            block_sync(); /* no thread needs the batch before the last any more */
            if (warp_id() == 0 && step + 2 * depth < end)
                linear_wide_copy(stages + next * stage_bytes, &job, a->x_stride, step + 2 * depth, depth,
                                 &full[next]);
            UNROLL for (int i = 0; i < m; i++) units[i] += ahead_bytes;
            barrier_wait(&full[stage], batch / WIDE_STAGES % 2);
            if (is_all) {
                UNROLL for (int k = 0; k < depth * m; k++)
                    factors[k / m][k % m] = linear_factors(f, &w[0].scales[k % m], k / m);
                if (step + depth < end)
                    linear_wide_load_all(f, m, &w[0], units);
            }
            UNROLL for (int d = 0; d < depth; d++)
            {
                if (!is_all)
                    UNROLL for (int i = 0; i < m; i++) factors[d][i] = linear_factors(f, &w[d].scales[i], 0);
                uint32_t at = b + (uint32_t)((stage * stage_bytes >> 4) + d * WIDE_PIECES * piece);
                linear_wide_multiply(f, n, m, acc, fragments[0], w[d].w, factors[d], at, piece, 0);
                linear_wide_multiply(f, n, m, acc, fragments[1], w[d].w, factors[d], at, piece, 1);
                if (step + (is_all ? 0 : d) + depth < end)
                    linear_wide_load(f, m, &w[d], units, depth > 1 ? d : step + 1, is_all);
            }
        }
        wgmma_wait(0);
        UNROLL for (int i = 0; i < m; i++)
        {
            wgmma_keep(acc[i], n / 2);
            UNROLL for (int k = 0; k < n / 8; k++)
            {
                f32x4 sum = { acc[i][4 * k], acc[i][4 * k + 1], acc[i][4 * k + 2], acc[i][4 * k + 3] };
                f32x4 *total = sums + (i * (n / 8) + k) * WIDE_THREADS;
                /* No conditional sum: of that, GCC 12 for AVX-512 adds only the first number. */
                f32x4 before = { 0, 0, 0, 0 };
                if (split > first)
                    before = *total;
                *total = before + sum;
            }
        }
    }
    struct linear_job again; /* the loop need not keep the first */
    if (!linear_job(&again, f, a, n))
        return;
    NO_UNROLL for (int k = 0; k < m * n / 8; k++)
    {
        int tile = linear_wide_tile(&again, m, k / (n / 8));
        if (tile < a->m.n_tiles)
            linear_tile_store(&again, a, tile, k % (n / 8), first, sums[k * WIDE_THREADS]);
    }
    if (a->partial)
        linear_wide_join(f, n, m, a);
}

/* Up to n_rows rows of a block: a constant. */
DEVICE void linear_product_wgmma(enum linear_format f, int n_rows, const struct linear_args *a)
{
    linear_wide(f, n_rows, n_rows <= 16 ? 1 : 2, n_rows <= 64 ? 4 : 1, a);
}

#endif
