/* Whose matrix an adapter's tensor belongs to. */
#ifndef TUTTI_MODEL_ADAPTERS_ADAPTER_NAMES_H
#define TUTTI_MODEL_ADAPTERS_ADAPTER_NAMES_H

#include "model/adapters/adapter.h"

/* FACTOR_BASE: a copy of the weight that is adapted, which PEFT saves beside the factors of an output matrix. */
enum factor { FACTOR_NONE, FACTOR_A, FACTOR_B, FACTOR_BASE };

/* Takes a tensor's name apart: the path of the linear layer (without a leading "base_model.model.") and which factor it
 * is. FACTOR_NONE: it is no factor. path: LIMIT_TENSOR_NAME_BYTES. */
enum factor adapter_split_name(char *path, const char *name);

/* Rows of a matrix of the forward pass that a linear layer of the checkpoint stands for. */
struct adapter_place {
    enum site site;
    int layer, out_begin, n_out, n_in;
    int by_head_dim; /* > 0: its rows are [heads][q, k, v][by_head_dim] */
    int n_turned;    /* its first rows, whose heads go from half-split to interleaved order */
};

/* Finds a path in any of the family's layouts, so that an adapter that was trained on one layout fits all of them.
 * False: it names none of the family's linear layers. */
bool adapter_find_place(struct adapter_place *out, const char *path, const struct model_desc *desc,
                        const struct family *family, bool is_gguf);

#endif
