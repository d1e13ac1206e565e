/* Rates from what tutti bench --json printed. */
#ifndef TUTTI_FLEET_PLAN_RATES_H
#define TUTTI_FLEET_PLAN_RATES_H

#include "fleet/plan.h"

/* type, kv_type: what the model to plan runs as; the file must be of the same, but of any model. Attention counts where the file has it
 * for kv_type. TUTTI_E_FORMAT names file and field. */
MUST_CHECK enum tutti_status plan_rates_read(struct plan_rates *out, const char *path, enum dtype type,
                                             enum dtype kv_type, struct tutti_error *err);

#endif
