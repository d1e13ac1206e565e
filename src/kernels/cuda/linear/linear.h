/* Products of input rows with a matrix, for every format of weights: kernels are made of the functions below by giving them
 * a constant format (LINEAR_KERNELS).
 *
 * The arithmetic does not depend on the kernel: a split's accumulators begin at 0 and run through the split's columns, 16 by
 * each mma instruction; sums of splits are added in their order; then the result is multiplied by the output's scale, by the
 * row's, and the bias is added. So a row has the same bits by itself (linear_stream) and among others (linear_tile).
 *
 * The words of the formats: linear_args.h. Weights in registers, activations in shared memory and unpacking by masks and
 * half-precision arithmetic: after Frantar et al., 2024 (Marlin) and Kim et al., 2022. */
#ifndef TUTTI_KERNELS_CUDA_LINEAR_H
#define TUTTI_KERNELS_CUDA_LINEAR_H

#include "kernels/cuda/device.h"
#include "kernels/cuda/linear/linear_args.h"
#include "kernels/cuda/math.h"

enum {
    PAIRS = 0x00010001, /* a number times it is in both halves */
    STREAM_THREADS = 256,
    STREAM_WARPS = STREAM_THREADS / WARP,
    STREAM_DEPTH = 4, /* steps that are loaded ahead: those of a whole unit */
};

/* ---- weights ---- */

/* What a lane loads of a step: 16 weights of each of two outputs. */
struct linear_words {
    uint32_t low[16], high[2], scales[3];
};

/* Loads a step of a unit. lane: 4g + t. */
DEVICE void linear_load(enum linear_format f, struct linear_words *w, const uint8_t *unit, int step, int lane)
{
    const struct linear_layout l = linear_layout(f);
    int g = lane / 4, t = lane % 4;
    if (l.low == 2) {
        u32x2 v = load_once_8(unit + linear_low_at(f, step, lane, 0));
        w->low[0] = v[0];
        w->low[1] = v[1];
    }
    UNROLL for (int i = 0; i < l.low / 4 * 4; i += 4)
    {
        u32x4 v = load_once_16(unit + linear_low_at(f, step, lane, i));
        UNROLL for (int k = 0; k < 4; k++) w->low[i + k] = v[k];
    }
    const uint8_t *high = unit + linear_high_at(f) + step * l.high * 128 + lane * l.high * 4;
    if (l.high == 1) {
        w->high[0] = load_4(high);
    } else if (l.high == 2) {
        u32x2 v = load_once_8(high);
        w->high[0] = v[0];
        w->high[1] = v[1];
    }
    const uint8_t *scales = unit + linear_scales_at(f);
    int run = t / 2 * 8 + g; /* of 32 columns */
    u32x2 both;
    switch (f) {
    case LINEAR_Q4_0:
    case LINEAR_Q5_0:
    case LINEAR_Q8_0:
        w->scales[0] = load_4(scales + run * 4);
        break;
    case LINEAR_Q4_1:
    case LINEAR_Q5_1:
        both = load_8(scales + run * 8);
        w->scales[0] = both[0];
        w->scales[1] = both[1];
        break;
    case LINEAR_MXFP4:
        w->scales[0] = load_2(scales + run * 2);
        break;
    case LINEAR_Q4_K:
    case LINEAR_Q5_K:
    case LINEAR_Q2_K:
        w->scales[0] = f == LINEAR_Q2_K ? load_2(scales + lane * 8 + step * 2)
                                        : load_4(scales + run * 16 + step * 4);
        both = load_8(scales + 256 + g * 8);
        w->scales[1] = both[0];
        w->scales[2] = both[1];
        break;
    case LINEAR_Q6_K:
        w->scales[0] = load_2(scales + lane * 8 + step * 2);
        w->scales[1] = load_4(scales + 256 + g * 4);
        break;
    case LINEAR_Q3_K:
        w->scales[0] = load_4(scales + lane * 4) >> 4 * step;
        w->scales[2] = load_2(scales + 128 + lane * 2) >> 2 * step;
        w->scales[1] = load_4(scales + 192 + g * 4);
        break;
    default:
        break;
    }
}

/* Of output g in the low half, of g + 8 in the high half: the factor of even pairs' numbers, and what is added (minus the
 * min, or minus the scale times the format's zero). Formats without integers: unused. */
