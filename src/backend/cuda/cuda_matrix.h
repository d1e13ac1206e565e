/* Matrices on the card, and their products with rows: for linear layers, experts and adapters. */
#ifndef TUTTI_BACKEND_CUDA_CUDA_MATRIX_H
#define TUTTI_BACKEND_CUDA_CUDA_MATRIX_H

#include "backend/cuda/cuda.h"
#include "kernels/cuda/linear/linear_args.h"

/* All experts' tiles of weights are contiguous, then come the scales, the biases and the orders. */
struct matrix {
    enum dtype dtype;
    enum linear_format format;
    int n_in, n_out;      /* of one expert's matrix */
    int n_tiles, n_units; /* tiles of one expert, units of a tile */
    int split_shift;
    int n_experts; /* 1: a plain matrix */
    bool is_gate_up;
    size_t tile_bytes, n_bytes;
    uint8_t *weights; /* on the card, as all that follows: [n_experts][n_tiles][tile_bytes]; n_bytes in all */
    float *scales;    /* [n_experts][n_tiles][16] */
    float *bias;      /* likewise; NULL: none */
    uint16_t *order;  /* [n_experts][n_in], or [n_in] if order_stride is 0; NULL: 0, 1, ... */
    size_t order_stride;
    float *host_bias; /* as bias */
};

static inline size_t cuda_expert_bytes(const struct matrix *m)
{
    return m->tile_bytes * (size_t)m->n_tiles;
}

/* ---- packing on the host: cuda_pack.c ---- */

/* The format in which a card has weights of a type: its own for Q4_0 to Q6_K, MXFP4, F16 and F32. Groups of integers
 * (G4, G8) become Q4_0 and Q8_0, which keeps their values; with zero points (G4Z) Q4_1, whose mins are rounded to float16.
 * BF16, 8-bit floats and the types of grids (IQ) become F16: a row is multiplied by a power of two and rounded. BF16 survives
 * that unchanged, unless a weight is 2^-28 times smaller than the row's largest; so do 8-bit floats with one scale for a row. */
enum linear_format cuda_format(enum dtype dtype);

/* Bytes of a tile of n_in columns, without its scales. */
size_t cuda_tile_bytes(enum linear_format format, int n_in);

/* Packs 16 rows of a type into a zeroed tile; NULL: zeros. scales: [16]. floats: scratch, [n_in]. */
void cuda_pack_tile(uint8_t *tile, float *scales, const uint8_t *const rows[LINEAR_TILE], enum dtype dtype,
                    int n_in, float *floats);

/* ---- products: cuda_linear.c ---- */

/* Before the first product or read of a matrix of the format. False: a kept failure. */
MUST_CHECK bool cuda_linear_load(struct cuda_backend *cuda, enum linear_format format);

/* Input rows as a matrix takes them: float16 (linear_convert), or float32 as they are. */
struct cuda_input {
    const void *rows;
    const float *scales; /* NULL: float32 */
    int stride;          /* elements from row to row; in pieces (halves.h of kernels/cuda): rows of a piece */
};

/* The entries of experts: their rows of x, and the lists of those with one expert (linear_args.h), both on the card. */
struct cuda_entries {
    const int32_t *rows; /* NULL: entry e is row e */
    const struct linear_rows *lists;
    const int32_t *n_lists;
    int most_lists,
        list_rows; /* lists that may be used, at most; rows of a list, at most: one of LINEAR_LIST_ROWS */
    int n_entries;
};

/* A list has at most so many rows; kernels for more of them need more of them to be worthwhile. */
static const int LINEAR_LIST_ROWS[] = { 8, 16, 32, 64 };

/* The least of these that is worthwhile if an expert has n rows on average. */
int cuda_list_rows(int n);

/* Bytes of n converted rows of n_in elements for a matrix of the format. */
size_t cuda_converted_bytes(enum linear_format format, int n, int n_in);

/* Converts rows of m->n_in floats for products with m: to has cuda_converted_bytes(), scales [n_rows or n_entries]. entries
 * NULL: rows 0 to n_rows - 1. Rows for weights of type F32 stay where they are, unless there is something to gather. */
struct cuda_input cuda_convert(struct cuda_backend *cuda, void *to, float *scales, const struct matrix *m,
                               const float *x, int x_stride, int n_rows, const struct cuda_entries *entries);

/* y [n_rows or entries][y_stride] = input . W^T + bias. activation: of gate and up, whose y then has half as many columns;
 * -1: none. entries NULL: a matrix without experts. */
void cuda_product(struct cuda_backend *cuda, float *y, int y_stride, const struct matrix *m,
                  const struct cuda_input *input, int n_rows, int activation,
                  const struct cuda_entries *entries);

/* y [n_rows][n_out] = x . W^T + bias, of gate and up without the activation, gate first: the same bits as linear_glu()
 * applies it to. n_rows: padded. */
void cuda_linear_raw(struct cuda_backend *cuda, float *y, const struct matrix *m, const float *x, int n_rows);

/* y [n][n_in] = rows ids[i] - first_id of the table, as float32; zeros where there is none. ids: on the card, NULL:
 * rows 0 to n - 1. */
void cuda_read_rows(struct cuda_backend *cuda, float *y, const struct matrix *m, const int32_t *ids,
                    int first_id, int n);

#endif
