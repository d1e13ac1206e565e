/* Maps the tensor names of an adapter to the model's matrices. */
#ifndef TUTTI_MODEL_ADAPTERS_ADAPTER_NAMES_H
#define TUTTI_MODEL_ADAPTERS_ADAPTER_NAMES_H

#include "model/adapters/adapter.h"

/* FACTOR_BASE: a copy of the weight that is adapted, which PEFT saves together with the factors
 * of an output matrix. */
enum factor { FACTOR_NONE, FACTOR_A, FACTOR_B, FACTOR_BASE };

/* Splits a tensor's name into the path of the linear layer (without a leading
 * "base_model.model.") and the factor, which is returned. FACTOR_NONE: not a LoRA factor. path:
 * room for LIMIT_TENSOR_NAME_BYTES. */
enum factor adapter_split_name(char *path, const char *name);

/* The rows of the forward pass's matrix that a linear layer of the checkpoint corresponds to. */
struct adapter_place {
    enum weight_slot slot;
    int layer, out_begin, n_out, n_in;
    int head_dim;    /* of the layer */
    bool is_by_head; /* its rows are [heads][q, k, v][head_dim] */
    int n_permuted;  /* of its first rows, whose heads change from half-split to interleaved order */
};

/* Looks the path up in all of the family's layouts, so an adapter trained on one layout fits all
 * of them. False: the path names none of the family's linear layers. */
bool adapter_find_place(struct adapter_place *out, const char *path, const struct model_desc *desc,
                        const struct family *family, bool is_gguf);

#endif
