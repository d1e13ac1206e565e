/* Converts any checkpoint that tutti reads to one GGUF file for llama.cpp and tutti. */
#ifndef TUTTI_OFFLINE_CONVERT_H
#define TUTTI_OFFLINE_CONVERT_H

#include "base/error.h"
#include "base/limits.h"
#include "model/weights/weight_type.h"
#include "offline/merge.h"

/* The result of converting one tensor. */
struct convert_result {
    const char *name; /* in the new file */
    enum dtype from, to;
    enum dtype wanted; /* differs from to if the rows do not fit its blocks */
    int n_dims;
    int64_t shape[LIMIT_TENSOR_DIMS];
    uint64_t n_elems, n_bytes;
    /* Sum of the squares of the original elements, sum of the squared errors, and the largest
     * error. */
    double squares, squared_error;
    float max_error;
};

/* The type of the matrices whose names in the new file contain a match of a regular expression
 * of PCRE2, in any case. */
struct convert_tensor_type {
    const char *pattern;
    enum dtype type; /* one for which quantize_can() */
};

struct imatrix; /* offline/imatrix.h */

struct convert_options {
    const struct weight_type *type; /* of the matrices. Vectors and tables by position are F32. */
    bool is_pure;                   /* all matrices get this type; otherwise some get more bits */
    const struct convert_tensor_type *tensor_types; /* the first that matches counts */
    int n_tensor_types;
    const struct imatrix *imatrix;     /* weights of the errors; NULL: none */
    int n_threads;                     /* 0: one for each core */
    const struct merge_source *merges; /* adapters to merge into the weights */
    int n_merges;
    /* Called from the calling thread; bytes written so far, and in the end. May be NULL. */
    void (*progress)(void *user, uint64_t done, uint64_t total);
    /* Called for each tensor when it is written. NULL: errors are not measured. */
    void (*report)(void *user, const struct convert_result *result);
    void *user;
};

/* src: as for model_load(). dst appears under its name only when it is complete; its bytes do not
 * depend on n_threads. The model is streamed: at most one tensor and a few megabytes are in
 * memory. TUTTI_E_ARGUMENT: dst is src or inside it; a pattern that is no regular expression or
 * matches no matrix. TUTTI_E_FORMAT: an importance matrix of another model. TUTTI_E_NUMERIC: a weight is infinite or
 * NaN, or exceeds F16 when converted to it. */
MUST_CHECK enum tutti_status convert_to_gguf(const char *src, const char *dst,
                                             const struct convert_options *options, struct tutti_error *err);

#endif
