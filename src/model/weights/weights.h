/* Tensors of a checkpoint as sources of packed matrices: names, shapes and types checked. */
#ifndef TUTTI_MODEL_WEIGHTS_WEIGHTS_H
#define TUTTI_MODEL_WEIGHTS_WEIGHTS_H

#include "model/description/family.h"
#include "model/weights/weight_type.h"

enum { MAX_PARTS = 3 };

/* One matrix of the forward pass, from one tensor or several one above the other. */
struct weight {
    char name[LIMIT_TENSOR_NAME_BYTES]; /* of the first tensor */
    const struct tensor *parts[MAX_PARTS];
    const struct tensor *biases[MAX_PARTS]; /* NULL: none */
    int n_parts;
    int n_in, n_out;
    struct weight_place place;
    bool is_gate_up;
    bool is_transposed; /* stored as [n_in][n_out]; plain types alone */
    int by_head_dim; /* > 0: rows are stored as [heads][q, k, v][by_head_dim]; weights_by_head_row() tells */
};

/* A norm's weight and bias; NULL: none. */
struct norm_tensors {
    const struct tensor *w, *b;
};

/* The matrices of one layer, and what stands outside. */
struct layer_weights {
    struct norm_tensors attn_norm, attn_post_norm, ffn_norm, ffn_post_norm;
    const struct tensor *q_norm, *k_norm; /* [head_dim]; NULL: none */
    struct weight qkv, attn_out, gate_up, down;
};
struct outer_weights {
    struct weight embedding, output; /* output: n_parts 0 where tied */
    struct norm_tensors embedding_norm, output_norm;
    const struct tensor *positions, *top_query; /* [n_ctx or more][d_model]; NULL: none */
};

/* Errors name the tensor, what was found and what was expected. */
MUST_CHECK enum tutti_status weights_find_layer(struct layer_weights *out, const struct model_desc *desc,
                                                const struct tensor_names *names, const struct checkpoint *ck,
                                                int layer, struct tutti_error *err);
MUST_CHECK enum tutti_status weights_find_outer(struct outer_weights *out, const struct model_desc *desc,
                                                const struct tensor_names *names, const struct checkpoint *ck,
                                                struct tutti_error *err);

/* Finds every tensor of the description, then checks the unused ones (unused.c): TUTTI_E_UNSUPPORTED if one of them would change what
 * the model computes; a warning names the others, unless they are known to hold no weights. */
MUST_CHECK enum tutti_status weights_check_all(const struct model_desc *desc, const struct family *family,
                                               const struct tensor_names *names, const struct checkpoint *ck,
                                               struct tutti_error *err);

/* Whether a tensor of this name holds no weights to run, whatever the model. */
bool weights_is_ignored(const struct family *family, const char *name);

/* *out: whether two tensors are the same, bit for bit. TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status weights_are_equal(bool *out, const struct tensor *a, const struct tensor *b,
                                               struct tutti_error *err);

/* The name of a layer's tensor: layer in the place of "%d". */
void weights_layer_name(char *out, size_t size, const char *pattern, int layer);

/* The name of the bias beside a weight. */
void weights_bias_name(char *out, size_t size, const char *weight_name);

/* Where a row (q's heads first, then k's, then v's) is stored in a tensor of n_rows rows [heads][q, k, v][head_dim]. */
int64_t weights_by_head_row(int64_t n_rows, int head_dim, int64_t row);

/* part of a transposed weight as [out][in] of the same type. Freed by the caller. NULL: no memory. */
void *weights_transposed(const struct tensor *part);

/* The type that a matrix of n_in columns becomes when want is asked for: want; where n_in is no multiple of 256 the type of 32
 * that has no fewer bits, as llama.cpp chooses it; where it is none of 32 F16. */
enum dtype weights_fit_type(enum dtype want, int n_in);

/* The type that the parts of a matrix run as: their own; where they differ the finest, which is Q8_0 if all are quantized
 * (files of K-quants keep the values finer than the queries and keys), and F32 if F16 meets BF16. */
enum dtype weights_common_type(const struct weight *w);

/* Bytes of a matrix that is packed to run as type, or where it is NULL as stored. */
uint64_t weights_packed_bytes(const struct weight *w, const struct weight_type *type);

/* The same of a matrix of n_out rows that becomes type, or what fits its rows. */
uint64_t weights_type_bytes(enum dtype type, int n_in, int64_t n_out);

/* The most frequent type, by elements, of the matrices of layer 0: what a checkpoint "is stored as". */
enum dtype weights_stored_type(const struct layer_weights *layer);

/* The elements of a tensor's first n_rows rows (of a vector: n_rows 1) as float32, freed by the caller. NULL: no memory. */
float *weights_to_floats(const struct tensor *tensor, int64_t n_rows);

#endif
