/* Maps the tensor names of an adapter to the model's matrices. */
#ifndef TUTTI_MODEL_ADAPTERS_ADAPTER_NAMES_H
#define TUTTI_MODEL_ADAPTERS_ADAPTER_NAMES_H

#include "model/adapters/adapter.h"
#include "model/weights/weights.h"

/* What a tensor of an adapter is to the module that its name begins with. */
enum factor {
    FACTOR_A, /* the factors of a linear layer's low-rank update */
    FACTOR_B,
    FACTOR_MAGNITUDE,   /* of DoRA */
    FACTOR_B_BIAS,      /* of lora_bias: added to the result of B */
    FACTOR_EMBEDDING_A, /* the factors of the embedding's update */
    FACTOR_EMBEDDING_B,
    FACTOR_TOKENS, /* rows of trained tokens */
    FACTOR_WEIGHT, /* the module's whole weight; PEFT saves it with the factors of the output matrix, too */
    FACTOR_BIAS,
    FACTOR_ORIGINAL, /* PEFT's copy of what the model has instead of a saved module: not used */
    FACTOR_COUNT,
};

/* Splits a tensor's name into the path of the module (without a leading "base_model.model.") and the
 * factor, which is returned. FACTOR_COUNT: none of these. path: room for LIMIT_TENSOR_NAME_BYTES. */
enum factor adapter_split_name(char *path, const char *name);

/* The rows of the forward pass's matrix that a linear layer of the checkpoint corresponds to. Of a norm
 * one row. */
struct adapter_place {
    enum weight_slot slot;
    int layer, out_begin, n_out, n_in;
    int head_dim;            /* of the layer */
    struct head_order order; /* of its rows */
    int n_permuted;          /* of its first rows, whose heads change from half-split to interleaved order */
    bool is_transposed;      /* stored as [n_in][n_out] */
    bool is_less_one;        /* a norm that is stored minus 1 */
};

/* Which weights a path may name. */
enum place_kind {
    PLACE_LINEAR, /* what LoRA adapts */
    PLACE_MODULE, /* what an adapter may replace: also the embedding, the router, and norms of the stream */
};

/* Looks the path up in all of the family's layouts, so an adapter trained on one layout fits all of
 * them, as does one that was trained with a vision part next to the language part. A GGUF file may be of
 * any family of its architecture. False: the path names none of the weights of this kind. */
bool adapter_find_place(struct adapter_place *out, const char *path, enum place_kind kind,
                        const struct model_desc *desc, const struct family *family, bool is_gguf);

#endif
