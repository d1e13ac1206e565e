/* Products of input rows with a matrix, for every format of weights: kernels are made of the functions below by giving them
 * a constant format (LINEAR_KERNELS).
 *
 * The arithmetic does not depend on the kernel: a split's accumulators begin at 0 and run through the split's columns, 16 by
 * each matrix instruction; sums of splits are added in their order; then the result is multiplied by the output's scale, by the
 * row's, and the bias is added. So a row has the same bits by itself and among others. What differs are the matrix instructions
 * of a level, and how inputs lie in memory for them: linear_mma.h, and linear_wgmma.h for level 90.
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

/* What a lane loads of a step: 16 numbers of each of two outputs. */
struct linear_words {
    uint32_t low[16], high[2];
};

/* The words of a lane's scales: of a step, or of all steps of a unit. Super-blocks have their own factors in the last two. */
struct linear_scales {
    uint32_t words[6];
};

/* Of output g in the low half, of g + 8 in the high half: the factor of numbers of slot 0, and what is added (minus the
 * min, or minus the scale times the format's zero). Formats without integers: unused. */
struct linear_factors {
    half2 scale, add;
};

/* Loads the numbers of a step of a unit. lane: 4g + t. */
DEVICE void linear_load(enum linear_format f, struct linear_words *w, const uint8_t *unit, int step, int lane)
{
    const struct linear_layout l = linear_layout(f);
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
}

/* Loads the scales of a step of a unit, or (step: LINEAR_ALL) of all its steps. */
enum { LINEAR_ALL = -1 };

DEVICE void linear_load_scales(enum linear_format f, struct linear_scales *to, const uint8_t *unit, int step,
                               int lane)
{
    const uint8_t *scales = unit + linear_scales_at(f);
    const bool is_all = step == LINEAR_ALL;
    int g = lane / 4, run = lane % 4 / 2 * 8 + g; /* of 32 columns */
    u32x2 both = { 0 };
    switch (f) {
    case LINEAR_Q4_0:
    case LINEAR_Q5_0:
    case LINEAR_Q8_0:
        to->words[0] = load_4(scales + run * 4);
        return;
    case LINEAR_Q4_1:
    case LINEAR_Q5_1:
        both = load_8(scales + run * 8);
        to->words[0] = both[0];
        to->words[1] = both[1];
        return;
    case LINEAR_MXFP4:
        to->words[0] = load_2(scales + run * 2);
        return;
    case LINEAR_Q4_K:
    case LINEAR_Q5_K:
        if (is_all) {
            u32x4 v = load_16(scales + run * 16);
            UNROLL for (int i = 0; i < 4; i++) to->words[i] = v[i];
        } else {
            to->words[0] = load_4(scales + run * 16 + step * 4);
        }
        break;
    case LINEAR_Q2_K:
    case LINEAR_Q6_K:
        if (is_all) {
            both = load_8(scales + lane * 8);
            to->words[0] = both[0];
            to->words[1] = both[1];
        } else {
            to->words[0] = load_2(scales + lane * 8 + step * 2);
        }
        break;
    case LINEAR_Q3_K:
        to->words[0] = load_4(scales + lane * 4) >> (is_all ? 0 : 4 * step);
        to->words[1] = load_2(scales + 128 + lane * 2) >> (is_all ? 0 : 2 * step);
        to->words[4] = load_4(scales + 192 + g * 4);
        return;
    default:
        to->words[0] = 0;
        return;
    }
    if (linear_layout(f).has_min) {
        both = load_8(scales + 256 + g * 8);
        to->words[4] = both[0];
        to->words[5] = both[1];
    } else {
        to->words[4] = load_4(scales + 256 + g * 4);
    }
}

