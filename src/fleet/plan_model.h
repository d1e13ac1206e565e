/* Reads the model sizes that a plan needs, without loading weights. */
#ifndef TUTTI_FLEET_PLAN_MODEL_H
#define TUTTI_FLEET_PLAN_MODEL_H

#include "fleet/plan.h"
#include "model/weights/weight_type.h"

/* path: a checkpoint, or the name of a known shape (model_make()). type: the type to run the
 * weights as; NULL: as stored, for a known shape Q4_0. *runs_as: the type of most weights.
 * mtp: with the layer for multi-token prediction, which runs in a single process. caps: of the device.
 * TUTTI_E_NOT_FOUND: neither a checkpoint nor a known shape. */
MUST_CHECK enum tutti_status plan_model_read(struct plan_model *out, enum dtype *runs_as, const char *path,
                                             const struct weight_type *type, enum dtype kv_type, bool mtp,
                                             const struct backend_caps *caps, struct tutti_error *err);

#endif
