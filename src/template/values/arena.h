/* An arena allocator: memory that is freed all at once, for the tree of a template and the values
 * of one rendering. */
#ifndef TUTTI_TEMPLATE_VALUES_ARENA_H
#define TUTTI_TEMPLATE_VALUES_ARENA_H

#include <stdbool.h>
#include <stddef.h>

struct arena_block;

struct arena {
    struct arena_block *last;
    size_t n_used, limit; /* bytes of all blocks; limit: beyond it TUTTI_E_LIMIT */
    bool is_over_limit;   /* arena_take() returned NULL because of limit, not the system */
};

/* Zeroed memory, aligned for any type; NULL: see is_over_limit. n_bytes may be 0. */
void *arena_take(struct arena *arena, size_t n_bytes);
/* The same, not zeroed. */
void *arena_take_raw(struct arena *arena, size_t n_bytes);
/* Extends the last allocation in place; false: not possible, allocate new memory. */
bool arena_extend(struct arena *arena, void *at, size_t old_bytes, size_t new_bytes);
void arena_clear(struct arena *arena); /* a zeroed one is allowed */

#endif
