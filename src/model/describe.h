/* Configuration keys that most families share; each family's describe() adds what is its own. */
#ifndef TUTTI_MODEL_DESCRIBE_H
#define TUTTI_MODEL_DESCRIBE_H

#include "model/family.h"

/* The keys of transformers' decoder classes since LLaMA: RMSNorm, grouped attention, rotary positions over
 * whole half-split heads, SwiGLU. Biases and windows are left to the family. */
void describe_transformers(struct model_desc *desc, struct config *c);

/* The keys that GGUF's architectures share under their prefix; desc->norm is set before. The rotation's kind is left to
 * the family. */
void describe_gguf(struct model_desc *desc, struct config *c);

/* Whether config.json's model_type is this one. */
bool describe_has_type(const json_t *config, const char *model_type);

#endif
