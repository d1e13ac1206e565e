/* The scratch memory of model_forward(), and the choice of its backend. */
#ifndef TUTTI_MODEL_FORWARD_H
#define TUTTI_MODEL_FORWARD_H

#include "model/model.h"

struct workspace;
void workspace_free(struct workspace *workspace, struct backend *be); /* NULL is allowed */

/* Fills model->rope_freqs. False: out of memory. */
bool model_alloc_rope_freqs(struct model *model);

/* Creates model->backend for model->desc and model->rope_freqs, and sets model->kv_type. */
MUST_CHECK enum tutti_status
model_start_backend(struct model *model, const struct tutti_model_options *options, struct tutti_error *err);

/* Whether the user leaves the choice between card and CPU to tutti. */
bool model_prefers_card(const struct tutti_model_options *options);

/* Memory in which the weights must fit: the host's, of which host_bytes were free, or the device's. */
uint64_t model_weights_room(const struct model *model, const struct tutti_model_options *options,
                            uint64_t host_bytes);

/* True: the model does not fit on the card that device auto chose (st and why say so), and its backend was closed, so that
 * model_start_backend() opens the CPU. */
bool model_leaves_card(struct model *model, const struct tutti_model_options *options, enum tutti_status st,
                       const struct tutti_error *why);

#endif
