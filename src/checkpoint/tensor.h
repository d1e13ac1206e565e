/* A named array of numbers in a file, whatever the file's format. */
#ifndef TUTTI_CHECKPOINT_TENSOR_H
#define TUTTI_CHECKPOINT_TENSOR_H

#include "base/dtype.h"
#include "base/error.h"
#include "base/files/mapping.h"
#include "base/limits.h"

/* Rows and columns of a tensor seen as a matrix: rows are its first dimension, columns all others together. A vector has one column.
 * Columns of block types are cut at blocks alone. */
struct tensor_part {
    int64_t row, n_rows, column, n_columns;
};

struct tensor {
    const char *name;
    enum dtype dtype;
    int n_dims;                       /* 0..LIMIT_TENSOR_DIMS */
    int64_t shape[LIMIT_TENSOR_DIMS]; /* as C indexes, the last contiguous (GGUF's ne reversed) */
    const void *data;                 /* no alignment is promised; NULL: tensor_bytes() puts them together */
    size_t n_bytes;
    const char *file;                   /* for messages */
    const struct mapping *map;          /* that data lie in; NULL: they are somebody's memory */
    const struct tensor_source *source; /* NULL: data are there */
};

/* How the bytes come about of a tensor that does not lie in one piece, in the order of its shape: slices in several places,
 * a view with strides, integers in another packing. A reader puts this at the head of what else it needs to know. */
struct tensor_source {
    /* Writes all n_bytes of tensor. False: no memory. */
    bool (*make)(const struct tensor *tensor, void *bytes);
    /* Writes a part, for tensor_view_copy(), with its limits. NULL: all is made for any part. */
    bool (*make_part)(const struct tensor *tensor, const struct tensor_part *part, void *bytes);
    const struct tensor *const *from; /* [n_from]: what is read for it */
    size_t n_from;
};

/* The tensor's bytes. Where it has a source they are made in memory that *owned gets, for free(); else *owned is NULL.
 * NULL: no memory. */
const void *tensor_bytes(const struct tensor *tensor, void **owned);

/* A tensor that is read part by part. */
struct tensor_view {
    const struct tensor *tensor;
    int64_t n_rows, n_columns;
    const void *bytes; /* NULL: parts are made when they are asked for */
    void *owned;
};

/* False: no memory. */
MUST_CHECK bool tensor_view_init(struct tensor_view *view, const struct tensor *tensor);
void tensor_view_clear(struct tensor_view *view); /* a zeroed one is allowed */

/* Writes part, which lies within the tensor, row by row without gaps. False: no memory. */
MUST_CHECK bool tensor_view_copy(const struct tensor_view *view, const struct tensor_part *part, void *bytes);

/* Bytes of n_columns columns. */
size_t tensor_columns_bytes(const struct tensor *tensor, int64_t n_columns);

/* What stands of a piece in a part: piece [n_rows][n_columns] begins at row and column of the whole that part is of. bytes: the part's.
 * False: no memory. */
MUST_CHECK bool tensor_copy_piece(const struct tensor *piece, int64_t row, int64_t column,
                                  const struct tensor_part *part, void *bytes);

/* Lets go of the memory behind a tensor's data; it may still be read, at the price of reading the file again. */
void tensor_forget(const struct tensor *tensor);

/* Sets n_bytes from dtype and shape. False: a dimension is negative, or the size overflows. */
MUST_CHECK bool tensor_measure(struct tensor *tensor);

/* TUTTI_E_FORMAT: two of them have the same name. */
MUST_CHECK enum tutti_status tensors_check_names(const struct tensor *tensors, size_t n,
                                                 struct tutti_error *err);

/* "[2, 3]". */
void tensor_shape_text(char *text, size_t size, const int64_t *shape, int n_dims);

#endif