DEVICE void linear_factors(enum linear_format f, half2 *scale, half2 *add, const struct linear_words *w)
{
    const half2 thousand = 0x6400 * PAIRS; /* 1024: a byte or less in its mantissa is added to it */
    const struct linear_layout l = linear_layout(f);
    uint32_t s = w->scales[0];
    switch (f) {
    case LINEAR_Q4_1:
    case LINEAR_Q5_1:
        *scale = s;
        *add = w->scales[1];
        return;
    case LINEAR_MXFP4: /* a byte is the high byte of a power of two */
        *scale = permute_bytes(s, 0, 0x1404);
        return;
    case LINEAR_Q4_K:
    case LINEAR_Q5_K: /* bytes: scales, mins; the min's factor is negative */
        *scale = half2_mul(half2_sub(permute_bytes(s, 0x64, 0x4140), thousand), w->scales[1]);
        *add = half2_mul(permute_bytes(s, 0, 0x4342), w->scales[2]);
        return;
    case LINEAR_Q2_K: /* nibbles: scale, min */
        s = permute_bytes(s, 0, 0x4140);
        *scale = half2_mul(half2_sub(and_or(s, 0xf * PAIRS, thousand), thousand), w->scales[1]);
        *add = half2_mul(s & 0xf0 * PAIRS, w->scales[2]);
        return;
    case LINEAR_Q6_K: /* bytes, to which 128 is added */
        *scale = half2_mul(half2_sub(permute_bytes(s, 0x64, 0x4140), 0x6480 * PAIRS), w->scales[1]);
        break;
    case LINEAR_Q3_K: { /* six bits in two words, to which 32 is added */
        uint32_t high = permute_bytes(w->scales[2], 0, 0x4140) << 4 & 0x30 * PAIRS;
        *scale = half2_mul(half2_sub(and_or(s, 0xf * PAIRS, high | thousand), 0x6420 * PAIRS), w->scales[1]);
        break;
    }
    default:
        *scale = s;
        break;
    }
    *add = half2_mul(*scale, (half2)(0x8000 | l.zero) * PAIRS); /* -zero * 2^-24 */
}

/* The numbers of pair i of output g + 8r as denormals: times 2^-24, of odd pairs 2^-20. */
DEVICE uint32_t linear_number(enum linear_format f, const struct linear_words *w, int r, int i)
{
    const struct linear_layout l = linear_layout(f);
    int even = i & ~1, up = i % 2 * 4;
    uint32_t low = w->low[linear_low_word(l.low, r, i)] >> linear_low_shift(l.low, even);
    uint32_t mask = (uint32_t)(((1 << l.low) - 1) << up) * PAIRS;
    if (l.high == 0)
        return low & mask;
    int shift = linear_high_shift(l.high, r, even) - l.low; /* from its place to that above the low bits */
    uint32_t high = w->high[linear_high_word(l.high, r)];
    high = shift > 0 ? high >> shift : high << -shift;
    return and_or(low, mask, high & (uint32_t)(((1 << l.high) - 1) << (l.low + up)) * PAIRS);
}

/* Half h of the weights of a step as the fragments a of two mma instructions. */
DEVICE void linear_unpack(enum linear_format f, half2 a[2][4], const struct linear_words *w, int h)
{
    const struct linear_layout l = linear_layout(f);
    if (l.low == 16) {
        UNROLL for (int i = 0; i < 8; i++) a[i / 4][i % 4] = w->low[8 * h + i];
        return;
    }
    half2 scales = 0, adds = 0;
    linear_factors(f, &scales, &adds, w);
    half2 odd_scales = half2_mul(scales, 0x2c00 * PAIRS); /* 1 / 16 */
    UNROLL for (int r = 0; r < 2; r++)
    {
        half2 scale = half2_twice(scales, r), odd = half2_twice(odd_scales, r), add = half2_twice(adds, r);
        UNROLL for (int k = 0; k < 4; k++)
        {
            const int i = 4 * h + k;
            half2 *to = &a[k / 2][k % 2 * 2 + r];
            if (f == LINEAR_Q8_0) {
                uint32_t bytes = w->low[linear_low_word(8, r, i)];
                half2 n = i % 2 ? permute_bytes(bytes, 0x64, 0x4341) : permute_bytes(bytes, 0x64, 0x4240);
                *to = half2_mul(half2_sub(n, 0x6480 * PAIRS), scale);
            } else if (f == LINEAR_MXFP4) {
                uint32_t word = w->low[linear_low_word(4, r, i)];
                int shift = 9 - linear_e2m1_shift(i), sign = 15 - linear_e2m1_sign(i);
                uint32_t n = shift == sign
                                 ? word << shift & 0x8e00u * PAIRS
                                 : and_or(word << shift, 0x0e00u * PAIRS, word << sign & 0x8000u * PAIRS);
                *to = half2_mul(n, scale);
            } else {
                *to = half2_fma(linear_number(f, w, r, i), i % 2 ? odd : scale, add);
            }
        }
    }
}

