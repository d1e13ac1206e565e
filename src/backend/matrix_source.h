/* What all backends expect of the sources of matrices (struct matrix_source). */
#ifndef TUTTI_BACKEND_MATRIX_SOURCE_H
#define TUTTI_BACKEND_MATRIX_SOURCE_H

#include "backend/backend.h"

static inline int matrix_source_experts(const struct matrix_source *source)
{
    return source->n_experts > 0 ? source->n_experts : 1;
}

/* Checks the parts, the types and the numbers of rows; which types of weights a device has is its own. *n_out: the rows of each expert's matrix. padding: rows that the
 * backend may add to them; the rows of all experts are numbered by int. TUTTI_E_UNSUPPORTED: it cannot be packed. */
MUST_CHECK enum tutti_status matrix_source_check(const struct matrix_source *source, int padding,
                                                 int64_t *n_out, struct tutti_error *err);

/* Whether the orders of the experts differ; the source has orders. */
bool matrix_source_orders_differ(const struct matrix_source *source);

#endif
