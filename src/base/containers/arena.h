/* An arena allocator: memory that is freed all at once. */
#ifndef TUTTI_BASE_ARENA_H
#define TUTTI_BASE_ARENA_H

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
/* Makes room for one more item, as array_grow() (base/containers/array.h); the new memory is zeroed. The array
 * grows in place if it is the last allocation. False: as NULL of arena_take(). */
bool arena_grow(struct arena *arena, void *array, size_t n, size_t *capacity, size_t item_bytes);
void arena_clear(struct arena *arena); /* a zeroed one is allowed */

#endif
