/* Linear layers of 8-bit floats with vec16: the optimized ref/linear_float8.c. Included by a file of
 * one instruction set, which defines struct places with load_places(), pick_scales(), and
 *     IS_WIDE: tiles of six rows, as below; else
 *     FLOAT8_TILES(), FLOAT8_TILES_TABLE(): register tiles that expand the numbers in registers, and MAX_TILES,
 *     how many of these may do so, one after the other;
 *     WIDE_TILES(), WIDE_TILES_TABLE(): register tiles of numbers that were expanded before.
 *
 * With more input rows the numbers of a run of columns are expanded to floats once for all, in the L1 cache. */
#include "kernels/float8.h"
#include "kernels/vector/wide_body.h"

#include <string.h>

/* A run of columns of a panel, and the input rows. */
struct float8_run {
    struct wide_run wide; /* weights: 8-bit floats, or expanded to floats */
    vec16 scale[2];
};

/* Two columns: [column][half]. */
INLINE void load_columns(vec16 w[2][2], const uint8_t *from)
{
    prefetch_weights(from);
    UNROLL
    for (int h = 0; h < 2; h++) {
        w[0][h] = v_load_even_float8(from + h * PANEL_ROWS);
        w[1][h] = v_load_odd_float8(from + h * PANEL_ROWS);
    }
}

INLINE void add_run(float *total, vec16 sum, vec16 scale, const bool is_row)
{
    vec16 before = v_load(total);
    v_store(total, is_row ? v_add(before, sum) : v_fma(sum, scale, before));
}

/* All input rows and both halves. out: [2][half_rows(n_rows)][16]. n_rows and is_row are compile-time constants. */
INLINE void float8_tile(float *out, const struct float8_run *run, const int n_rows, const bool is_row)
{
    vec16 sum[2][WIDE_ROWS];
    UNROLL
    for (int r = 0; r < n_rows; r++)
        sum[0][r] = sum[1][r] = v_set(0);
    const uint8_t *numbers = run->wide.weights;
    const float *x = run->wide.x;
    for (int c = 0; c < run->wide.n; c += 2) {
        vec16 w[2][2];
        load_columns(w, numbers + c * PANEL_ROWS);
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

/* Some input rows, WIDE_HALVES at a time. dtype: that of the run's weights, F32 or F8_ROW for both types. */
INLINE void wide_tile(float *out, const struct float8_run *run, const int n_rows, const bool is_row,
                      const enum dtype dtype)
{
    for (int half = 0; half < 2; half += WIDE_HALVES) {
        vec16 sum[WIDE_HALVES][WIDE_ROWS];
        wide_sums(sum, &run->wide, half, n_rows, dtype);
        UNROLL
        for (int h = 0; h < WIDE_HALVES; h++)
            UNROLL
        for (int r = 0; r < n_rows; r++)
            add_run(out + ((half + h) * half_rows(run->wide.out_rows) + r) * LANES, sum[h][r],
                    run->scale[half + h], is_row);
    }
}

typedef void float8_tile_fn(float *out, const struct float8_run *run);

#define FLOAT8_TILE(t, dtype, rows)                                                                          \
    static void t##_##rows(float *out, const struct float8_run *run)                                         \
    {                                                                                                        \
        float8_tile(out, run, rows, (dtype) == DTYPE_F8_ROW);                                                \
    }

/* The same, half by half. */
#define FLOAT8_HALVES(t, dtype, rows)                                                                        \
    static void t##_##rows(float *out, const struct float8_run *run)                                         \
    {                                                                                                        \
        wide_tile(out, run, rows, (dtype) == DTYPE_F8_ROW, DTYPE_F8_ROW);                                    \
    }

#define WIDE_TILE(t, dtype, rows)                                                                            \
    static void wide_##t##_##rows(float *out, const struct float8_run *run)                                  \
    {                                                                                                        \
        wide_tile(out, run, rows, (dtype) == DTYPE_F8_ROW, DTYPE_F32);                                       \
    }

#if IS_WIDE
enum { MAX_TILES = 8 };
#define FLOAT8_TILES(t, dtype)                                                                               \
    FLOAT8_TILE(t, dtype, 1)                                                                                 \
    FLOAT8_TILE(t, dtype, 2)                                                                                 \
    FLOAT8_HALVES(t, dtype, 3)                                                                               \
    FLOAT8_HALVES(t, dtype, 4)                                                                               \
    FLOAT8_HALVES(t, dtype, 5)                                                                               \
    FLOAT8_HALVES(t, dtype, 6)
#define FLOAT8_TILES_TABLE(t) t##_1, t##_2, t##_3, t##_4, t##_5, t##_6
/* More than MAX_TILES tiles have five or six rows. */
#define WIDE_TILES(t, dtype)                                                                                 \
    WIDE_TILE(t, dtype, 5)                                                                                   \
    WIDE_TILE(t, dtype, 6)
#define WIDE_TILES_TABLE(t) NULL, NULL, NULL, NULL, t##_5, t##_6
#endif

/* Replaces the numbers by floats: [n][32]. */
INLINE void expand_run(struct float8_run *run, float *to)
{
    const uint8_t *numbers = run->wide.weights;
    run->wide.weights = to;
    for (int c = 0; c < run->wide.n; c += 2, to += 2 * PANEL_ROWS) {
        vec16 w[2][2];
        load_columns(w, numbers + c * PANEL_ROWS);
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

/* tiles, wide_tiles: by rows, 1..WIDE_ROWS; NULL: a height that does not occur. */
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
        struct float8_run run = { .wide = { .weights = panel + float8_column_at(dtype, begin),
                                            .n = n_in - begin < FLOAT8_RUN ? n_in - begin : FLOAT8_RUN,
                                            .x_stride = n_rows,
                                            .out_rows = n_rows } };
        for (int h = 0; !is_row && h < 2; h++)
            run.scale[h] = pick_scales(scales + h * FLOAT8_SCALES, places[h]);
        if (n_tiles > MAX_TILES)
            expand_run(&run, floats);
        for (int tile = 0; tile < n_tiles; tile++) { /* of even height: 13 rows make 7 and 6, or 4, 4 and 5 */
            int first = n_rows * tile / n_tiles, last = n_rows * (tile + 1) / n_tiles;
            run.wide.x = x + (size_t)begin * (size_t)n_rows + first;
            run.wide.prefetches = tile == 0 && n_tiles <= MAX_TILES;
            (n_tiles <= MAX_TILES ? tiles : wide_tiles)[last - first](out + first * LANES, &run);
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
