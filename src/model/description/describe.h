/* Configuration keys that most families share; each family's describe() adds what is its own. */
#ifndef TUTTI_MODEL_DESCRIPTION_DESCRIBE_H
#define TUTTI_MODEL_DESCRIPTION_DESCRIBE_H

#include "model/description/family.h"

/* What transformers' class of a family takes where config.json is silent. */
struct transformers_defaults {
    int n_kv_heads; /* 0: as many as heads */
    int head_dim;   /* 0: the width over the heads */
    int n_ctx;
    double norm_eps;
    double rotary_part; /* of each head that is rotated; 1: the class knows no other */
};

/* The keys of transformers' decoder classes since LLaMA: RMSNorm, grouped attention, rotary positions over
 * half-split heads, SwiGLU. Biases and windows are left to the family. */
void describe_transformers(struct model_desc *desc, struct config *c,
                           const struct transformers_defaults *defaults);

/* layer_types, where the file has it. window: what a "sliding_attention" layer sees, 0: the file names none. first: the first such
 * layer where layer_types is silent. Sets desc->window; what is not the same in all layers is refused. */
void describe_layer_types(struct model_desc *desc, struct config *c, int window, int first);

/* Which of two names of one setting the file has. It may have both, but with one value. */
const char *describe_either(struct config *c, const char *key, const char *alias);

/* auto_map: code in the folder may be another model under a known name. prefix: how the names of the authors' own classes begin,
 * NULL: they published no code. */
void describe_code(struct config *c, const char *family, const char *prefix);

/* The keys that GGUF's architectures share under their prefix; desc->norm is set before. The rotation's kind is left to
 * the family. */
void describe_gguf(struct model_desc *desc, struct config *c);

/* Whether config.json's model_type is this one. */
bool describe_has_type(const json_t *config, const char *model_type);

#endif
