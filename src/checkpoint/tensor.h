/* A tensor of a checkpoint: a named array of numbers in a file of any format. */
#ifndef TUTTI_CHECKPOINT_TENSOR_H
#define TUTTI_CHECKPOINT_TENSOR_H

#include "base/dtype.h"
#include "base/error.h"
#include "base/files/mapping.h"
#include "base/limits.h"

/* A rectangle of a tensor seen as a matrix: rows are its first dimension, columns all others
 * together. A vector has one column. Columns of block types are split only between blocks. */
struct tensor_part {
    int64_t row, n_rows, column, n_columns;
};

struct tensor {
    const char *name;
    enum dtype dtype;
    int n_dims;                       /* 0..LIMIT_TENSOR_DIMS */
    int64_t shape[LIMIT_TENSOR_DIMS]; /* as C indexes, the last contiguous (GGUF's ne reversed) */
    const void *data;                 /* not necessarily aligned; NULL: tensor_bytes() assembles them */
    size_t n_bytes;
    const char *file;                   /* for messages */
    const struct mapping *map;          /* that contains data; NULL: other memory */
    const struct tensor_source *source; /* NULL: data is set */
    /* The same matrix in fewer bytes, only for loading: no file has its type or its order of columns. NULL: none. */
    const struct tensor *compact;
    const uint16_t
        *order; /* of a compact one, [columns]: the column of the matrix at each place; NULL: 0, 1, ... */
};

/* Assembles the bytes of a tensor that is not stored contiguously in the order of its shape:
 * slices in several files, a view with strides, integers in another packing. The format's reader
 * embeds this as the first member of its own struct. */
struct tensor_source {
    /* Writes all n_bytes of tensor. False: out of memory. */
    bool (*make)(const struct tensor *tensor, void *bytes);
    /* Writes a part, for tensor_view_copy(), with the same requirements. NULL: the whole tensor
     * is assembled for any part. */
    bool (*make_part)(const struct tensor *tensor, const struct tensor_part *part, void *bytes);
    const struct tensor *const *from; /* [n_from]: the tensors it reads */
    size_t n_from;
};

/* The tensor's bytes. If it has a source, they are assembled in memory that *owned gets, for
 * free(); else *owned is NULL. Returns NULL: out of memory. */
const void *tensor_bytes(const struct tensor *tensor, void **owned);

/* A tensor that is read part by part. */
struct tensor_view {
    const struct tensor *tensor;
    int64_t n_rows, n_columns;
    const void *bytes; /* NULL: parts are assembled on demand */
    void *owned;
};

/* False: out of memory. */
MUST_CHECK bool tensor_view_init(struct tensor_view *view, const struct tensor *tensor);
void tensor_view_clear(struct tensor_view *view); /* a zeroed one is allowed */

/* Writes part, which must be within the tensor, row by row without gaps. False: out of memory. */
MUST_CHECK bool tensor_view_copy(const struct tensor_view *view, const struct tensor_part *part, void *bytes);

/* Bytes of n_columns columns. */
size_t tensor_columns_bytes(const struct tensor *tensor, int64_t n_columns);

/* What a slice has of a tensor: of one of several matrices [rows][columns] some rows, or of one of
 * several vectors some elements. */
struct slice_rows {
    int64_t index;       /* of the matrix or vector */
    int64_t first, step; /* its rows first, first + step, ...; step 0: all */
    bool is_transposed;  /* the matrix is stored as [columns][rows]; only plain types */
};

/* A part of a tensor as a tensor of its own: a matrix of a tensor of three dimensions, a vector of one
 * of two, or a vector as a matrix of one row. It points into itself: tensor_slice_copy() copies it. */
struct tensor_slice {
    struct tensor tensor;
    struct tensor_source source;
    const struct tensor *whole;
    struct slice_rows rows;
};

/* rows: zero of a tensor of one dimension. */
void tensor_slice_init(struct tensor_slice *slice, const struct tensor *whole, const struct slice_rows *rows);
void tensor_slice_copy(struct tensor_slice *to, const struct tensor_slice *from);

/* Whether its rows lie one after the other in whole. */
bool tensor_slice_is_run(const struct tensor_slice *slice);

/* Removes a tensor's data from resident memory. It can still be read, but the file is then read
 * again. */
void tensor_forget(const struct tensor *tensor);

/* Sets n_bytes from dtype and shape. False: a dimension is negative, or the size overflows. */
MUST_CHECK bool tensor_measure(struct tensor *tensor);

/* Pointers to n tensors, sorted by name, for free(); NULL: out of memory. */
const struct tensor **tensors_sorted(const struct tensor *tensors, size_t n);
const struct tensor *tensors_find(const struct tensor *const *sorted, size_t n,
                                  const char *name); /* NULL: none */

/* TUTTI_E_FORMAT: duplicate tensor name. */
MUST_CHECK enum tutti_status tensors_check_names(const struct tensor *tensors, size_t n,
                                                 struct tutti_error *err);

/* What a format of files calls a type. NULL: the format has no such type. */
enum tensor_format { TENSOR_FORMAT_SAFETENSORS, TENSOR_FORMAT_MINDSPORE, N_TENSOR_FORMATS };
const char *tensor_type_name(enum tensor_format format, enum dtype dtype);
/* The type of a name of n_bytes; false: none. */
bool tensor_type_find(enum tensor_format format, const char *name, size_t n_bytes, enum dtype *out);

/* Writes a shape as "[2, 3]". */
void tensor_shape_text(char *text, size_t size, const int64_t *shape, int n_dims);

#endif
