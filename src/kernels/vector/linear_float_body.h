/* Linear layers of float weights with vec16: the optimized ref/linear.c. Included by a file of
 * one instruction set.
 *
 * A register tile is one panel times a few input rows, two sums each, so that each broadcast of a
 * row is used for both halves of the panel. The including file defines MAX_ROWS and, for each
 * number of rows, FLOAT_TILES and FLOAT_TILES_TABLE; and IS_WIDE: more rows take the tiles of wide_body.h. */
#include "kernels/pack.h"
#include "kernels/vector/vector.h"

#include <string.h>

INLINE vec16 load_weights(const uint8_t *panel, enum dtype dtype, int column, int half)
{
    size_t at = (size_t)column * PANEL_ROWS + (size_t)(half * LANES);
    return dtype == DTYPE_F32 ? v_load((const float *)panel + at) : v_load_half((const uint16_t *)panel + at);
}

/* out: [2][half_rows(out_rows)][16], zeroed; x: [n_in][x_rows]. n_rows is a compile-time constant. */
INLINE void float_tile(float *out, int out_rows, const uint8_t *panel, const enum dtype dtype, const float *x,
                       const int n_rows, int n_in, bool is_cold)
{
    const size_t column_bytes = dtype == DTYPE_F32 ? 128 : 64;
    for (int begin = 0; begin < n_in; begin += LINEAR_RUN) {
        int end = n_in - begin < LINEAR_RUN ? n_in : begin + LINEAR_RUN;
        vec16 run[2][MAX_ROWS];
        UNROLL
        for (int r = 0; r < n_rows; r++)
            run[0][r] = run[1][r] = v_set(0);
        const float *at = x + (size_t)begin * (size_t)out_rows;
        for (int c = begin; c < end; c++, at += out_rows) {
            vec16 w0 = load_weights(panel, dtype, c, 0), w1 = load_weights(panel, dtype, c, 1);
            if (is_cold)
                for (size_t line = 0; line < column_bytes; line += 64)
                    prefetch_weights(panel + (size_t)c * column_bytes + line);
            UNROLL
            for (int r = 0; r < n_rows; r++) {
                vec16 value = v_set(at[r]);
                run[0][r] = v_fma(w0, value, run[0][r]);
                run[1][r] = v_fma(w1, value, run[1][r]);
            }
        }
        UNROLL
        for (int r = 0; r < n_rows; r++)
            UNROLL
        for (int h = 0; h < 2; h++) {
            float *total = out + (h * half_rows(out_rows) + r) * LANES;
            v_store(total, v_add(v_load(total), run[h][r]));
        }
    }
}

typedef void float_tile_fn(float *out, int out_rows, const uint8_t *panel, const float *x, int n_in,
                           bool is_cold);

#define FLOAT_TILE(t, dtype, rows)                                                                           \
    static void t##_##rows(float *out, int out_rows, const uint8_t *panel, const float *x, int n_in,         \
                           bool is_cold)                                                                     \
    {                                                                                                        \
        float_tile(out, out_rows, panel, dtype, x, rows, n_in, is_cold);                                     \
    }

#if IS_WIDE
#include "kernels/vector/wide_body.h"

WIDE_ADDS(floats, DTYPE_F32)
WIDE_ADDS(halves, DTYPE_F16)

/* Columns of halves as floats. */
INLINE void expand_halves(float *to, const uint8_t *from, int n)
{
    for (int c = 0; c < n; c++, to += PANEL_ROWS, from += 2 * PANEL_ROWS) {
        prefetch_weights(from);
        v_store(to, load_weights(from, DTYPE_F16, 0, 0));
        v_store(to + LANES, load_weights(from, DTYPE_F16, 0, 1));
    }
}

/* More rows than MAX_ROWS. Halves that several tiles need are widened before. */
INLINE void linear_wide(float *out, const uint8_t *panel, const enum dtype dtype, const float *x, int n_rows,
                        int n_in)
{
    _Alignas(64) float floats[LINEAR_RUN * PANEL_ROWS];
    const size_t column_bytes = dtype == DTYPE_F32 ? 128 : 64;
    int n_tiles = (n_rows + WIDE_ROWS - 1) / WIDE_ROWS;
    bool expands = dtype != DTYPE_F32 && n_tiles > 4;
    wide_add_fn *const *tiles = dtype == DTYPE_F32 || expands ? WIDE_floats : WIDE_halves;
    for (int begin = 0; begin < n_in; begin += LINEAR_RUN) {
        const uint8_t *columns = panel + (size_t)begin * column_bytes;
        struct wide_run run = { .weights = expands ? (const void *)floats : columns,
                                .n = n_in - begin < LINEAR_RUN ? n_in - begin : LINEAR_RUN,
                                .x_stride = n_rows,
                                .out_rows = n_rows };
        if (expands)
            expand_halves(floats, columns, run.n);
        for (int tile = 0; tile < n_tiles; tile++) { /* of even height: 13 rows make 4, 4 and 5 */
            int first = n_rows * tile / n_tiles, last = n_rows * (tile + 1) / n_tiles;
            run.x = x + (size_t)begin * (size_t)n_rows + first;
            run.prefetches = tile == 0 && !expands;
            tiles[last - first](out + first * LANES, &run);
        }
    }
}
#endif

/* tiles: by rows, 1..MAX_ROWS. */
INLINE void linear_float(float *out, const uint8_t *panel, const enum dtype dtype, const float *x, int n_rows,
                         int n_in, float_tile_fn *const *tiles)
{
    clear_outputs(out, n_rows);
#if IS_WIDE
    if (n_rows > MAX_ROWS) {
        linear_wide(out, panel, dtype, x, n_rows, n_in);
        return;
    }
#else
    (void)dtype;
#endif
    int n_tiles = (n_rows + MAX_ROWS - 1) / MAX_ROWS;
    for (int tile = 0; tile < n_tiles; tile++) { /* of even height: 13 rows make 7 and 6 */
        int begin = n_rows * tile / n_tiles, end = n_rows * (tile + 1) / n_tiles;
        tiles[end - begin](out + begin * LANES, n_rows, panel, x + begin, n_in, tile == 0);
    }
}

#define LINEAR_FLOAT(t, dtype)                                                                               \
    FLOAT_TILES(t, dtype)                                                                                    \
    static float_tile_fn *const TILES_##t[] = { NULL, FLOAT_TILES_TABLE(t) };                                \
    void VARIANT(linear_##t)(float *out, const uint8_t *panel, const void *x, int n_rows, int n_in)          \
    {                                                                                                        \
        linear_float(out, panel, dtype, x, n_rows, n_in, TILES_##t);                                         \
    }
