/* Register tiles of some columns of a panel times up to WIDE_ROWS input rows, for the bodies of float weights.
 * One vector of weights serves all rows, so where registers are few, many rows of one half of a panel take fewer loads
 * than few rows of both. */
#ifndef TUTTI_KERNELS_VECTOR_WIDE_BODY_H
#define TUTTI_KERNELS_VECTOR_WIDE_BODY_H

#include "kernels/vector/vector.h"

enum { WIDE_ROWS = VEC_ROWS, WIDE_HALVES = VEC_TOTALS >= 16 ? 2 : 1 }; /* of a tile */

/* Columns of a panel, and the input rows. */
struct wide_run {
    const void *weights; /* F32, F16: [n][32]; BF16 and 8-bit floats: [n / 2][32][2] */
    const float *x;      /* [n][x_stride]; BF16: the odd column of each pair first */
    int n, x_stride;
    int out_rows;    /* of half_rows() */
    bool prefetches; /* weights that are read some time later */
};

/* Column c of those that are stored together, in the order of x. */
INLINE vec16 wide_load(const uint8_t *at, int c, const enum dtype dtype)
{
    if (dtype == DTYPE_BF16)
        return c == 0 ? v_load_odd_bf16(at) : v_load_even_bf16(at);
    if (dtype == DTYPE_F8_ROW)
        return c == 0 ? v_load_even_float8(at) : v_load_odd_float8(at);
    return dtype == DTYPE_F16 ? v_load_half((const uint16_t *)at) : v_load_once((const float *)at);
}

/* sum = the products of all columns. half: the first; n_rows and dtype are compile-time constants. */
INLINE void wide_sums(vec16 sum[WIDE_HALVES][WIDE_ROWS], const struct wide_run *run, int half,
                      const int n_rows, const enum dtype dtype)
{
    const bool is_pair = dtype == DTYPE_BF16 || dtype == DTYPE_F8_ROW;
    const int at_once = is_pair ? 2 : 1,
              size = dtype == DTYPE_F16 || dtype == DTYPE_F8_ROW ? 2 : 4; /* columns; their bytes */
    const uint8_t *weights = (const uint8_t *)run->weights + half * LANES * size;
    const float *x = run->x;
    UNROLL
    for (int r = 0; r < n_rows; r++)
        UNROLL
    for (int h = 0; h < WIDE_HALVES; h++)
        sum[h][r] = v_set(0);
    for (int c = 0; c < run->n; c += at_once, weights += PANEL_ROWS * size) {
        /* Both halves of two-byte weights share a line. */
        for (int h = 0; h < WIDE_HALVES && run->prefetches && (size > 2 || half == 0); h++)
            prefetch_weights(weights + h * LANES * size);
        UNROLL
        for (int i = 0; i < at_once; i++, x += run->x_stride) {
            vec16 w[WIDE_HALVES];
            UNROLL
            for (int h = 0; h < WIDE_HALVES; h++)
                w[h] = wide_load(weights + h * LANES * size, i, dtype);
            UNROLL
            for (int r = 0; r < n_rows; r++) {
                vec16 value = v_set(x[r]);
                UNROLL
                for (int h = 0; h < WIDE_HALVES; h++)
                    sum[h][r] = v_fma(w[h], value, sum[h][r]);
            }
        }
    }
}

/* Adds the sums of a run to the totals. out: [2][half_rows(out_rows)][16], from the tile's first row on. */
INLINE void wide_add(float *out, const struct wide_run *run, const int n_rows, const enum dtype dtype)
{
    for (int half = 0; half < 2; half += WIDE_HALVES) {
        vec16 sum[WIDE_HALVES][WIDE_ROWS];
        wide_sums(sum, run, half, n_rows, dtype);
        UNROLL
        for (int h = 0; h < WIDE_HALVES; h++)
            UNROLL
        for (int r = 0; r < n_rows; r++) {
            float *total = out + ((half + h) * half_rows(run->out_rows) + r) * LANES;
            v_store(total, v_add(v_load(total), sum[h][r]));
        }
    }
}

typedef void wide_add_fn(float *out, const struct wide_run *run);

#define WIDE_ADD(name, rows, dtype)                                                                          \
    static void wide_##name##_##rows(float *out, const struct wide_run *run)                                 \
    {                                                                                                        \
        wide_add(out, run, rows, dtype);                                                                     \
    }

/* WIDE_name[]: tiles of 3 to 6 rows. Tiles of even height for more than two rows have no fewer. */
#define WIDE_ADDS(name, dtype)                                                                               \
    WIDE_ADD(name, 3, dtype)                                                                                 \
    WIDE_ADD(name, 4, dtype)                                                                                 \
    WIDE_ADD(name, 5, dtype)                                                                                 \
    WIDE_ADD(name, 6, dtype)                                                                                 \
    static wide_add_fn *const WIDE_##name[] = {                                                              \
        NULL, NULL, NULL, wide_##name##_3, wide_##name##_4, wide_##name##_5, wide_##name##_6,                \
    };

#endif
