/* Linear layers of 8-bit floats with vec16: the optimized ref/linear_float8.c. Included by a file of
 * one instruction set, which defines load_pairs(), struct places with load_places(), pick_scales(), and
 *     MAX_ROWS, FLOAT8_TILES(), FLOAT8_TILES_TABLE(): input rows of a register tile;
 *     WIDE_ROWS, WIDE_HALVES, WIDE_TILES(), WIDE_TILES_TABLE(): input rows and halves of a panel of one
 *     whose weights are expanded before.
 *
 * The numbers of a run of columns are expanded to floats once for all input rows: in registers, if one
 * register tile has all rows, else in the L1 cache. */
#include "kernels/float8.h"
#include "kernels/vector/vector.h"

#include <string.h>

/* A run of columns of a panel, and the input rows. */
struct float8_run {
    const uint8_t *numbers; /* [n / 2][32][2] */
    const float *floats;    /* [n][32]: the expanded numbers */
    const float *x;         /* [n][x_rows] */
    int n, x_rows;
    vec16 scale[2];
};

/* Two columns: [column][half]. */
INLINE void load_columns(vec16 w[2][2], const uint8_t *from)
{
    prefetch_weights(from);
    load_pairs(&w[0][0], &w[1][0], from);
    load_pairs(&w[0][1], &w[1][1], from + PANEL_ROWS);
}

INLINE void add_run(float *total, vec16 sum, vec16 scale, const bool is_row)
{
    vec16 before = v_load(total);
    v_store(total, is_row ? v_add(before, sum) : v_fma(sum, scale, before));
}

/* All input rows. out: [2][half_rows(n_rows)][16]. n_rows and is_row are compile-time constants. */
INLINE void float8_tile(float *out, const struct float8_run *run, const int n_rows, const bool is_row)
{
    vec16 sum[2][MAX_ROWS];
    UNROLL
    for (int r = 0; r < n_rows; r++)
        sum[0][r] = sum[1][r] = v_set(0);
    const float *x = run->x;
    for (int c = 0; c < run->n; c += 2) {
        vec16 w[2][2];
        load_columns(w, run->numbers + c * PANEL_ROWS);
        UNROLL
        for (int i = 0; i < 2; i++, x += n_rows) {
            UNROLL
            for (int r = 0; r < n_rows; r++) {
                vec16 value = v_set(x[r]);
                sum[0][r] = v_fma(w[i][0], value, sum[0][r]);
                sum[1][r] = v_fma(w[i][1], value, sum[1][r]);
            }
        }
    }
    UNROLL
    for (int h = 0; h < 2; h++)
        UNROLL
    for (int r = 0; r < n_rows; r++)
        add_run(out + (h * half_rows(n_rows) + r) * LANES, sum[h][r], run->scale[h], is_row);
}

/* Some input rows and halves of the panel, from expanded numbers. */
INLINE void wide_tile(float *out, const struct float8_run *run, int half, const int n_rows, const bool is_row)
{
    vec16 sum[WIDE_HALVES][WIDE_ROWS];
    UNROLL
    for (int r = 0; r < n_rows; r++)
        UNROLL
    for (int h = 0; h < WIDE_HALVES; h++)
        sum[h][r] = v_set(0);
    const float *x = run->x, *from = run->floats + half * LANES;
    for (int c = 0; c < run->n; c++, x += run->x_rows, from += PANEL_ROWS) {
        vec16 w[WIDE_HALVES];
        UNROLL
        for (int h = 0; h < WIDE_HALVES; h++)
            w[h] = v_load_once(from + h * LANES);
        UNROLL
        for (int r = 0; r < n_rows; r++) {
            vec16 value = v_set(x[r]);
            UNROLL
            for (int h = 0; h < WIDE_HALVES; h++)
                sum[h][r] = v_fma(w[h], value, sum[h][r]);
        }
    }
    UNROLL
    for (int h = 0; h < WIDE_HALVES; h++)
        UNROLL
    for (int r = 0; r < n_rows; r++)
        add_run(out + ((half + h) * half_rows(run->x_rows) + r) * LANES, sum[h][r], run->scale[half + h],
                is_row);
}

typedef void float8_tile_fn(float *out, const struct float8_run *run);

