/* Memory that is given back all at once: the tree of a template, the values of one rendering. */
#ifndef TUTTI_TEMPLATE_ARENA_H
#define TUTTI_TEMPLATE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct arena_block;

struct arena {
    struct arena_block *last;
    size_t n_used, limit; /* bytes of all blocks; limit: TUTTI_E_LIMIT's, not the system's */
    bool is_over_limit;   /* why arena_take() gave NULL: the limit, else the system */
};

/* Zeroed memory for anything; NULL: no more. n_bytes may be 0. */
void *arena_take(struct arena *arena, size_t n_bytes);
/* Memory without zeros. */
void *arena_take_raw(struct arena *arena, size_t n_bytes);
/* Lengthens what was taken last, in place; false: take new memory. */
bool arena_extend(struct arena *arena, void *at, size_t old_bytes, size_t new_bytes);
void arena_clear(struct arena *arena); /* a zeroed one is allowed */

#endif
