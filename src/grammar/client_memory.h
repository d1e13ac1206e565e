/* Accounts the memory of existing grammars in one pool, and divides the pool between clients.
 *
 * A client may use as much as is free in the pool. So however many clients fill the pool, there
 * is room for another one. A client that uses more may add only small grammars, up to
 * CLIENT_MEMORY_FACTOR times the free memory, or up to CLIENT_MEMORY_LEAST in any case. After
 * Choudhury and Hahne, "Dynamic Queue Length Thresholds", 1998. */
#ifndef TUTTI_GRAMMAR_CLIENT_MEMORY_H
#define TUTTI_GRAMMAR_CLIENT_MEMORY_H

#include <stdatomic.h>
#include <stddef.h>

enum {
    CLIENT_MEMORY_FACTOR = 3,
    CLIENT_MEMORY_LEAST = 4 << 20, /* bytes; also the largest small grammar */
};

/* Grammars of all clients. */
struct memory_pool {
    atomic_size_t n_bytes;
    size_t limit;
};

/* Grammars of one client. The counts may be changed and read by any thread. */
struct client_memory {
    struct memory_pool *pool;
    atomic_size_t n_bytes;
    atomic_uint n_grammars; /* counted here; the struct must outlive them */
};

/* Which grammars a client may still compile and keep: any, only small ones, or none. */
enum memory_room { ROOM_FOR_ANY, ROOM_FOR_SMALL, ROOM_FOR_NONE };
enum memory_room client_memory_room(const struct client_memory *m);

/* Records that a grammar grew by n_bytes; if it shrank: 0 - n_bytes (modulo arithmetic). */
void client_memory_grow(struct client_memory *m, size_t n_bytes);

#endif
