/* Chooses the device of a model, or how a card and the CPU divide its layers, and opens the backend. */
#ifndef TUTTI_MODEL_LOAD_DEVICE_START_H
#define TUTTI_MODEL_LOAD_DEVICE_START_H

#include "model/load/device/parts.h"
#include "model/load/fit.h"

/* Sums up the sizes of the weights in parts, and calls device_check_fits(). */
typedef enum tutti_status model_fits_fn(void *user, struct weight_parts *parts, struct tutti_error *err);

/* Opens model->backend for model->desc and model->rope_freqs, sets model->kv_type, and calls fits. With device auto the backend
 * is the card, or the CPU if the weights do not fit on the card; with gpu_layers auto it is the card with as many layers as
 * fit. TUTTI_E_MEMORY: the weights do not fit. TUTTI_E_ARGUMENT, TUTTI_E_UNSUPPORTED with param gpu_layers or cpu_experts. */
MUST_CHECK enum tutti_status model_start_backend(struct model *model,
                                                 const struct tutti_model_options *options,
                                                 model_fits_fn *fits, void *user, struct tutti_error *err);

/* The weights of a model, for messages. */
struct weights_to_fit {
    const char *name, *type;
    const struct fit_sizes *sizes;    /* as the model's backend packs them */
    const struct weight_parts *parts; /* the same by parts */
    uint64_t host_bytes;              /* that were free before */
};

/* Whether the weights fit in the memory of model->backend. TUTTI_E_MEMORY: they do not; the error says what would. */
MUST_CHECK enum tutti_status device_check_fits(const struct model *model,
                                               const struct tutti_model_options *options,
                                               const struct weights_to_fit *weights, struct tutti_error *err);

#endif
