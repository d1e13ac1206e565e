/* Brings stored matrices into the form that is packed, on all threads of a backend. */
#ifndef TUTTI_MODEL_LOAD_ASSEMBLE_H
#define TUTTI_MODEL_LOAD_ASSEMBLE_H

#include "backend/backend.h"
#include "checkpoint/tensor.h"

/* The bytes of a tensor of two dimensions: as stored, or with rows and columns exchanged, which only
 * plain types allow. *owned: memory that they needed, for free(); NULL: they lie in the file's
 * mapping. Returns NULL: out of memory. */
const void *assemble_matrix(struct backend *be, const struct tensor *matrix, bool is_transposed,
                            void **owned);

/* Index of the first of n_rows x n_columns weights that is not finite; -1: none. */
int64_t assemble_find_nan(struct backend *be, const void *bytes, enum dtype dtype, int64_t n_rows,
                          int64_t n_columns);

#endif