#define FLOAT8_TILE(t, dtype, rows)                                                                          \
    static void t##_##rows(float *out, const struct float8_run *run)                                         \
    {                                                                                                        \
        float8_tile(out, run, rows, (dtype) == DTYPE_F8_ROW);                                                \
    }

#define WIDE_TILE(t, dtype, rows)                                                                            \
    static void wide_##t##_##rows(float *out, const struct float8_run *run)                                  \
    {                                                                                                        \
        for (int half = 0; half < 2; half += WIDE_HALVES)                                                    \
            wide_tile(out, run, half, rows, (dtype) == DTYPE_F8_ROW);                                        \
    }

INLINE void expand_run(float *to, const struct float8_run *run)
{
    for (int c = 0; c < run->n; c += 2, to += 2 * PANEL_ROWS) {
        vec16 w[2][2];
        load_columns(w, run->numbers + c * PANEL_ROWS);
        v_store(to, w[0][0]);
        v_store(to + LANES, w[0][1]);
        v_store(to + PANEL_ROWS, w[1][0]);
        v_store(to + PANEL_ROWS + LANES, w[1][1]);
    }
}

/* Multiplies the totals by the scales of the rows. */
INLINE void scale_rows(float *out, const float *scales, int n_rows)
{
    for (int h = 0; h < 2; h++, out += half_rows(n_rows) * LANES)
        for (int r = 0; r < n_rows; r++)
            v_store(out + r * LANES, v_mul(v_load(out + r * LANES), v_load(scales + h * LANES)));
}

/* The tiles of t by rows: 1..MAX_ROWS, and 1..WIDE_ROWS. */
INLINE void linear_float8(float *out, const uint8_t *panel, const enum dtype dtype, const float *x,
                          int n_rows, int n_in, float8_tile_fn *const *tiles,
                          float8_tile_fn *const *wide_tiles)
{
    _Alignas(64) float floats[FLOAT8_RUN * PANEL_ROWS];
    const bool is_row = dtype == DTYPE_F8_ROW;
    struct places places[2] = { load_places(panel), load_places(panel + LANES) };
    int n_tiles = (n_rows + WIDE_ROWS - 1) / WIDE_ROWS;
    clear_outputs(out, n_rows);
    for (int begin = 0; begin < n_in; begin += FLOAT8_RUN) {
        const float *scales = (const float *)(panel + float8_run_at(dtype, begin));
        struct float8_run run = { .numbers = panel + float8_column_at(dtype, begin),
                                  .floats = floats,
                                  .x = x + (size_t)begin * (size_t)n_rows,
                                  .n = n_in - begin < FLOAT8_RUN ? n_in - begin : FLOAT8_RUN,
                                  .x_rows = n_rows };
        for (int h = 0; !is_row && h < 2; h++)
            run.scale[h] = pick_scales(scales + h * FLOAT8_SCALES, places[h]);
        if (n_rows <= MAX_ROWS) {
            tiles[n_rows](out, &run);
            continue;
        }
        expand_run(floats, &run);
        for (int tile = 0; tile < n_tiles; tile++) { /* of even height: 13 rows make 7 and 6 */
            int first = n_rows * tile / n_tiles, last = n_rows * (tile + 1) / n_tiles;
            struct float8_run rows = run;
            rows.x += first;
            wide_tiles[last - first](out + first * LANES, &rows);
        }
    }
    if (is_row)
        scale_rows(out, (const float *)panel, n_rows);
}

#define LINEAR_FLOAT8(t, dtype)                                                                              \
    FLOAT8_TILES(t, dtype)                                                                                   \
    WIDE_TILES(t, dtype)                                                                                     \
    static float8_tile_fn *const TILES_##t[] = { NULL, FLOAT8_TILES_TABLE(t) };                              \
    static float8_tile_fn *const WIDE_TILES_##t[] = { NULL, WIDE_TILES_TABLE(wide_##t) };                    \
    void VARIANT(linear_##t)(float *out, const uint8_t *panel, const void *x, int n_rows, int n_in)          \
    {                                                                                                        \
        linear_float8(out, panel, dtype, x, n_rows, n_in, TILES_##t, WIDE_TILES_##t);                        \
    }

FOR_EACH_FLOAT8(LINEAR_FLOAT8)
