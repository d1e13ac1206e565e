/* What keys and values depend on beside the tokens, so that they may be kept for another day. */
#ifndef TUTTI_MODEL_LOAD_FINGERPRINT_H
#define TUTTI_MODEL_LOAD_FINGERPRINT_H

#include "model/model.h"

/* Of every weight as it lies in memory: read through once, at the speed of memory. Adapters are not part of it. */
uint64_t model_weights_fingerprint(const struct model *model);

/* Of what the forward pass does with them. What is of text alone (stop tokens, chat format) is not part of it. */
uint64_t model_shape_fingerprint(const struct model *model);

/* Of an adapter's updates; its name is not part of it. */
uint64_t model_adapter_fingerprint(const struct model *model, int adapter);

#endif
