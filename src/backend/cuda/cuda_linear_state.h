/* What cuda_matrix.c and cuda_linear.c keep. */
#ifndef TUTTI_BACKEND_CUDA_CUDA_LINEAR_STATE_H
#define TUTTI_BACKEND_CUDA_CUDA_LINEAR_STATE_H

#include "backend/cuda/cuda_matrix.h"

enum {
    LINEAR_STAGING_BYTES = 16 << 20, /* of packed tiles, on the way to the card */
    LINEAR_PARTIAL_BYTES = 64 << 20, /* of sums of splits, at most */
    LINEAR_PLACES = 4096,            /* blocks that have splits, at most */
};

struct cuda_linear {
    uint8_t *staging; /* pinned; NULL: none yet. Larger than LINEAR_STAGING_BYTES where a tile is */
    size_t staging_bytes;
    int max_columns; /* of an input, over all matrices, padded */
    bool has_f32;    /* a matrix of that type, which may be one of heads */
    void *halves;    /* [max_rows, or as many for each head, and LINEAR_X_ROWS][max_columns] */
    float *scales;   /* of these rows */
    float *partial;
    uint32_t *arrived; /* [LINEAR_PLACES]: zeros between launches */
    /* What halves are of, as long as only launches of cuda_linear.c followed: x NULL: nothing. */
    struct linear_converted {
        const float *x;
        const uint16_t *order;
        int n_rows, n_in;
    } converted;
    /* The last launch of cuda_linear.c, or of the norm that converted. */
    int last_kernel;
    const void *last_args;
};

/* The state, which is made when it is first needed; NULL: out of memory. */
struct cuda_linear *cuda_linear_of(struct cuda_backend *cuda);

#endif
