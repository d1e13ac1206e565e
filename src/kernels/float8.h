/* The packed layout of weights of 8-bit floats: a panel of 32 output rows, as two halves of 16.
 *
 * A panel:
 *     F8_ROW: float scale[32]. F8_BLOCK: u8 place[32], then 32 bytes of zero.
 *     For each run of 128 columns (the last may be shorter):
 *         F8_BLOCK: float scale[2 halves][8]; place is the index of a row's scale in those of its half,
 *         as rows share scales: of 128 rows in most uploads.
 *         u8 number[n columns / 2][32][2 columns].
 * A number shifted to a half (float8_half_bits()) is 2^-8 times its value, so scales are stored times 2^8.
 *
 * A panel's size is a multiple of 64 bytes, and so is every part of it. */
#ifndef TUTTI_KERNELS_FLOAT8_H
#define TUTTI_KERNELS_FLOAT8_H

#include "kernels/kernels.h"

/* M(name, dtype, further arguments) for each type of 8-bit floats. */
#define FOR_EACH_FLOAT8(M, ...)                                                                              \
    M(f8_block, DTYPE_F8_BLOCK, ##__VA_ARGS__)                                                               \
    M(f8_row, DTYPE_F8_ROW, ##__VA_ARGS__)

enum {
    FLOAT8_RUN = 128,   /* columns of a partial sum; of F8_BLOCK also of a scale */
    FLOAT8_SCALES = 8,  /* of a half of a panel and a run, at most */
    FLOAT8_SCALE = 256, /* factor of stored scales */
};

static inline __attribute__((always_inline)) size_t float8_head_bytes(enum dtype dtype)
{
    return dtype == DTYPE_F8_ROW ? PANEL_ROWS * sizeof(float) : 64;
}

static inline __attribute__((always_inline)) size_t float8_run_scale_bytes(enum dtype dtype)
{
    return dtype == DTYPE_F8_ROW ? 0 : 2 * FLOAT8_SCALES * sizeof(float);
}

/* Offset of the run that begins at a column, a multiple of FLOAT8_RUN: of its scales. */
static inline __attribute__((always_inline)) size_t float8_run_at(enum dtype dtype, int column)
{
    return float8_head_bytes(dtype) + (size_t)column * PANEL_ROWS +
           (size_t)(column / FLOAT8_RUN) * float8_run_scale_bytes(dtype);
}

/* Offset of the numbers from a column on, a multiple of 2. */
static inline __attribute__((always_inline)) size_t float8_column_at(enum dtype dtype, int column)
{
    int within = column % FLOAT8_RUN;
    return float8_run_at(dtype, column - within) + float8_run_scale_bytes(dtype) +
           (size_t)within * PANEL_ROWS;
}

/* Offset of a number from the first column of its pair or run. */
static inline size_t float8_place(int column, int row)
{
    return (size_t)(column / 2 * PANEL_ROWS + row) * 2 + (size_t)(column % 2);
}

/* Offset of the stored block with a column in a row of the type: its scale, then its numbers. */
static inline size_t float8_block_at(enum dtype dtype, int column)
{
    return (size_t)(column / dtype_block_elems(dtype)) * (size_t)dtype_block_bytes(dtype);
}

/* The scale of a row and column of a panel, as stored. */
static inline float float8_packed_scale(const uint8_t *panel, enum dtype dtype, int column, int row)
{
    const float *scales = (const float *)panel;
    if (dtype == DTYPE_F8_ROW)
        return scales[row];
    scales = (const float *)(panel + float8_run_at(dtype, column / FLOAT8_RUN * FLOAT8_RUN));
    return scales[row / LANES * FLOAT8_SCALES + panel[row]];
}

#endif
