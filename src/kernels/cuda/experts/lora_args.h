/* What adapters change of linear layers and of the embedding, on the card, and the arguments of its kernels.
 *
 * Which adapter a row has, and what the adapters of a step are, is data: adapters [rows] has each row's index, of
 * tables [LORA_TABLE] of what each adapter changes. So a step is launched in the same way whatever adapters its rows
 * have. */
#ifndef TUTTI_KERNELS_CUDA_LORA_ARGS_H
#define TUTTI_KERNELS_CUDA_LORA_ARGS_H

#include "kernels/cuda/args.h"

enum {
    LORA_TABLE = 256, /* adapters of a table */
    LORA_COLUMNS = 8, /* rows of a are padded to so many columns, rows of b to so many outputs, with zeros */
    LORA_SUMS = 64,   /* sums that are multiplied into an output at a time, as on the CPU */
    LORA_FEW_ROWS = 64, /* up to so many rows of a step, a block has one row; else LORA_TILE_ROWS */
    LORA_TILE_ROWS = 8,
    LORA_RANK_BLOCKS = 64, /* at most, of lora_down: each has every so many times 8th sum */
};

/* A low-rank update of a range of outputs. */
struct lora_update {
    const void *b; /* [rank][n_padded], floats or halves */
    int32_t out_begin, n_out, n_padded;
    int32_t rank_begin, rank; /* its sums among those of the matrix */
    int32_t unused;
};

/* What one adapter changes of one matrix. */
struct lora_change {
    const void *a;        /* [rank][n_padded]: of all pieces; floats or halves */
    const float *scales;  /* [rank]: a sum's factor */
    const float *factors; /* [n_out]; NULL: ones */
    const float *shifts;  /* [n_out]; NULL: zeros */
    const struct lora_update *pieces;
    int32_t n_pieces, rank, is_half, n_padded; /* n_padded: of n_in */
};

/* sums[row][i] = scales[i] * (a[i] . x[row]). Lane l adds columns 8 l to 8 l + 7 of every 256, in order, by fused
 * multiply-add; the 32 sums of a warp are folded by halves. */
struct lora_down_args {
    const struct lora_change *const *changes; /* [LORA_TABLE] */
    const int32_t *adapters;                  /* [n_rows]; -1: none */
    const float *x;                           /* [n_rows][n_in] */
    float *sums;                              /* [n_rows][max_rank] */
    int32_t n_rows, n_in, max_rank;
};

/* y[row] = y[row] * factors + shifts; then for each piece, and each 64 of its sums, y[row][j] += the sum over i of
 * sums[row][i] * b[i][j], from 0 in order by fused multiply-add. */
struct lora_up_args {
    const struct lora_change *const *changes;
    const int32_t *adapters;
    const float *sums;
    float *y;         /* [n_rows][n_out]; lora_up_glu: [n_rows][n_out / 2] */
    const float *raw; /* lora_up_glu: [n_rows][n_out], gate, then up; else NULL */
    int32_t n_rows, n_out, max_rank, act;
};

/* y[i] = x[rows[i]] or, if it scatters, y[rows[i]] = x[i]; rows of n floats. rows[i] < 0: none. */
struct lora_rows_args {
    const int32_t *rows; /* [n_rows] */
    const float *x;
    float *y;
    int32_t n, scatters;
};

/* What one adapter changes of the embedding; arrays as in struct embedding_source, but transposed. */
struct embedding_change {
    const int32_t *ids;        /* [n_ids], ascending */
    const float *rows;         /* [n_ids][n] */
    const float *a;            /* [n_vocab][rank], with the scale */
    const float *b;            /* [rank][n] */
    const float *virtual_rows; /* [n_virtual][n] */
    int32_t n_ids, rank, n_virtual;
    int32_t table; /* number of its own table; 0: it uses the model's */
};

/* Changes the rows whose adapter uses the table; the others stay. */
struct embed_change_args {
    const struct embedding_change *const *changes; /* [LORA_TABLE] */
    const int32_t *adapters;                       /* [rows] */
    const int32_t *token_ids, *positions;          /* [rows] */
    const float *from;                             /* [rows][n]: rows of the table; may be x */
    float *x;
    int32_t n, table;
};

#endif
