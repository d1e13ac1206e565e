/* A list of token ids that grows. Not for the compute path: growing allocates. */
#ifndef TUTTI_BASE_IDS_H
#define TUTTI_BASE_IDS_H

#include "base/error.h"

/* Zero-initialised is empty and valid. */
struct ids {
    int32_t *ids;
    size_t n, capacity;
};

/* False: out of memory; the content is unchanged. */
MUST_CHECK bool ids_add(struct ids *list, int32_t id);
MUST_CHECK bool ids_add_all(struct ids *list, const int32_t *ids, size_t n);
void ids_clear(struct ids *list); /* frees the storage; the list may be used again */

#endif
