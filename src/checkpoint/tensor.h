/* A named array of numbers in a file, whatever the file's format. */
#ifndef TUTTI_CHECKPOINT_TENSOR_H
#define TUTTI_CHECKPOINT_TENSOR_H

#include "base/dtype.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/mapping.h"

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
    const struct tensor *const *from; /* [n_from]: what is read for it */
    size_t n_from;
};

/* The tensor's bytes. Where it has a source they are made in memory that *owned gets, for free(); else *owned is NULL.
 * NULL: no memory. */
const void *tensor_bytes(const struct tensor *tensor, void **owned);

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
