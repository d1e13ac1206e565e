/* Low-rank updates, factors and shifts of linear layers. Rows of many adapters are computed together: a block has one row,
 * or of large steps a few consecutive ones, which mostly have the same adapter, whose factors are then read once. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/experts/lora_args.h"
#include "kernels/cuda/math.h"

enum { THREADS = 256, WARPS = THREADS / WARP };

DEVICE const struct lora_change *find_change(const struct lora_change *const *changes,
                                             const int32_t *adapters, int row, int n_rows)
{
    int adapter = row < n_rows ? adapters[row] : -1;
    return adapter >= 0 ? changes[adapter] : NULL;
}

/* The rows after first - 1 that have the same change as first; a bit each. 0: an earlier row had it, or first has none. */
DEVICE uint32_t same_rows(const struct lora_change *const *of, int first, int n)
{
    uint32_t same = 0;
    UNROLL for (int r = 0; r < n; r++)
    {
        if (of[r] == of[first])
            same |= 1u << r;
    }
    return of[first] && (same & ((1u << first) - 1)) == 0 ? same : 0;
}

/* ---- sums: a . x ---- */

/* Eight consecutive factors; i is a multiple of 8. */
DEVICE void load_factors(float to[8], const void *a, int64_t i, bool is_half)
{
    if (is_half) {
        u32x4 v = *(const u32x4 *)((const uint16_t *)a + i);
        UNROLL for (int k = 0; k < 8; k++) to[k] = half_float((uint16_t)(v[k / 2] >> 16 * (k % 2)));
        return;
    }
    UNROLL for (int h = 0; h < 2; h++)
    {
        f32x4 v = *(const f32x4 *)((const float *)a + i + 4 * h);
        UNROLL for (int k = 0; k < 4; k++) to[4 * h + k] = v[k];
    }
}

/* Eight columns of a row; what is past its end is 0. is_whole: n_in is a multiple of 8. */
DEVICE void load_columns(float to[8], const float *x, int column, int n_in, bool is_whole)
{
    if (!is_whole) {
        UNROLL for (int k = 0; k < 8; k++) to[k] = column + k < n_in ? x[column + k] : 0.0f;
        return;
    }
    UNROLL for (int h = 0; h < 2; h++)
    {
        f32x4 v = *(const f32x4 *)(x + column + 4 * h);
        UNROLL for (int k = 0; k < 4; k++) to[4 * h + k] = v[k];
    }
}

/* Warp: sum number i of the rows in same. */
DEVICE void down_sum(const struct lora_down_args *a, const struct lora_change *change, int i, int row,
                     uint32_t same, int n_tile, bool is_half, bool is_whole)
{
    float sums[LORA_TILE_ROWS];
    UNROLL for (int r = 0; r < n_tile; r++) sums[r] = 0;
    for (int c = 8 * lane_id(); c < a->n_in; c += 8 * WARP) {
        float factors[8];
        load_factors(factors, change->a, (int64_t)i * change->n_padded + c, is_half);
        UNROLL for (int r = 0; r < n_tile; r++)
        {
            float x[8];
            if (!(same >> r & 1))
                continue;
            load_columns(x, a->x + (int64_t)(row + r) * a->n_in, c, a->n_in, is_whole);
            UNROLL for (int k = 0; k < 8; k++) sums[r] = fma_f32(factors[k], x[k], sums[r]);
        }
    }
    UNROLL for (int r = 0; r < n_tile; r++)
    {
        sums[r] = warp_sum_f32(sums[r], WARP);
        if (lane_id() == r && same >> r & 1)
            a->sums[(int64_t)(row + r) * a->max_rank + i] = sums[r] * change->scales[i];
    }
}

DEVICE void down_body(const struct lora_down_args *a, int n_tile)
{
    const struct lora_change *of[LORA_TILE_ROWS];
    int row = block_id_y() * n_tile;
    bool is_whole = a->n_in % 8 == 0;
    UNROLL for (int r = 0; r < n_tile; r++) of[r] = find_change(a->changes, a->adapters, row + r, a->n_rows);
    UNROLL for (int r = 0; r < n_tile; r++)
    {
        uint32_t same = same_rows(of, r, n_tile);
        int rank = same != 0 ? of[r]->rank : 0;
        for (int i = block_id() * WARPS + warp_id(); i < rank; i += n_blocks() * WARPS) {
            if (!is_whole)
                down_sum(a, of[r], i, row, same, n_tile, of[r]->is_half, false);
            else if (of[r]->is_half)
                down_sum(a, of[r], i, row, same, n_tile, true, true);
            else
                down_sum(a, of[r], i, row, same, n_tile, false, true);
        }
    }
}

/* Grid x: 8 sums each, up to LORA_RANK_BLOCKS; y: rows, by n_tile. */
KERNEL(lora_down_1, struct lora_down_args, THREADS)
{
    down_body(&a, 1);
}

KERNEL(lora_down_8, struct lora_down_args, THREADS)
{
    down_body(&a, LORA_TILE_ROWS);
}

/* ---- updates: y += b . sums ---- */

DEVICE float load_factor(const void *b, int64_t i, bool is_half)
{
    return is_half ? half_float(((const uint16_t *)b)[i]) : ((const float *)b)[i];
}