/* step: of the scales: 0 if they are those of one. A constant. */
DEVICE struct linear_factors linear_factors(enum linear_format f, const struct linear_scales *from, int step)
{
    const half2 thousand = 0x6400 * PAIRS; /* 1024: a byte or less in its mantissa is added to it */
    const struct linear_layout l = linear_layout(f);
    const uint32_t two = step % 2 ? 0x4342 : 0x4140; /* the step's bytes of a word that has those of two */
    uint32_t s = from->words[0];
    struct linear_factors to = { 0 };
    switch (f) {
    case LINEAR_Q4_1:
    case LINEAR_Q5_1:
        return (struct linear_factors){ s, from->words[1] };
    case LINEAR_MXFP4: /* a byte is the high byte of a power of two */
        to.scale = permute_bytes(s, 0, 0x1404);
        return to;
    case LINEAR_Q4_K:
    case LINEAR_Q5_K: /* bytes: scales, mins; the min's factor is negative */
        s = from->words[step];
        to.scale = half2_mul(half2_sub(permute_bytes(s, 0x64, 0x4140), thousand), from->words[4]);
        to.add = half2_mul(permute_bytes(s, 0, 0x4342), from->words[5]);
        return to;
    case LINEAR_Q2_K: /* nibbles: scale, min */
        s = permute_bytes(from->words[step / 2], 0, two);
        to.scale = half2_mul(half2_sub(and_or(s, 0xf * PAIRS, thousand), thousand), from->words[4]);
        to.add = half2_mul(s & 0xf0 * PAIRS, from->words[5]);
        return to;
    case LINEAR_Q6_K: /* bytes, to which 128 is added */
        s = permute_bytes(from->words[step / 2], 0x64, two);
        to.scale = half2_mul(half2_sub(s, 0x6480 * PAIRS), from->words[4]);
        break;
    case LINEAR_Q3_K: { /* six bits in two words, to which 32 is added */
        uint32_t high = permute_bytes(from->words[1] >> 2 * step, 0, 0x4140) << 4 & 0x30 * PAIRS;
        s = and_or(s >> 4 * step, 0xf * PAIRS, high | thousand);
        to.scale = half2_mul(half2_sub(s, 0x6420 * PAIRS), from->words[4]);
        break;
    }
    default:
        to.scale = s;
        break;
    }
    to.add = half2_mul(to.scale, (half2)(0x8000 | l.zero) * PAIRS); /* -zero * 2^-24 */
    return to;
}

/* Numbers begin at up to four different bits of a mantissa, the slots of a format: at bit `up` they are times 2^(up - 24). */
DEVICE int linear_slots(enum linear_format f)
{
    return linear_layout(f).low == 2 ? 4 : 2;
}

DEVICE int linear_slot_up(enum linear_format f, int slot)
{
    return f == LINEAR_Q3_K ? (slot > 0 ? 3 * slot - 2 : 0) : f == LINEAR_Q2_K ? 2 * slot : 4 * slot;
}

/* The slot of pair i of output g + 8r. */
DEVICE int linear_slot(enum linear_format f, int r, int i)
{
    if (f != LINEAR_Q3_K)
        return i % linear_slots(f);
    int number = linear_three_number(r, i);
    return number == 15 ? 0 : number % 5 < 3 ? number % 5 + 1 : number % 5 - 1;
}

/* The numbers of pair i of output g + 8r as denormals, in their slot. */
DEVICE uint32_t linear_number(enum linear_format f, const struct linear_words *w, int r, int i)
{
    const struct linear_layout l = linear_layout(f);
    const int up = linear_slot_up(f, linear_slot(f, r, i));
    if (f == LINEAR_Q3_K) {
        const int number = linear_three_number(r, i), word = linear_three_word(number, 0);
        if (number == 15)
            return and_or(w->high[0] << 2, 4 * PAIRS, and_or(w->low[1] << 1, 2 * PAIRS, w->low[0] & PAIRS));
        return (word < 2 ? w->low[word] : w->high[0]) >> (linear_three_shift(number, 0) - up) &
               (uint32_t)(7 << up) * PAIRS;
    }
    uint32_t low = w->low[linear_low_word(l.low, r, i)] >> (linear_low_shift(l.low, i) - up);
    uint32_t mask = (uint32_t)(((1 << l.low) - 1) << up) * PAIRS;
    if (l.high == 0)
        return low & mask;
    /* From its place to that above the low bits. */
    int shift = linear_high_shift(l.high, r, i) - up - l.low;
    uint32_t high = w->high[linear_high_word(l.high, r)];
    high = shift > 0 ? high >> shift : high << -shift;
    return and_or(low, mask, high & (uint32_t)(((1 << l.high) - 1) << (l.low + up)) * PAIRS);
}

