/* RMSNorm and LayerNorm, with the residual addition before them and the conversion to halves after them.
 *
 * Element i belongs to thread i / 4 % NORM_THREADS. A thread adds up its elements in order by fused multiply-add (LayerNorm's
 * mean: by addition), the lanes of a warp by butterflies (16, 8, 4, 2, 1), and every thread the warps' sums in order. So all
 * variants give the same bits, which depend on the row and on n only. */
#include "kernels/cuda/halves.h"
#include "kernels/cuda/rows_args.h"

enum { WARPS = NORM_THREADS / WARP };

DEVICE float row_sum(float v, float *of_warps)
{
    v = warp_sum_f32(v, WARP);
    if (lane_id() == 0)
        of_warps[warp_id()] = v;
    block_sync();
    float sum = of_warps[0];
    UNROLL for (int i = 1; i < WARPS; i++) sum += of_warps[i];
    return sum;
}

DEVICE struct norm_weights weights_of(const struct norm_args *a, int row)
{
    if (a->updates && a->adapters[row] >= 0 && a->updates[a->adapters[row]].w)
        return a->updates[a->adapters[row]];
    return a->weights;
}

/* Elements 4 g to 4 g + 3 of a row, as many as there are; the others are 0. */
DEVICE f32x4 load_group(const float *row, int g, int n, bool is_aligned)
{
    if (is_aligned)
        return ((const f32x4 *)row)[g];
    f32x4 v = { 0 };
    UNROLL for (int k = 0; k < 4; k++) if (4 * g + k < n) v[k] = row[4 * g + k];
    return v;
}

DEVICE void store_group(float *row, int g, int n, f32x4 v, bool is_aligned)
{
    if (is_aligned) {
        ((f32x4 *)row)[g] = v;
        return;
    }
    UNROLL for (int k = 0; k < 4; k++) if (4 * g + k < n) row[4 * g + k] = v[k];
}

DEVICE float add_group(float sum, f32x4 v)
{
    UNROLL for (int k = 0; k < 4; k++) sum += v[k];
    return sum;
}

/* Elements after the row's end do not count. */
DEVICE float add_squares(float sum, f32x4 v, float mean, int n_left)
{
    UNROLL for (int k = 0; k < 4; k++)
    {
        float d = v[k] - mean;
        sum = k < n_left ? fma_f32(d, d, sum) : sum;
    }
    return sum;
}

DEVICE f32x4 normed(f32x4 v, float mean, float scale, f32x4 w, f32x4 b, bool has_mean)
{
    f32x4 y;
    UNROLL for (int k = 0; k < 4; k++) y[k] = has_mean ? fma_f32((v[k] - mean) * scale, w[k], b[k])
                                                       : v[k] * scale * w[k];
    return y;
}

DEVICE uint32_t largest_of(uint32_t largest, f32x4 v)
{
    UNROLL for (int k = 0; k < 4; k++) largest = larger_magnitude(largest, v[k]);
    return largest;
}

/* Elements after the row's end are 0. */
DEVICE void store_half(const struct norm_args *a, int row, int g, f32x4 v, float factor)
{
    store_halves(a->half, a->half_piece_rows, a->half_stride, row, 4 * g,
                 half2_of(v[0] * factor, v[1] * factor), half2_of(v[2] * factor, v[3] * factor));
}

DEVICE void store_zeros(const struct norm_args *a, int row, int first)
{
    for (int g = first + thread_id(); g < a->half_stride / 4; g += NORM_THREADS)
        store_halves(a->half, a->half_piece_rows, a->half_stride, row, 4 * g, 0, 0);
}

