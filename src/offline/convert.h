/* Writes any checkpoint that tutti reads as one GGUF file that llama.cpp and tutti run. */
#ifndef TUTTI_OFFLINE_CONVERT_H
#define TUTTI_OFFLINE_CONVERT_H

#include "base/error.h"
#include "base/limits.h"
#include "model/weights/weight_type.h"
#include "offline/merge.h"

/* What became of one tensor. */
struct convert_result {
    const char *name; /* in the new file */
    enum dtype from, to;
    enum dtype wanted; /* other than to: the rows do not fit its blocks */
    int n_dims;
    int64_t shape[LIMIT_TENSOR_DIMS];
    uint64_t n_elems, n_bytes;
    /* Sums over all elements: of the squares of what was stored, and of its differences to what stands there now; and the
     * largest difference. */
    double squares, squared_error;
    float max_error;
};

struct convert_options {
    const struct weight_type *type;    /* of the matrices. Vectors and tables by position are F32. */
    bool is_pure;                      /* every matrix gets the one type, instead of a finer one for some */
    int n_threads;                     /* 0: one for each core */
    const struct merge_source *merges; /* adapters that are put into the weights */
    int n_merges;
    /* Called from the calling thread; bytes written so far, and in the end. May be NULL. */
    void (*progress)(void *user, uint64_t done, uint64_t total);
    /* Called for each tensor when it is written. NULL: errors are not measured. */
    void (*report)(void *user, const struct convert_result *result);
    void *user;
};

/* src: as for model_load(). dst appears under its name only when it is complete, with the same bytes whatever n_threads
 * is. The model streams through: no more is held than one tensor, and a few megabytes.
 * TUTTI_E_ARGUMENT: dst is (in) src. TUTTI_E_NUMERIC: a weight is infinite, no number, or beyond the range of F16 where it is to be that. */
MUST_CHECK enum tutti_status convert_to_gguf(const char *src, const char *dst,
                                             const struct convert_options *options, struct tutti_error *err);

#endif