/* ---- rows and results ---- */

/* What a block computes. */
struct linear_job {
    const uint8_t *weights;
    const float *scales, *bias;
    const uint8_t *x; /* of the first row; x_bytes from row to row */
    const float *x_scales;
    float *y;
    int n_rows; /* that are stored */
    int x_bytes, y_stride, scale_stride;
    int first_tile;  /* of the matrix or head */
    int from, to;    /* outputs that are stored, of the matrix; of gate and up: of each */
    int first_group; /* of partial */
};

DEVICE int linear_least(int x, int y)
{
    return x < y ? x : y;
}

/* The job of this block, which has up to tile_rows rows. False: none. */
DEVICE bool linear_job(struct linear_job *job, enum linear_format f, const struct linear_args *a,
                       int tile_rows)
{
    int y = forget(block_id_y());
    const struct linear_matrix *m = &a->m;
    int expert = 0, row = y * tile_rows, head = a->n_heads > 0 ? forget(block_id_z()) : 0;
    int heads = a->n_heads > 0 ? a->n_heads : 1;
    job->n_rows = linear_least(a->n_rows - row, tile_rows);
    if (a->lists) {
        if (y >= *a->n_lists)
            return false;
        const struct linear_rows *list = &a->lists[y];
        expert = list->expert;
        row = list->begin;
        job->n_rows = list->n;
    }
    int64_t first = (int64_t)row * heads + head, tiles = (int64_t)expert * m->n_tiles;
    job->weights = m->weights + tiles * m->n_units * linear_unit_bytes(f);
    job->scales = m->scales + tiles * LINEAR_TILE;
    job->bias = m->bias ? m->bias + tiles * LINEAR_TILE : NULL;
    const int x_bytes = f == LINEAR_F32 ? 4 : 2;
    job->x_bytes = heads * a->x_stride * x_bytes;
    job->x = (const uint8_t *)a->x + first * a->x_stride * x_bytes;
    job->x_scales = a->x_scales + first;
    job->scale_stride = heads;
    job->from = head * a->head_outputs;
    job->to = a->n_heads > 0 ? job->from + a->head_outputs : m->n_columns;
    job->first_tile = job->from / LINEAR_TILE;
    job->y = a->y + (int64_t)row * a->y_stride + (int64_t)head * a->y_head - job->from;
    job->y_stride = a->y_stride;
    job->first_group = row / 8;
    return true;
}

/* Stores the values of a place of a tile (not of its second half) and of the place 8 further, which is that of up. */
DEVICE void linear_store_two(const struct linear_job *job, const struct linear_args *a, int row, int tile,
                             int place, float first, float second)
{
    float *y = job->y + (int64_t)row * job->y_stride;
    if (a->is_gate_up) {
        int column = tile * (LINEAR_TILE / 2) + place;
        if (column >= job->to)
            return;
        if (a->activation >= 0) {
            y[column] = glu_f32(first, second, a->activation);
        } else {
            y[column] = first;
            y[column + a->m.n_columns] = second;
        }
        return;
    }
    int column = tile * LINEAR_TILE + place;
    if (column >= job->from && column < job->to)
        y[column] = first;
    if (column + 8 >= job->from && column + 8 < job->to)
        y[column + 8] = second;
}

/* Stores a result of mma, whose rows are 8 * group and following of the job. */
DEVICE void linear_store(const struct linear_job *job, const struct linear_args *a, int tile, int group,
                         const float acc[4])
{
    int g = lane_id() / 4, t = lane_id() % 4, place = tile * LINEAR_TILE + g;
    float scale[2] = { job->scales[place], job->scales[place + 8] };
    UNROLL for (int i = 0; i < 2; i++)
    {
        int row = group * 8 + 2 * t + i;
        if (row >= job->n_rows)
            continue;
        float row_scale = job->x_scales[row * job->scale_stride];
        float v[2] = { acc[i] * scale[0] * row_scale, acc[2 + i] * scale[1] * row_scale };
        if (job->bias) {
            v[0] += job->bias[place];
            v[1] += job->bias[place + 8];
        }
        linear_store_two(job, a, row, tile, g, v[0], v[1]);
    }
}

/* ---- few rows: a warp multiplies 16 outputs by up to 16 rows, and a block's warps are the splits of one or several
 * tiles. Input rows are read through the L1 cache, which the weights pass by. Grid x: tiles * splits / 8; y: groups of
 * 8 * n rows, or lists; z: heads ---- */

