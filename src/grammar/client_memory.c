#include "grammar/client_memory.h"

enum memory_room client_memory_room(const struct client_memory *m)
{
    size_t in_use = atomic_load(&m->pool->n_bytes), own = atomic_load(&m->n_bytes);
    size_t left = in_use < m->pool->limit ? m->pool->limit - in_use : 0;
    if (own <= left)
        return ROOM_FOR_ANY;
    return own <= CLIENT_MEMORY_FACTOR * left || own <= CLIENT_MEMORY_LEAST ? ROOM_FOR_SMALL : ROOM_FOR_NONE;
}

void client_memory_grow(struct client_memory *m, size_t n_bytes)
{
    atomic_fetch_add(&m->n_bytes, n_bytes);
    atomic_fetch_add(&m->pool->n_bytes, n_bytes);
}
