/* Writes any checkpoint that tutti reads as one GGUF file that llama.cpp and tutti run. */
#ifndef TUTTI_MODEL_CONVERT_H
#define TUTTI_MODEL_CONVERT_H

#include "base/dtype.h"
#include "base/error.h"

struct convert_options {
    enum dtype
        type; /* of the matrices: F32, F16, BF16, Q8_0, Q4_0. Vectors stay F32; a matrix whose rows do not fit the
                        type's block becomes F16. */
    int n_threads; /* 0: one for each core */
    /* Called from the calling thread; bytes written so far, and in the end. May be NULL. */
    void (*progress)(void *user, uint64_t done, uint64_t total);
    void *user;
};

/* src: as for model_load(). dst appears under its name only when it is complete. The model streams through, a few
 * megabytes at a time. TUTTI_E_ARGUMENT: dst is (in) src. */
MUST_CHECK enum tutti_status convert_to_gguf(const char *src, const char *dst,
                                             const struct convert_options *options, struct tutti_error *err);

#endif
