/* The process that starts the processes of models.
 *
 * It is forked before the server has threads, and has none itself. So a child runs with the memory that it
 * inherits, the parsed options among them, and needs no command line of its own. It has a process group
 * of its own: Ctrl-C reaches only the server, which ends the children in order. If the server ends
 * without ending them, their requests get the drain timeout and then they end. */
#ifndef TUTTI_SERVER_MODELS_SPAWNER_H
#define TUTTI_SERVER_MODELS_SPAWNER_H

#include "base/error.h"
#include "server/server.h"

enum { SPAWNER_PATH_BYTES = 108 }; /* of a Unix socket */

struct spawner;

/* What a child is to serve. generation: of the model's children; each has another. */
struct spawner_order {
    int model; /* index */
    uint32_t generation;
    int signal; /* 0: start the child; else send it this signal */
    char socket[SPAWNER_PATH_BYTES];
};

struct spawner_event {
    enum spawner_news {
        CHILD_READY,  /* it serves */
        CHILD_FAILED, /* it could not load its model, and ends: text */
        CHILD_ENDED,  /* status: as from waitpid() */
    } news;
    int model;
    uint32_t generation;
    int status;
    uint64_t memory_bytes;       /* CHILD_READY: weights and KV cache */
    struct server_traits traits; /* CHILD_READY */
    char text[600];
};

/* A child's end. ready: tells the server that it serves; any thread. */
struct spawner_child {
    int fd;
    struct spawner_order order;
};
void spawner_child_ready(const struct spawner_child *child, uint64_t memory_bytes,
                         const struct server_traits *traits);

/* What a child does; it ends when this returns. */
typedef enum tutti_status spawner_run(void *user, const struct spawner_child *child, struct tutti_error *err);

/* Forks the spawner. Call it before threads are started and before standard input or output are used.
 * *out is the caller's, for spawner_close(). TUTTI_E_IO: the system refuses. */
MUST_CHECK enum tutti_status spawner_open(struct spawner **out, spawner_run *run, void *user,
                                          struct tutti_error *err);
/* Its children get SIGTERM, and end on their own. NULL is allowed. */
void spawner_close(struct spawner *spawner);

/* Readable if there is an event, or the spawner has ended. */
int spawner_fd(const struct spawner *spawner);
/* False: the spawner has ended. */
MUST_CHECK bool spawner_send(const struct spawner *spawner, const struct spawner_order *order);
/* 1: an event; 0: none now; -1: the spawner has ended. */
MUST_CHECK int spawner_read(const struct spawner *spawner, struct spawner_event *event);

#endif