/* Half h of the weights of a step as the fragments a of two mma instructions. */
DEVICE void linear_unpack(enum linear_format f, half2 a[2][4], const struct linear_words *w,
                          struct linear_factors factors, int h)
{
    const struct linear_layout l = linear_layout(f);
    if (l.low == 16) {
        UNROLL for (int i = 0; i < 8; i++) a[i / 4][i % 4] = w->low[8 * h + i];
        return;
    }
    half2 scales[4] = { factors.scale }; /* of each slot */
    UNROLL for (int slot = 1; slot < linear_slots(f); slot++)
        scales[slot] = half2_mul(scales[0], (half2)((15 - linear_slot_up(f, slot)) << 10) * PAIRS);
    UNROLL for (int r = 0; r < 2; r++)
    {
        UNROLL for (int k = 0; k < 4; k++)
        {
            const int i = 4 * h + k;
            half2 *to = &a[k / 2][k % 2 * 2 + r];
            if (f == LINEAR_Q8_0) {
                uint32_t bytes = w->low[linear_low_word(8, r, i)];
                half2 n = i % 2 ? permute_bytes(bytes, 0x64, 0x4341) : permute_bytes(bytes, 0x64, 0x4240);
                *to = half2_mul(half2_sub(n, 0x6480 * PAIRS), half2_twice(scales[0], r));
            } else if (f == LINEAR_MXFP4) {
                uint32_t word = w->low[linear_low_word(4, r, i)];
                int shift = 9 - linear_e2m1_shift(i), sign = 15 - linear_e2m1_sign(i);
                uint32_t n = shift == sign
                                 ? word << shift & 0x8e00u * PAIRS
                                 : and_or(word << shift, 0x0e00u * PAIRS, word << sign & 0x8000u * PAIRS);
                *to = half2_mul(n, half2_twice(scales[0], r));
            } else {
                half2 scale = half2_twice(scales[linear_slot(f, r, i)], r);
                *to = half2_fma(linear_number(f, w, r, i), scale, half2_twice(factors.add, r));
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
    if (LEVEL >= 90 && f != LINEAR_F32) {
        job->x_bytes = 16;
        job->x = (const uint8_t *)a->x + ((int64_t)head * (a->x_stride / heads) + row) * 16;
    } else {
        const int x_bytes = f == LINEAR_F32 ? 4 : 2;
        job->x_bytes = heads * a->x_stride * x_bytes;
        job->x = (const uint8_t *)a->x + first * a->x_stride * x_bytes;
    }
    job->x_scales = a->x_scales + first;
    job->scale_stride = heads;
    job->from = head * a->head_outputs;
    job->to = a->n_heads > 0 ? job->from + a->head_outputs : m->n_columns;
    job->first_tile = job->from / LINEAR_TILE;
    job->y = a->y + (int64_t)row * a->y_stride + (int64_t)head * a->y_head - job->from;
    job->y_stride = a->y_stride;
    job->first_group = y * (tile_rows / 8);
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

/* Stores a result, or keeps it as that of a split. */
DEVICE void linear_tile_store(const struct linear_job *job, const struct linear_args *a, int tile, int group,
                              int split, f32x4 sum)
{
    if (group * 8 >= job->n_rows)
        return;
    if (a->partial) {
        int64_t at = ((int64_t)split * a->m.n_tiles + tile) * a->n_groups + job->first_group + group;
        ((f32x4 *)a->partial)[at * WARP + lane_id()] = sum;
    } else {
        linear_store(job, a, tile, group, (float[4]){ sum[0], sum[1], sum[2], sum[3] });
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
        struct linear_scales scales;
        half2 fragments[4][4];
        if (is_there) {
            const uint8_t *unit = weights + (int64_t)(step / steps) * linear_unit_bytes(f);
            linear_load(f, &w, unit, step % steps, place % 8 * 4 + t);
            linear_load_scales(f, &scales, unit, step % steps, place % 8 * 4 + t);
            linear_unpack(f, fragments, &w, linear_factors(f, &scales, 0), 0);
            linear_unpack(f, fragments + 2, &w, linear_factors(f, &scales, 0), 1);
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

#if LEVEL >= 90
#include "kernels/cuda/linear/linear_wgmma.h"
#define PRODUCT_THREADS(n_rows) WIDE_THREADS
#define linear_product          linear_product_wgmma
#else
#include "kernels/cuda/linear/linear_mma.h"
#define PRODUCT_THREADS(n_rows) MMA_THREADS(n_rows)
#define linear_product          linear_product_mma
#endif

/* The kernels of a format: _few: up to 8 rows, _some: up to 16; _tile_R: R rows. */
#define LINEAR_KERNEL(name, format, n_rows)                                                                  \
    KERNEL(name, struct linear_args, PRODUCT_THREADS(n_rows))                                                \
    {                                                                                                        \
        linear_product(format, n_rows, &a);                                                                  \
    }
/* LINEAR_FEW_BLOCKS: for how many blocks on a multiprocessor _few has registers; otherwise ptxas decides. */
#ifdef LINEAR_FEW_BLOCKS
#define LINEAR_FEW(name, format)                                                                             \
    KERNEL_FOR_BLOCKS(name, struct linear_args, PRODUCT_THREADS(8), LINEAR_FEW_BLOCKS)                       \
    {                                                                                                        \
        linear_product(format, 8, &a);                                                                       \
    }
#else
#define LINEAR_FEW(name, format) LINEAR_KERNEL(name, format, 8)
#endif
#define LINEAR_KERNELS(name, format)                                                                         \
    LINEAR_FEW(linear_##name##_few, format)                                                                  \
    LINEAR_KERNEL(linear_##name##_some, format, 16)                                                          \
    LINEAR_KERNEL(linear_##name##_tile_32, format, 32)                                                       \
    LINEAR_KERNEL(linear_##name##_tile_64, format, 64)                                                       \
    LINEAR_KERNEL(linear_##name##_tile_128, format, 128)                                                     \
    KERNEL(linear_##name##_read, struct linear_read_args, READ_THREADS)                                      \
    {                                                                                                        \
        linear_read(format, &a);                                                                             \
    }

#endif
