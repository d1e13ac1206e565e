/* Reads rates from the output of tutti bench --json. */
#ifndef TUTTI_FLEET_PLAN_RATES_H
#define TUTTI_FLEET_PLAN_RATES_H

#include "fleet/plan.h"

/* type, kv_type: of the model to plan. The file must have the same weight type, but may be of any
 * model. Attention rates are used if the file has them for kv_type. TUTTI_E_FORMAT: the error
 * names file and field. */
MUST_CHECK enum tutti_status plan_rates_read(struct plan_rates *out, const char *path, enum dtype type,
                                             enum dtype kv_type, struct tutti_error *err);

#endif
