/* The scratch memory of model_forward(), and the choice of its backend. */
#ifndef TUTTI_MODEL_FORWARD_H
#define TUTTI_MODEL_FORWARD_H

#include "model/model.h"

struct workspace;
void workspace_free(struct workspace *workspace, struct backend *be); /* NULL is allowed */

/* Fills model->rope_freqs. False: out of memory. */
bool model_alloc_rope_freqs(struct model *model);

/* Whether the weights fit in the memory of model->backend. TUTTI_E_MEMORY: they do not. */
typedef enum tutti_status model_fits_fn(void *user, struct tutti_error *err);

/* Opens model->backend for model->desc and model->rope_freqs, sets model->kv_type, and calls fits. With device auto the backend
 * is the card, or the CPU if the weights do not fit on the card. */
MUST_CHECK enum tutti_status model_start_backend(struct model *model,
                                                 const struct tutti_model_options *options,
                                                 model_fits_fn *fits, void *user, struct tutti_error *err);

/* Memory in which the weights must fit: the host's, of which host_bytes were free, or the device's. */
uint64_t model_weights_room(const struct model *model, const struct tutti_model_options *options,
                            uint64_t host_bytes);

#endif
