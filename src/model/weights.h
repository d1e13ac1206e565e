/* Tensors of a checkpoint as sources of packed matrices: names, shapes and types checked. */
#ifndef TUTTI_MODEL_WEIGHTS_H
#define TUTTI_MODEL_WEIGHTS_H

#include "model/family.h"

enum { MAX_PARTS = 3 };

/* One matrix of the forward pass, from one tensor or several one above the other. */
struct weight {
    char name[LIMIT_TENSOR_NAME_BYTES]; /* of the first tensor */
    const struct tensor *parts[MAX_PARTS];
    const struct tensor *biases[MAX_PARTS]; /* NULL: none */
    int n_parts;
    int n_in, n_out;
    bool is_gate_up;
};

/* The matrices of one layer, and the three outside. */
struct layer_weights {
    const struct tensor *attn_norm, *ffn_norm;
    struct weight qkv, attn_out, gate_up, down;
};
struct outer_weights {
    struct weight embedding, output; /* output: n_parts 0 where tied */
    const struct tensor *output_norm;
};

/* Errors name the tensor, what was found and what was expected. */
MUST_CHECK enum tutti_status weights_find_layer(struct layer_weights *out, const struct model_desc *desc,
                                                const struct tensor_names *names, const struct checkpoint *ck,
                                                int layer, struct tutti_error *err);
MUST_CHECK enum tutti_status weights_find_outer(struct outer_weights *out, const struct model_desc *desc,
                                                const struct tensor_names *names, const struct checkpoint *ck,
                                                struct tutti_error *err);

/* The type that a matrix of n_in columns runs as when want is asked for: want, or F16 where n_in does not fit. */
enum dtype weights_fit_type(enum dtype want, int n_in);

/* The most frequent type, by elements, of the matrices of layer 0: what a checkpoint "is stored as". */
enum dtype weights_stored_type(const struct layer_weights *layer);

/* A vector tensor as float32: n values, freed by the caller. NULL: no memory. */
float *weights_to_floats(const struct tensor *tensor);

#endif
