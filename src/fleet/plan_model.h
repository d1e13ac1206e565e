/* Reads the model sizes that a plan needs, without loading weights. */
#ifndef TUTTI_FLEET_PLAN_MODEL_H
#define TUTTI_FLEET_PLAN_MODEL_H

#include "fleet/plan.h"
#include "model/weights/weight_type.h"

struct plan_model_options {
    const struct weight_type *type; /* to run the weights as; NULL: as stored, for a known shape Q4_0 */
    enum dtype kv_type;
    int context;                     /* of a user; 0: the model's */
    bool mtp;                        /* with the layer for multi-token prediction */
    const struct backend_caps *caps; /* of the device */
};

/* path: a checkpoint, or the name of a known shape (model_make()). *runs_as: the type of most weights. On success *out is
 * for plan_model_clear(). TUTTI_E_NOT_FOUND: neither a checkpoint nor a known shape. */
MUST_CHECK enum tutti_status plan_model_read(struct plan_model *out, enum dtype *runs_as, const char *path,
                                             const struct plan_model_options *options,
                                             struct tutti_error *err);
void plan_model_clear(struct plan_model *model);

#endif
