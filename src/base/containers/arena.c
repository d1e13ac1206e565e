#include "base/containers/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 16, BLOCK_BYTES = 16 * 1024, MAX_BLOCK_BYTES = 1024 * 1024 };

struct arena_block {
    struct arena_block *before;
    size_t n_bytes, n_used; /* of data */
    size_t spare;           /* keeps data aligned */
    char data[];
};

static size_t round_up(size_t n)
{
    return (n + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

static struct arena_block *add_block(struct arena *arena, size_t need)
{
    size_t n = arena->last ? arena->last->n_bytes * 2 : BLOCK_BYTES;
    if (n > MAX_BLOCK_BYTES)
        n = MAX_BLOCK_BYTES;
    if (n < need)
        n = need;
    if (n > arena->limit - arena->n_used)
        n = need; /* near the limit, allocate exactly */
    if (n > arena->limit - arena->n_used) {
        arena->is_over_limit = true;
        return NULL;
    }
    struct arena_block *block = malloc(sizeof *block + n);
    if (!block)
        return NULL;
    *block = (struct arena_block){ .before = arena->last, .n_bytes = n };
    arena->n_used += n;
    arena->last = block;
    return block;
}

void *arena_take_raw(struct arena *arena, size_t n_bytes)
{
    if (n_bytes > SIZE_MAX / 4) {
        arena->is_over_limit = true;
        return NULL;
    }
    size_t n = round_up(n_bytes ? n_bytes : 1);
    struct arena_block *block = arena->last;
    if (!block || n > block->n_bytes - block->n_used)
        block = add_block(arena, n);
    if (!block)
        return NULL;
    void *at = block->data + block->n_used;
    block->n_used += n;
    return at;
}

void *arena_take(struct arena *arena, size_t n_bytes)
{
    void *at = arena_take_raw(arena, n_bytes);
    if (at)
        memset(at, 0, n_bytes);
    return at;
}

/* Extends the last allocation in place; false: not possible. */
static bool extend(struct arena *arena, void *at, size_t old_bytes, size_t new_bytes)
{
    struct arena_block *block = arena->last;
    size_t old = round_up(old_bytes), more = round_up(new_bytes) - old;
    if (!block || block->n_used < old || (char *)at != block->data + block->n_used - old ||
        more > block->n_bytes - block->n_used)
        return false;
    block->n_used += more;
    memset((char *)at + old_bytes, 0, new_bytes - old_bytes);
    return true;
}

bool arena_grow(struct arena *arena, void *array, size_t n, size_t *capacity, size_t item_bytes)
{
    void *items, *grown;
    size_t more = *capacity ? 2 * *capacity : 4;
    if (n < *capacity)
        return true;
    memcpy(&items, array, sizeof items); /* the pointer may have any type */
    if (more > SIZE_MAX / 4 / item_bytes) {
        arena->is_over_limit = true;
        return false;
    }
    if (!items || !extend(arena, items, *capacity * item_bytes, more * item_bytes)) {
        grown = arena_take(arena, more * item_bytes);
        if (!grown)
            return false;
        if (items)
            memcpy(grown, items, n * item_bytes);
        memcpy(array, &grown, sizeof grown);
    }
    *capacity = more;
    return true;
}

void arena_clear(struct arena *arena)
{
    for (struct arena_block *block = arena->last, *before; block; block = before) {
        before = block->before;
        free(block);
    }
    *arena = (struct arena){ .limit = arena->limit };
}
