/* Reads the matrices of ChatGLM's own int4 and int8 checkpoints: integers ("NAME.weight", int8)
 * and one scale for each row ("NAME.weight_scale", float16). For int4 a byte has columns 2j (high
 * nibble) and 2j + 1 (low nibble), two's complement. Format: quantization.py and
 * quantization_kernels.c in the chatglm-6b-int4 release.
 *
 * They are converted exactly to Q8_0 or Q4_0 blocks that all have the row's scale; or to float32
 * if rows are no multiple of a block or scales are not float16. */
#ifndef TUTTI_CHECKPOINT_GGUF_ROW_INTS_H
#define TUTTI_CHECKPOINT_GGUF_ROW_INTS_H

#include "checkpoint/tensor.h"

struct row_ints {
    struct tensor_source source; /* of tensor */
    struct tensor tensor;        /* the matrix [n_out][n_in], with weight's name */
    const struct tensor *from[2];
    int n_bits;
};

/* Fills *out, which must not be moved; weight and scale must outlive it. n_bits: 4 or 8.
 * TUTTI_E_FORMAT: the types or shapes of weight and scale do not match. */
MUST_CHECK enum tutti_status row_ints_init(struct row_ints *out, const struct tensor *weight,
                                           const struct tensor *scale, int n_bits, struct tutti_error *err);

#endif