/* Adds a piece's update of output j to the rows in same. */
DEVICE void add_piece(float *y, const struct lora_update *piece, const float *sums, int max_rank,
                      uint32_t same, int j, int n_tile, bool is_half)
{
    const float *of_row = sums + piece->rank_begin;
    int64_t column = j - piece->out_begin;
    for (int begin = 0; begin < piece->rank; begin += LORA_SUMS) {
        int end = begin + LORA_SUMS < piece->rank ? begin + LORA_SUMS : piece->rank;
        float update[LORA_TILE_ROWS];
        UNROLL for (int r = 0; r < n_tile; r++) update[r] = 0;
        for (int i = begin; i < end; i++) {
            float b = load_factor(piece->b, (int64_t)i * piece->n_padded + column, is_half);
            UNROLL for (int r = 0; r < n_tile; r++)
            {
                if (same >> r & 1)
                    update[r] = fma_f32(of_row[(int64_t)r * max_rank + i], b, update[r]);
            }
        }
        UNROLL for (int r = 0; r < n_tile; r++)
        {
            if (same >> r & 1)
                y[r] += update[r];
        }
    }
}

/* Output j of the rows in same, which have the change. y [n_tile]; sums: those of the first row. */
DEVICE void change_output(float *y, const struct lora_change *change, const float *sums, int max_rank,
                          uint32_t same, int j, int n_tile)
{
    float factor = change->factors ? change->factors[j] : 1.0f,
          shift = change->shifts ? change->shifts[j] : 0.0f;
    UNROLL for (int r = 0; r < n_tile; r++)
    {
        if (!(same >> r & 1))
            continue;
        y[r] = change->factors ? y[r] * factor : y[r];
        y[r] = change->shifts ? y[r] + shift : y[r];
    }
    for (int p = 0; p < change->n_pieces; p++) {
        const struct lora_update *piece = &change->pieces[p];
        if (j < piece->out_begin || j >= piece->out_begin + piece->n_out)
            continue;
        if (change->is_half)
            add_piece(y, piece, sums, max_rank, same, j, n_tile, true);
        else
            add_piece(y, piece, sums, max_rank, same, j, n_tile, false);
    }
}

/* Output j of n_tile rows of y [rows][n_out] from row on, with the changes of all of them. */
DEVICE void changed_outputs(float *to, const struct lora_up_args *a, const struct lora_change *const *of,
                            const float *y, int row, int j, int n_tile)
{
    UNROLL for (int r = 0; r < n_tile; r++) to[r] = row + r < a->n_rows ? y[(int64_t)(row + r) * a->n_out + j]
                                                                        : 0.0f;
    UNROLL for (int r = 0; r < n_tile; r++)
    {
        uint32_t same = same_rows(of, r, n_tile);
        if (same != 0)
            change_output(to, of[r], a->sums + (int64_t)row * a->max_rank, a->max_rank, same, j, n_tile);
    }
}

/* Grid x: 256 outputs; y: rows, by n_tile. */
DEVICE void up_body(const struct lora_up_args *a, int n_tile, bool is_glu)
{
    const struct lora_change *of[LORA_TILE_ROWS];
    float y[LORA_TILE_ROWS], up[LORA_TILE_ROWS];
    int row = block_id_y() * n_tile, j = block_id() * THREADS + thread_id();
    int n = is_glu ? a->n_out / 2 : a->n_out;
    uint32_t has_any = 0;
    UNROLL for (int r = 0; r < n_tile; r++)
    {
        of[r] = find_change(a->changes, a->adapters, row + r, a->n_rows);
        has_any |= of[r] ? 1u : 0u;
    }
    if (j >= n || (!is_glu && has_any == 0))
        return;
    changed_outputs(y, a, of, is_glu ? a->raw : a->y, row, j, n_tile);
    if (is_glu)
        changed_outputs(up, a, of, a->raw, row, n + j, n_tile);
    UNROLL for (int r = 0; r < n_tile; r++)
    {
        if (row + r < a->n_rows && (is_glu || of[r]))
            a->y[(int64_t)(row + r) * n + j] = is_glu ? glu_f32(y[r], up[r], a->act) : y[r];
    }
}

KERNEL(lora_up_1, struct lora_up_args, THREADS)
{
    up_body(&a, 1, false);
}

KERNEL(lora_up_8, struct lora_up_args, THREADS)
{
    up_body(&a, LORA_TILE_ROWS, false);
}

KERNEL(lora_up_glu_1, struct lora_up_args, THREADS)
{
    up_body(&a, 1, true);
}

KERNEL(lora_up_glu_8, struct lora_up_args, THREADS)
{
    up_body(&a, LORA_TILE_ROWS, true);
}

/* ---- rows of a matrix of the adapter's own ---- */

/* Grid x: a row; y: 256 columns. */
KERNEL(lora_rows, struct lora_rows_args, THREADS)
{
    int64_t row = a.rows[block_id()], i = block_id_y() * THREADS + thread_id();
    if (row < 0 || i >= a.n)
        return;
    int64_t from = a.scatters ? block_id() : row, to = a.scatters ? row : block_id();
    a.y[to * a.n + i] = a.x[from * a.n + i];
}
