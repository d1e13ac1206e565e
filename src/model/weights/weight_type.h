/* The types that weights can be converted to (f16, q4_k, ...): one table for the flags of every
 * command.
 *
 * A weight type names the type of most matrices. With quantized types some matrices get more
 * bits, depending on their role and layer, as in llama.cpp under the same names: matrices in
 * which many errors add up (output, values, down projection) gain most from them. With mxfp4 only
 * the matrices of experts have that type, and all others are q8_0. */
#ifndef TUTTI_MODEL_WEIGHTS_WEIGHT_TYPE_H
#define TUTTI_MODEL_WEIGHTS_WEIGHT_TYPE_H

#include "base/dtype.h"
#include "base/error.h"
#include "model/slots.h"

struct weight_type {
    const char *name;
    enum dtype dtype;   /* of most matrices */
    uint32_t file_type; /* general.file_type of GGUF */
};

/* All names, and pairs of an alias and its name; both lists end with NULL. */
extern const char *const WEIGHT_TYPE_NAMES[];
extern const char *const WEIGHT_TYPE_ALIASES[];

/* By name or alias, in lower or upper case. NULL: not found. */
const struct weight_type *weight_type_find(const char *name);

/* By the index of its name; NULL: there are fewer. */
const struct weight_type *weight_type_at(int index);

/* Writes the names, separated by commas. */
void weight_type_list(char *text, size_t size);

struct weight_place {
    enum weight_role role;
    int layer, n_layers;
    int n_sharing; /* query heads per KV head */
    int n_experts; /* of each layer of the model that has experts; 0: none has */
    bool is_of_experts;
    bool is_falcon, is_70b; /* the models for which llama.cpp has rules of their own */
    bool has_imatrix;       /* the quantizer weighs errors by an importance matrix */
};

/* The type for a matrix, not yet fitted to its number of columns: see weights_fit_type(). */
enum dtype weight_type_choose(const struct weight_type *type, const struct weight_place *place);

#endif