/* A row of at most 4 * NORM_THREADS * n_held aligned elements, kept in registers. */
DEVICE void norm_held(const struct norm_args *a, const int n_held)
{
    SHARED(float, sums, 2 * WARPS);
    SHARED(uint32_t, largest, WARPS);
    int row = block_id(), n = a->n, n_groups = n / 4;
    size_t at = (size_t)row * (size_t)n;
    struct norm_weights weights = weights_of(a, row);
    bool has_mean = a->weights.b != NULL;
    f32x4 v[NORM_VECTORS], zero = { 0 };
    float sum = 0, mean = 0;
    UNROLL for (int j = 0; j < n_held; j++)
    {
        int g = thread_id() + j * NORM_THREADS;
        v[j] = g < n_groups ? load_group(a->x + at, g, n, true) : zero;
        if (a->add && g < n_groups) {
            v[j] += load_group(a->add + at, g, n, true);
            store_group(a->x + at, g, n, v[j], true);
        }
    }
    if (has_mean) {
        UNROLL for (int j = 0; j < n_held; j++) sum = add_group(sum, v[j]);
        mean = divide_exact(row_sum(sum, sums), (float)n);
    }
    sum = 0;
    UNROLL for (int j = 0; j < n_held; j++)
        sum = add_squares(sum, v[j], mean, thread_id() + j * NORM_THREADS < n_groups ? 4 : 0);
    sum = divide_exact(row_sum(sum, sums + WARPS), (float)n);
    float scale = divide_exact(1.0f, sqrt_exact(sum + a->eps));
    uint32_t most = 0;
    UNROLL for (int j = 0; j < n_held; j++)
    {
        int g = thread_id() + j * NORM_THREADS;
        if (g < n_groups) {
            f32x4 b = has_mean ? load_group(weights.b, g, n, true) : zero;
            v[j] = normed(v[j], mean, scale, load_group(weights.w, g, n, true), b, has_mean);
            store_group(a->y + at, g, n, v[j], true);
            most = largest_of(most, v[j]);
        }
    }
    if (!a->half)
        return;
    float back, factor = half_factor(block_max(most, largest, WARPS), &back);
    UNROLL for (int j = 0; j < n_held; j++)
    {
        int g = thread_id() + j * NORM_THREADS;
        if (g < n_groups)
            store_half(a, row, g, v[j], factor);
    }
    store_zeros(a, row, n_groups);
    if (thread_id() == 0)
        a->scales[row] = back;
}

KERNEL(norm_2048, struct norm_args, NORM_THREADS)
{
    norm_held(&a, 2);
}

KERNEL(norm_4096, struct norm_args, NORM_THREADS)
{
    norm_held(&a, 4);
}

KERNEL(norm_8192, struct norm_args, NORM_THREADS)
{
    norm_held(&a, NORM_VECTORS);
}

/* Any row: read again for each pass. */
KERNEL(norm_any, struct norm_args, NORM_THREADS)
{
    SHARED(float, sums, 2 * WARPS);
    SHARED(uint32_t, largest, WARPS);
    int row = block_id(), n = a.n, n_groups = (n + 3) / 4;
    float *x = a.x + (size_t)row * (size_t)n, *y = a.y + (size_t)row * (size_t)n;
    const float *add = a.add ? a.add + (size_t)row * (size_t)n : NULL;
    struct norm_weights weights = weights_of(&a, row);
    bool has_mean = a.weights.b != NULL;
    f32x4 zero = { 0 };
    float sum = 0, mean = 0;
    for (int g = thread_id(); g < n_groups; g += NORM_THREADS) {
        f32x4 v = load_group(x, g, n, false);
        if (add) {
            v += load_group(add, g, n, false);
            store_group(x, g, n, v, false);
        }
        sum = add_group(sum, v);
    }
    if (has_mean)
        mean = divide_exact(row_sum(sum, sums), (float)n);
    sum = 0;
    for (int g = thread_id(); g < n_groups; g += NORM_THREADS)
        sum = add_squares(sum, load_group(x, g, n, false), mean, n - 4 * g);
    sum = divide_exact(row_sum(sum, sums + WARPS), (float)n);
    float scale = divide_exact(1.0f, sqrt_exact(sum + a.eps));
    uint32_t most = 0;
    for (int g = thread_id(); g < n_groups; g += NORM_THREADS) {
        f32x4 b = has_mean ? load_group(weights.b, g, n, false) : zero;
        f32x4 v = normed(load_group(x, g, n, false), mean, scale, load_group(weights.w, g, n, false), b,
                         has_mean);
        store_group(y, g, n, v, false);
        UNROLL for (int k = 0; k < 4; k++) v[k] = 4 * g + k < n ? v[k] : 0;
        most = largest_of(most, v);
    }
    if (!a.half)
        return;
    float back, factor = half_factor(block_max(most, largest, WARPS), &back);
    for (int g = thread_id(); g < n_groups; g += NORM_THREADS)
        store_half(&a, row, g, load_group(y, g, n, false), factor);
    store_zeros(&a, row, n_groups);
    if (thread_id() == 0)
        a.scales[row] = back;
}
