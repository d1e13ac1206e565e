/* What linear layers do before and after the products: input rows become halves, and sums of splits become results. */
#include "kernels/cuda/halves.h"
#include "kernels/cuda/linear/linear.h"

enum { CONVERT_WARPS = CONVERT_THREADS / WARP };

/* The entry of a block, what it is made of, and the row that it becomes. */
struct entry {
    int i, expert, row;
    const float *x;
};

/* Entry block x (of list block y). False: none. */
DEVICE bool entry_of_block(struct entry *entry, const struct linear_convert_args *a)
{
    int i = block_id(), heads = a->n_heads > 0 ? a->n_heads : 1;
    entry->expert = 0;
    if (a->lists) {
        if (block_id_y() >= *a->n_lists || i >= a->lists[block_id_y()].n)
            return false;
        entry->expert = a->lists[block_id_y()].expert;
        i += a->lists[block_id_y()].begin;
    }
    entry->i = entry->row = i;
    if (a->n_heads > 0 && a->piece_rows > 0)
        entry->row = i % heads * (a->piece_rows / heads) + i / heads;
    entry->x = a->x + (int64_t)(a->rows ? a->rows[i] : i / heads) * a->x_stride;
    if (a->n_heads > 0)
        entry->x += (int64_t)(i % heads) * a->x_head;
    return true;
}

/* The factor of an entry whose largest magnitude in this thread has these bits; stores its inverse. Float32 rows keep theirs. */
DEVICE float entry_factor(const struct linear_convert_args *a, int i, uint32_t largest)
{
    SHARED(uint32_t, of_warps, CONVERT_WARPS);
    float inverse;
    largest = block_max(largest, of_warps, CONVERT_WARPS);
    float factor = half_factor(a->is_f32 && largest < 0x7f800000 ? 0 : largest, &inverse);
    if (thread_id() == 0)
        a->scales[i] = inverse;
    return factor;
}

/* A row is multiplied by a power of two, rounded, and padded by zeros. */
KERNEL(linear_convert, struct linear_convert_args, CONVERT_THREADS)
{
    struct entry entry;
    if (!entry_of_block(&entry, &a))
        return;
    const uint16_t *order = a.order ? a.order + (int64_t)entry.expert * a.order_stride : NULL;
    uint32_t largest = 0;
    for (int i = thread_id(); i < a.n_in; i += CONVERT_THREADS)
        largest = larger_magnitude(largest, entry.x[i]);
    float factor = entry_factor(&a, entry.i, largest);
    for (int i = 2 * thread_id(); i < a.to_stride; i += 2 * CONVERT_THREADS) {
        float v[2];
        UNROLL for (int k = 0; k < 2; k++)
            v[k] = i + k < a.n_in ? entry.x[order ? order[i + k] : i + k] * factor : 0;
        if (a.is_f32)
            ((f32x2 *)a.to)[half_pair_at(0, a.to_stride, entry.row, i)] = (f32x2){ v[0], v[1] };
        else
            ((half2 *)a.to)[half_pair_at(a.piece_rows, a.to_stride, entry.row, i)] = half2_of(v[0], v[1]);
    }
}

/* The same of rows to float16 that are aligned to 16 bytes, have no order, and at most CONVERT_HELD columns: they are read
 * once. */
KERNEL(linear_convert_held, struct linear_convert_args, CONVERT_THREADS)
{
    enum { N = CONVERT_HELD / (4 * CONVERT_THREADS) };
    f32x4 x[N];
    struct entry entry;
    uint32_t largest = 0;
    if (!entry_of_block(&entry, &a))
        return;
    UNROLL for (int k = 0; k < N; k++)
    {
        int i = 4 * (k * CONVERT_THREADS + thread_id());
        x[k] = i < a.n_in ? *(const f32x4 *)(entry.x + i) : (f32x4){ 0 };
    }
    UNROLL for (int k = 0; k < N; k++)
    {
        UNROLL for (int c = 0; c < 4; c++) largest = larger_magnitude(largest, x[k][c]);
    }
    float factor = entry_factor(&a, entry.i, largest);
    UNROLL for (int k = 0; k < N; k++)
    {
        int i = 4 * (k * CONVERT_THREADS + thread_id());
        f32x4 v = x[k] * factor;
        if (i < a.to_stride)
            store_halves(a.to, a.piece_rows, a.to_stride, entry.row, i, half2_of(v[0], v[1]),
                         half2_of(v[2], v[3]));
    }
}

/* Adds the sums of the splits in their order. A warp has a tile and 8 rows; grid x: tiles / 8, y: groups of 8 rows. */
KERNEL(linear_join, struct linear_args, STREAM_THREADS)
{
    int tile = block_id() * STREAM_WARPS + warp_id(), group = block_id_y();
    if (tile >= a.m.n_tiles)
        return;
    const f32x4 *from = (const f32x4 *)a.partial + ((int64_t)tile * a.n_groups + group) * WARP + lane_id();
    f32x4 sum = from[0];
    for (int s = 1; s < 1 << a.m.split_shift; s++)
        sum += from[(int64_t)s * a.m.n_tiles * a.n_groups * WARP];
    struct linear_job job = {
        .scales = a.m.scales,
        .bias = a.m.bias,
        .x_scales = a.x_scales,
        .y = a.y,
        .n_rows = a.n_rows,
        .y_stride = a.y_stride,
        .scale_stride = 1,
        .to = a.m.n_columns,
    };
    linear_store(&job, &a, tile, group, (float[4]){ sum[0], sum[1], sum[2], sum[3] });
}
