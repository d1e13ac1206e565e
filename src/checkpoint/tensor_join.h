/* Joins a tensor from pieces that other tensors hold: slices of a large tensor in one file, or the
 * parts of several ranks. Nothing is copied before the tensor is read. */
#ifndef TUTTI_CHECKPOINT_TENSOR_JOIN_H
#define TUTTI_CHECKPOINT_TENSOR_JOIN_H

#include "checkpoint/tensor.h"

/* A box of elements, and where it begins in the tensor that holds it and in the whole. Dimensions
 * are those of the whole, padded in front to LIMIT_TENSOR_DIMS. */
struct tensor_piece {
    const struct tensor *from;
    int64_t from_at[LIMIT_TENSOR_DIMS], at[LIMIT_TENSOR_DIMS], n[LIMIT_TENSOR_DIMS];
};

/* The source of a joined tensor, whose struct tensor is the owner's. */
struct tensor_join {
    struct tensor_source source;
    bool is_bytes; /* pieces are runs of the whole's bytes, of one dimension */
    struct tensor_piece *pieces;
    const struct tensor **from; /* [n_pieces], as source.from */
    size_t n_pieces, capacity;
    struct tensor_join *before; /* in its owner's list */
};

/* Makes a tensor of a plain type (not of blocks) one of pieces; its shape is that of the whole.
 * is_bytes: pieces may begin at any byte. The caller checks that the pieces cover the whole. The
 * join belongs to *list, for tensor_joins_free(). NULL: out of memory. */
struct tensor_join *tensor_join_new(struct tensor_join **list, struct tensor *tensor, bool is_bytes);

/* Adds a box of n elements (bytes) per dimension: at in the whole, from_at in from; [n_dims], or
 * one number with is_bytes. from is borrowed. False: out of memory. */
MUST_CHECK bool tensor_join_add(struct tensor_join *join, int n_dims, const struct tensor *from,
                                const int64_t *from_at, const int64_t *at, const int64_t *n);

void tensor_joins_free(struct tensor_join *list); /* NULL is allowed */

#endif
