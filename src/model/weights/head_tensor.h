/* A tensor with a matrix for each head, as the matrix [heads * rows][columns] of the forward pass. */
#ifndef TUTTI_MODEL_WEIGHTS_HEAD_TENSOR_H
#define TUTTI_MODEL_WEIGHTS_HEAD_TENSOR_H

#include "checkpoint/tensor.h"

/* It points into itself: head_tensor_copy() copies it. */
struct head_tensor {
    struct tensor tensor; /* [n_heads * n][columns], or transposed [n_heads * columns][n] */
    struct tensor_source source;
    const struct tensor *whole; /* [n_heads][n_rows][columns] in two or three dimensions */
    int n_heads, n_rows;
    int first, n; /* the rows of each head that are used */
    bool is_transposed;
};

/* whole, n_heads, n_rows, first, n and is_transposed are set. Quantized weights that are transposed
 * become F16, and 8-bit floats F32: their blocks lie across the new rows. */
void head_tensor_init(struct head_tensor *t);
void head_tensor_copy(struct head_tensor *to, const struct head_tensor *from);

#endif