struct linear_ahead {
    struct linear_words w;
    u32x4 x[2][2];
};

/* Loads step d of STREAM_DEPTH steps, which begin at a unit and at columns x of the rows. */
DEVICE void linear_stream_load(enum linear_format f, int n, struct linear_ahead *to, const uint8_t *units,
                               const uint8_t *const x[2], int d)
{
    const int steps = linear_unit_steps(f);
    linear_load(f, &to->w, units + d / steps * linear_unit_bytes(f), d % steps, lane_id());
    UNROLL for (int i = 0; i < n; i++)
    {
        to->x[i][0] = load_16(x[i] + d * LINEAR_STEP * 2);
        to->x[i][1] = load_16(x[i] + d * LINEAR_STEP * 2 + 16);
    }
}

DEVICE void linear_stream_multiply(enum linear_format f, int n, float acc[2][4],
                                   const struct linear_ahead *from)
{
    UNROLL for (int h = 0; h < 2; h++)
    {
        half2 a[2][4];
        linear_unpack(f, a, &from->w, h);
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
    int begin = linear_split_begin(m, split), n_steps = (linear_split_begin(m, split + 1) - begin) * steps;
    const uint8_t *units = job->weights + ((int64_t)tile * m->n_units + begin) * linear_unit_bytes(f);
    const uint8_t *x[2];
    struct linear_ahead ahead[STREAM_DEPTH];
    UNROLL for (int i = 0; i < n; i++)
    {
        int row = linear_least(8 * i + lane_id() / 4, job->n_rows - 1);
        x[i] = job->x + (int64_t)row * job->x_bytes + begin * steps * (LINEAR_STEP * 2) + lane_id() % 4 * 32;
    }
    UNROLL for (int d = 0; d < STREAM_DEPTH; d++)
    {
        if (d < n_steps)
            linear_stream_load(f, n, &ahead[d], units, x, d);
    }
    for (; n_steps > 0; n_steps -= STREAM_DEPTH) {
        units += ahead_bytes;
        UNROLL for (int i = 0; i < n; i++) x[i] += STREAM_DEPTH * LINEAR_STEP * 2;
        UNROLL for (int d = 0; d < STREAM_DEPTH; d++)
        {
            if (d < n_steps)
                linear_stream_multiply(f, n, acc, &ahead[d]);
            if (d + STREAM_DEPTH < n_steps)
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
                                 const struct linear_words w[2], const uint8_t *stage, int row, int h)
{
    half2 a[2][2][4];
    UNROLL for (int k = 0; k < 2; k++) linear_unpack(f, a[k], &w[k], h);
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

/* Stores a result, or keeps it for linear_join. */
DEVICE void linear_tile_store(const struct linear_job *job, const struct linear_args *a, int tile, int group,
                              f32x4 sum)
{
    if (group * 8 >= job->n_rows)
        return;
    if (a->partial) {
        int64_t at = ((int64_t)block_id_z() * a->m.n_tiles + tile) * a->n_groups + job->first_group + group;
        ((f32x4 *)a->partial)[at * WARP + lane_id()] = sum;
    } else {
        linear_store(job, a, tile, group, (float[4]){ sum[0], sum[1], sum[2], sum[3] });
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
    float acc[2][8][4], total[2][8][4];
    UNROLL for (int k = 0; k < 2; k++)
    {
        weights[k] = job.weights + linear_least(tile + k, a->m.n_tiles - 1) * tile_bytes;
        linear_load(f, &w[k], weights[k] + (int64_t)(step / steps) * linear_unit_bytes(f), step % steps,
                    lane_id());
        UNROLL for (int i = 0; i < n; i++)
        {
            UNROLL for (int c = 0; c < 4; c++)
            {
                acc[k][i][c] = 0;
                total[k][i][c] = -0.0f; /* what is added to it stays as it is */
            }
        }
    }
    UNROLL for (int s = 0; s < TILE_STAGES - 1; s++)
    {
        if (step + s < end)
            linear_stage(stages + s * stage_bytes, &job, n_rows, n_threads, step + s);
        copy_commit();
    }
    for (int stage = 0; step < end; step++) {
        copy_wait(TILE_STAGES - 2);
        block_sync(); /* all have their copies, and nobody reads the stage before this one any more */
        int free_stage = stage == 0 ? TILE_STAGES - 1 : stage - 1;
        if (step + TILE_STAGES - 1 < end)
            linear_stage(stages + free_stage * stage_bytes, &job, n_rows, n_threads, step + TILE_STAGES - 1);
        copy_commit();
        linear_tile_multiply(f, n, acc, w, stages + stage * stage_bytes, row, 0);
        linear_tile_multiply(f, n, acc, w, stages + stage * stage_bytes, row, 1);
        if (step + 1 < end) {
            int next = step + 1;
            UNROLL for (int k = 0; k < 2; k++)
                linear_load(f, &w[k], weights[k] + (int64_t)(next / steps) * linear_unit_bytes(f),
                            next % steps, lane_id());
        }
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
            linear_tile_store(&again, a, tile + k, row / 8 + i, sums[i * WARP]);
    }
}

/* ---- rows of a table, as float32. A group of four lanes has a step; grid x: rows ---- */

enum { READ_THREADS = 128 };

/* Where a row of the matrix is. False: there is none. */
DEVICE bool linear_place(int *tile, int *place, const struct linear_read_args *a, int id)
{
    bool is_there = id >= 0 && id < a->n_out;
    int row = is_there ? id : 0, half = a->n_out / 2, n = a->is_gate_up ? LINEAR_TILE / 2 : LINEAR_TILE;
    bool is_up = a->is_gate_up && row >= half;
    row -= is_up ? half : 0;
    *tile = row / n;
    *place = row % n + (is_up ? LINEAR_TILE / 2 : 0);
    return is_there;
}

DEVICE void linear_read(enum linear_format f, const struct linear_read_args *a)
{
    const int steps = linear_unit_steps(f);
    int id = (a->ids ? a->ids[block_id()] : block_id()) - a->first_id, t = thread_id() % 4;
    float *y = a->y + (int64_t)block_id() * a->n_in;
    int tile, place;
    bool is_there = linear_place(&tile, &place, a, id);
    const uint8_t *weights = a->m.weights + (int64_t)tile * a->m.n_units * linear_unit_bytes(f);
    float scale = is_there ? a->m.scales[tile * LINEAR_TILE + place] : 0;
    for (int step = thread_id() / 4; step * LINEAR_STEP < a->n_in; step += READ_THREADS / 4) {
        struct linear_words w;
        half2 fragments[4][4];
        if (is_there) {
            linear_load(f, &w, weights + (int64_t)(step / steps) * linear_unit_bytes(f), step % steps,
                        place % 8 * 4 + t);
            linear_unpack(f, fragments, &w, 0);
            linear_unpack(f, fragments + 2, &w, 1);
        }
        UNROLL for (int i = 0; i < 16; i++)
        {
            int column = step * LINEAR_STEP + 16 * t + i;
            if (column >= a->n_in)
                continue;
            half2 pair = 0;
            if (is_there)
                pair = place < 8 ? fragments[i / 4][i / 2 % 2 * 2] : fragments[i / 4][i / 2 % 2 * 2 + 1];
            uint16_t v = (uint16_t)(i % 2 ? pair >> 16 : pair);
            y[a->order ? a->order[column] : column] = is_there ? half_float(v) * scale : 0;
        }
    }
}

/* The kernels of a format: _few: up to 8 rows, _some: up to 16; _tile_R: R rows, 128 outputs. */
#define LINEAR_KERNELS(name, format)                                                                         \
    KERNEL(linear_##name##_few, struct linear_args, STREAM_THREADS)                                          \
    {                                                                                                        \
        linear_stream(format, 1, &a);                                                                        \
    }                                                                                                        \
    KERNEL(linear_##name##_some, struct linear_args, STREAM_THREADS)                                         \
    {                                                                                                        \
        linear_stream(format, 2, &a);                                                                        \
    }                                                                                                        \
    KERNEL(linear_##name##_tile_32, struct linear_args, 4 * WARP)                                            \
    {                                                                                                        \
        linear_tile(format, 4, 1, 4, &a);                                                                    \
    }                                                                                                        \
    KERNEL(linear_##name##_tile_64, struct linear_args, 4 * WARP)                                            \
    {                                                                                                        \
        linear_tile(format, 4, 1, 8, &a);                                                                    \
    }                                                                                                        \
    KERNEL(linear_##name##_tile_128, struct linear_args, 8 * WARP)                                           \
    {                                                                                                        \
        linear_tile(format, 4, 2, 8, &a);                                                                    \
    }                                                                                                        \
    KERNEL(linear_##name##_read, struct linear_read_args, READ_THREADS)                                      \
    {                                                                                                        \
        linear_read(format, &a);                                                                             \
    }

#endif
