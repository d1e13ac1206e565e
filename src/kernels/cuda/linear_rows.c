/* What linear layers do before and after the products: input rows become halves, and sums of splits become results. */
#include "kernels/cuda/linear.h"

enum { CONVERT_THREADS = 256, CONVERT_WARPS = CONVERT_THREADS / WARP };

/* The largest of all threads' v. */
DEVICE uint32_t block_max(uint32_t v)
{
    SHARED(uint32_t, warps, CONVERT_WARPS);
    UNROLL for (int mask = WARP / 2; mask > 0; mask /= 2)
    {
        uint32_t other = shuffle_xor_u32(v, mask);
        v = other > v ? other : v;
    }
    if (lane_id() == 0)
        warps[warp_id()] = v;
    block_sync();
    v = warps[0];
    UNROLL for (int i = 1; i < CONVERT_WARPS; i++)
        v = warps[i] > v ? warps[i] : v;
    return v;
}

/* Entry block x (of list block y): a row is multiplied by the power of two that brings its largest magnitude to 2^14 or
 * more and below 2^15 (float16), or by 1, rounded, and padded by zeros. */
KERNEL(linear_convert, struct linear_convert_args, CONVERT_THREADS)
{
    int entry = block_id(), expert = 0;
    if (a.lists) {
        if (block_id_y() >= *a.n_lists || entry >= a.lists[block_id_y()].n)
            return;
        expert = a.lists[block_id_y()].expert;
        entry += a.lists[block_id_y()].begin;
    }
    int heads = a.n_heads > 0 ? a.n_heads : 1, row = a.rows ? a.rows[entry] : entry / heads;
    const float *x = a.x + (int64_t)row * a.x_stride + (int64_t)(a.rows ? 0 : entry % heads) * a.x_head;
    const uint16_t *order = a.order ? a.order + (int64_t)expert * a.order_stride : NULL;
    uint32_t largest = 0;
    for (int i = thread_id(); i < a.n_in; i += CONVERT_THREADS) {
        uint32_t bits = f32_bits(x[i]) & 0x7fffffff;
        largest = bits > largest ? bits : largest;
    }
    largest = block_max(largest);
    /* 2^(141 - exponent): the exponents of 2^14 and 1 are 141 and 127. Its inverse must be a normal number, too. */
    uint32_t exponent = largest >> 23, up = 268 - (exponent < 15 ? 15 : exponent);
    if (a.format != LINEAR_F16 || largest == 0)
        up = 127;
    float scale = bits_f32(up << 23);
    if (thread_id() == 0)
        a.scales[entry] = exponent == 255 ? bits_f32(0x7fc00000) : bits_f32((254 - up) << 23);
    int64_t to = (int64_t)entry * a.to_stride;
    for (int i = 2 * thread_id(); i < a.to_stride; i += 2 * CONVERT_THREADS) {
        float v[2];
        UNROLL for (int k = 0; k < 2; k++)
            v[k] = i + k < a.n_in ? x[order ? order[i + k] : i + k] * scale : 0;
        if (a.format == LINEAR_F32)
            ((f32x2 *)a.to)[(to + i) / 2] = (f32x2){ v[0], v[1] };
        else
            ((uint32_t *)a.to)[(to + i) / 2] = a.format == LINEAR_BF16 ? bf16x2_of(v[0], v[1]) : half2_of(v[0], v[1]);
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
