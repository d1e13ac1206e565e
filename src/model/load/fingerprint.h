/* Fingerprints of everything besides the tokens that keys and values depend on: saved KV pages
 * may be reused only if all are equal. */
#ifndef TUTTI_MODEL_LOAD_FINGERPRINT_H
#define TUTTI_MODEL_LOAD_FINGERPRINT_H

#include "model/model.h"

/* Of every weight as it is in memory. Reads all weights once, at memory bandwidth. Adapters are
 * not included. */
uint64_t model_weights_fingerprint(const struct model *model);

/* Of the settings of the forward pass. Settings that only affect text (stop tokens, chat format)
 * are not included. */
uint64_t model_shape_fingerprint(const struct model *model);

/* Of an adapter's updates; its name is not included. */
uint64_t model_adapter_fingerprint(const struct model *model, int adapter);

#endif
