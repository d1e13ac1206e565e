/* The state that the steps of loading a model share. */
#ifndef TUTTI_MODEL_LOAD_LOAD_H
#define TUTTI_MODEL_LOAD_LOAD_H

#include "model/load/device/start.h"

struct loader {
    struct model *model;
    struct checkpoint *ck;
    const struct family *family;
    const struct tensor_names *names;
    const struct tutti_model_options *options;
    const struct weight_type *type; /* requested; NULL: as stored */
    bool said_fallback;
    bool is_cut;          /* the checkpoint holds only this rank's part: tensors have model->local's shapes */
    uint64_t done, total; /* bytes, for progress */
    /* Free memory before any rank of this machine loads its weights. */
    uint64_t memory_bytes;
};

/* Sets model->weight_type, and fills parts. TUTTI_E_MEMORY: the weights do not fit in the free memory; the error says
 * what would. model->backend must be set. */
MUST_CHECK enum tutti_status load_check_memory(struct loader *l, struct weight_parts *parts,
                                               struct tutti_error *err);

/* Packs and uploads every weight of model->desc. model->backend must be set. */
MUST_CHECK enum tutti_status load_weights(struct loader *l, struct tutti_error *err);

/* Splits the weights over the ranks of model->group, as their block sizes allow: sets
 * model->local. */
MUST_CHECK enum tutti_status load_cut(struct loader *l, struct tutti_error *err);

enum tutti_status load_out_of_memory(const struct loader *l, struct tutti_error *err);

#endif
