/* Memory of living grammars: counted in one pool, and divided between clients.
 *
 * A client may hold as much as is left of the pool, so however many clients fill the pool, each further client finds room. A client that holds
 * more gets small grammars only, up to CLIENT_MEMORY_FACTOR times what is left, or CLIENT_MEMORY_LEAST whatever is left.
 * After Choudhury and Hahne, "Dynamic Queue Length Thresholds", 1998. */
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

/* Grammars of one client. Any thread changes and reads the counts. */
struct client_memory {
    struct memory_pool *pool;
    atomic_size_t n_bytes;
    atomic_uint n_grammars; /* that count here; while there is one, the struct must live */
};

/* What a client may still compile and keep: any grammar, only small ones, none. */
enum memory_room { ROOM_FOR_ANY, ROOM_FOR_SMALL, ROOM_FOR_NONE };
enum memory_room client_memory_room(const struct client_memory *m);

/* A grammar has grown by n_bytes; modulo 2^n: 0 - n_bytes where it shrank. */
void client_memory_grow(struct client_memory *m, size_t n_bytes);

#endif
