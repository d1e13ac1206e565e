/* Matrices as ChatGLM's own int4 and int8 checkpoints keep them: integers ("NAME.weight", int8) and one scale for each row
 * ("NAME.weight_scale", float16). Of int4 a byte holds columns 2j (high nibble) and 2j + 1 (low nibble), two's complement.
 * Format: quantization.py and quantization_kernels.c beside the released chatglm-6b-int4 weights.
 *
 * Blocks of Q8_0 or Q4_0 with the row's scale in each hold the same values exactly; where rows are no multiple of a block, or
 * scales no float16, float32 does. */
#ifndef TUTTI_CHECKPOINT_GGUF_ROW_INTS_H
#define TUTTI_CHECKPOINT_GGUF_ROW_INTS_H

#include "checkpoint/tensor.h"

struct row_ints {
    struct tensor_source source; /* of tensor */
    struct tensor tensor;        /* the matrix [n_out][n_in], with weight's name */
    const struct tensor *from[2];
    int n_bits;
};

/* Fills *out, which must stay where it is, as long as weight and scale do. n_bits: 4 or 8. TUTTI_E_FORMAT: their types or shapes
 * do not go together. */
MUST_CHECK enum tutti_status row_ints_init(struct row_ints *out, const struct tensor *weight,
                                           const struct tensor *scale, int n_bits, struct tutti_error *err);

#endif
