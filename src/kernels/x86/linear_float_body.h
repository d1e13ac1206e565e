/* Linear layers of float weights over vec16: the twin of linear_float() in ref/linear.c. Included by a file of one
 * instruction set.
 *
 * A register tile is n_panels panels times n_rows input rows, one sum each: at least eight sums where there is work
 * for them, since an addition that depends on the last one waits four cycles and two can start in each. */
#include "kernels/pack.h"
#include "kernels/x86/x86.h"

#include <string.h>

enum {
    MOST_PANELS = 4,
    AHEAD = 8192, /* bytes ahead of the weights being read that are asked for where they come from memory */
};

INLINE vec16 load_weights(const uint8_t *panel, enum dtype dtype, int column)
{
    switch (dtype) {
    case DTYPE_F32:
        return v_load((const float *)panel + (size_t)column * PANEL_ROWS);
    case DTYPE_F16:
        return v_load_half((const uint16_t *)panel + (size_t)column * PANEL_ROWS);
    default:
        return v_load_bf16((const uint16_t *)panel + (size_t)column * PANEL_ROWS);
    }
}

/* out: [n_panels][out_rows][16], zeroed; x: [n_in][x_rows]. n_panels and n_rows are known when it is compiled. */
INLINE void float_tile(float *out, int out_rows, const uint8_t *panels, size_t stride, const enum dtype dtype,
                       const int n_panels, const float *x, int x_rows, const int n_rows, int n_in,
                       bool is_cold)
{
    const size_t column_bytes = dtype == DTYPE_F32 ? 64 : 32;
    for (int begin = 0; begin < n_in; begin += LINEAR_RUN) {
        int end = n_in - begin < LINEAR_RUN ? n_in : begin + LINEAR_RUN;
        vec16 run[MOST_PANELS * TILE_ROWS];
        UNROLL
        for (int i = 0; i < n_panels * n_rows; i++)
            run[i] = v_set(0);
        const float *at = x + (size_t)begin * (size_t)x_rows;
        for (int c = begin; c < end; c++, at += x_rows) {
            vec16 w[MOST_PANELS];
            UNROLL
            for (int p = 0; p < n_panels; p++) {
                w[p] = load_weights(panels + (size_t)p * stride, dtype, c);
                if (is_cold)
                    _mm_prefetch((const char *)panels + (size_t)p * stride + (size_t)c * column_bytes + AHEAD,
                                 _MM_HINT_T0);
            }
            UNROLL
            for (int r = 0; r < n_rows; r++) {
                vec16 value = v_set(at[r]);
                UNROLL
                for (int p = 0; p < n_panels; p++)
                    run[p * n_rows + r] = v_fma(w[p], value, run[p * n_rows + r]);
            }
        }
        UNROLL
        for (int i = 0; i < n_panels * n_rows; i++) {
            float *total = out + (i / n_rows * out_rows + i % n_rows) * PANEL_ROWS;
            v_store(total, v_add(v_load(total), run[i]));
        }
    }
}

typedef void float_tile_fn(float *out, int out_rows, const uint8_t *panels, size_t stride, const float *x,
                           int x_rows, int n_in, bool is_cold);

#define FLOAT_TILE(name, dtype, panels_, rows_)                                                              \
    static void name(float *out, int out_rows, const uint8_t *panels, size_t stride, const float *x,         \
                     int x_rows, int n_in, bool is_cold)                                                     \
    {                                                                                                        \
        float_tile(out, out_rows, panels, stride, dtype, panels_, x, x_rows, rows_, n_in, is_cold);          \
    }

/* One panel with up to 16 rows, or several panels where the rows are few. */
#define FLOAT_TILES(t, dtype)                                                                                \
    FLOAT_TILE(t##_4x1, dtype, 4, 1)                                                                         \
    FLOAT_TILE(t##_2x2, dtype, 2, 2)                                                                         \
    FLOAT_TILE(t##_1x1, dtype, 1, 1)                                                                         \
    FLOAT_TILE(t##_1x2, dtype, 1, 2)                                                                         \
    FLOAT_TILE(t##_1x3, dtype, 1, 3)                                                                         \
    FLOAT_TILE(t##_1x4, dtype, 1, 4)                                                                         \
    FLOAT_TILES_WIDE(t, dtype)

struct float_tiles {
    int most_rows;
    float_tile_fn *four_by_one, *two_by_two;
    float_tile_fn *one[TILE_ROWS + 1]; /* by rows */
};

INLINE void linear_float(float *out, const uint8_t *panels, enum dtype dtype, int n_panels, const float *x,
                         int n_rows, int n_in, bool is_cold, const struct float_tiles *tiles)
{
    size_t stride = 0;
    panel_bytes(dtype, n_in, &stride);
    memset(out, 0, (size_t)n_panels * (size_t)n_rows * PANEL_ROWS * sizeof *out);
    float_tile_fn *many = n_rows == 1 ? tiles->four_by_one : n_rows == 2 ? tiles->two_by_two : NULL;
    int n_many = n_rows == 1 ? 4 : 2, p = 0;
    for (; many && p + n_many <= n_panels; p += n_many, panels += (size_t)n_many * stride)
        many(out + p * n_rows * PANEL_ROWS, n_rows, panels, stride, x, n_rows, n_in, is_cold);
    for (; p < n_panels; p++, panels += stride)
        for (int r = 0; r < n_rows;) {
            int n = n_rows - r < tiles->most_rows ? n_rows - r : tiles->most_rows;
            tiles->one[n](out + (p * n_rows + r) * PANEL_ROWS, n_rows, panels, stride, x + r, n_rows, n_in,
                          is_cold && r == 0);
            r += n;
        }
}

#define LINEAR_FLOAT(t, dtype)                                                                               \
    FLOAT_TILES(t, dtype)                                                                                    \
    static const struct float_tiles TILES_##t = { VEC_TOTALS, t##_4x1, t##_2x2, FLOAT_TILES_TABLE(t) };      \
    void VARIANT(linear_##t)(float *out, const uint8_t *panels, int n_panels, const void *x, int n_rows,     \
                             int n_in, bool is_cold)                                                         \
    {                                                                                                        \
        linear_float(out, panels, dtype, n_panels, x, n_rows, n_in, is_cold, &TILES_##t);                    \
    }
