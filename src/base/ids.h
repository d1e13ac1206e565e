/* A growable list of token ids. Not for the compute path: growing allocates. */
#ifndef TUTTI_BASE_IDS_H
#define TUTTI_BASE_IDS_H

#include "base/error.h"

/* Zero-initialised is empty and valid. */
struct ids {
    int32_t *ids;
    size_t n, capacity;
    size_t max;      /* of n; 0: no limit */
    bool is_full;    /* an append beyond max was refused */
    const char *why; /* the limit that a text exceeded while it was tokenized; static. NULL: none */
};

/* Append. False: out of memory, or more than max (then is_full is set); the content is unchanged. */
MUST_CHECK bool ids_add(struct ids *list, int32_t id);
MUST_CHECK bool ids_add_all(struct ids *list, const int32_t *ids, size_t n);
/* Whether n_least further ids fit below max. False: is_full is set. Checking first saves the work
 * of tokenizing a text that is too long. */
MUST_CHECK bool ids_has_room(struct ids *list, size_t n_least);
void ids_clear(struct ids *list); /* frees the storage; the list may be used again */

#endif
