/* A model as a plan needs it, of its headers alone. */
#ifndef TUTTI_FLEET_PLAN_MODEL_H
#define TUTTI_FLEET_PLAN_MODEL_H

#include "fleet/plan.h"
#include "model/weights/weight_type.h"

/* path: a checkpoint, or the name of a known shape (model_make()), whose weights are of type, or Q4_0 without. type: what the weights run
 * as; NULL: as stored. *runs_as: the type of most of them. TUTTI_E_NOT_FOUND: neither. */
MUST_CHECK enum tutti_status plan_model_read(struct plan_model *out, enum dtype *runs_as, const char *path,
                                             const struct weight_type *type, enum dtype kv_type,
                                             struct tutti_error *err);

#endif
