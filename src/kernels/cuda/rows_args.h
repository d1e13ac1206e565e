/* The arguments of kernels/cuda/norm.c and kernels/cuda/rows.c. Rows are [n_rows][n] unless stated otherwise. */
#ifndef TUTTI_KERNELS_CUDA_ROWS_ARGS_H
#define TUTTI_KERNELS_CUDA_ROWS_ARGS_H

#include <stddef.h>
#include <stdint.h>

enum {
    NORM_THREADS = 256, /* of a row: their number decides the order of its sums */
    ROWS_THREADS = 256,
    NORM_VECTORS = 8, /* of 4 elements that a thread of norm_held keeps in registers */
    NORM_HELD = NORM_THREADS * NORM_VECTORS * 4, /* elements of a row, at most */
};

/* Weights of a norm. w NULL: those of all rows. */
struct norm_weights {
    const float *w, *b;
};

/* A block for each row: x += add, then y = the norm of x. y is not x, but may be add. */
struct norm_args {
    float *y, *x;
    const float *add;                   /* NULL: none */
    struct norm_weights weights;        /* [n] each; b NULL: RMSNorm, else LayerNorm */
    const struct norm_weights *updates; /* of adapters; NULL: none */
    const int32_t *adapters;            /* [n_rows], with updates: an index of them, or -1 */
    /* The row of y as linear layers take it (halves.h), then zeros up to half_stride, a multiple of 4. */
    uint16_t *half; /* [n_rows][half_stride], or in pieces; NULL: none */
    float *scales;  /* [n_rows]: half times its scale is y; NaN for a row that has NaN or infinity */
    int32_t half_stride, half_piece_rows;
    int32_t n;
    float eps;
};

/* Elements of rows that are next to each other. The vector kernels need n and all addresses to be multiples of 4
 * elements. */
struct elements_args {
    float *x;
    const float *base, *add; /* of scale_add */
    int64_t n;
    float factor;       /* scale_add, scale: of base, or x; softcap: the cap */
    int32_t activation; /* activate: of math.h */
};

/* A block for each row: x = or += a row of the table. */
struct positions_args {
    float *x;
    const float *table;
    const int32_t *positions; /* [n_rows] */
    int32_t n, adds;
};

struct concat_args {
    float *y;
    const float *a, *b;
    int32_t n_a, n_b;
};

struct gather_args {
    float *y;
    const float *x, *add;       /* add NULL: none */
    const int32_t *output_rows; /* [n_rows of y] */
    int32_t n;
};

/* A thread for each angle of a row: cos_sin [n_rows][n_parts][cos, sin][n_pairs]. */
struct rope_tables_args {
    float *cos_sin;
    const int32_t *positions[2]; /* of each part, [n_rows] */
    const float *freqs;          /* [n_pairs] */
    int32_t n_rows, n_parts, n_pairs;
    float scale;
};

/* Adds the mixed words of bytes to *sum. n_words: whole words of 8 bytes, aligned; then n_tail < 8 bytes. */
struct checksum_args {
    uint64_t *sum;
    const uint64_t *words;
    uint64_t n_words;
    int32_t n_tail;
};

#endif
