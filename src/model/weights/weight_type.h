/* The types that weights can be converted to, under the names that flags take: one table for every command.
 *
 * A type is that of most matrices. Quantized types keep some matrices finer, by what they do in the model and by layer, as
 * llama.cpp does under the same names: what sums up errors of many others (the output, values, the second half of the
 * feed-forward layer) gains most from more bits. */
#ifndef TUTTI_MODEL_WEIGHTS_WEIGHT_TYPE_H
#define TUTTI_MODEL_WEIGHTS_WEIGHT_TYPE_H

#include "base/dtype.h"
#include "base/error.h"

struct weight_type {
    const char *name;
    enum dtype dtype;   /* of most matrices */
    uint32_t file_type; /* general.file_type of GGUF */
};

/* Every name, and pairs of another word and the name that it stands for; both end with NULL. */
extern const char *const WEIGHT_TYPE_NAMES[];
extern const char *const WEIGHT_TYPE_ALIASES[];

/* By name or alias, in lower or upper case. NULL: there is none. */
const struct weight_type *weight_type_find(const char *name);

/* The names with commas between them. */
void weight_type_list(char *text, size_t size);

/* What a matrix does, as far as its type depends on it. */
enum weight_role {
    WEIGHT_OTHER, /* queries, keys, gate, up */
    WEIGHT_EMBEDDING,
    WEIGHT_OUTPUT, /* also an embedding that is the output too */
    WEIGHT_VALUES, /* or queries, keys and values in one */
    WEIGHT_ATTN_OUT,
    WEIGHT_DOWN
};

struct weight_place {
    enum weight_role role;
    int layer, n_layers;
    int n_sharing; /* query heads for each head of values */
};

/* Not yet fitted to the number of columns: weights_fit_type(). */
enum dtype weight_type_choose(const struct weight_type *type, const struct weight_place *place);

#endif
