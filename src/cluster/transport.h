/* The transport between the ranks of a cluster: a message-passing library behind four functions.
 *
 * mpi_transport.c implements it over Open MPI, in a module that is loaded only for several ranks.
 * Tests implement it in the memory of one process.
 *
 * One thread at a time calls these functions. None waits for a peer: the caller polls, and checks
 * in between whether the peer is alive. */
#ifndef TUTTI_CLUSTER_TRANSPORT_H
#define TUTTI_CLUSTER_TRANSPORT_H

#include <stdbool.h>
#include <stddef.h>

enum { TRANSPORT_MESSAGES = 128 }; /* in each direction, of one exchange */

struct message {
    int peer;
    void *bytes;    /* of a send: not written */
    size_t n_bytes; /* below 2^31. Of a receive: room; the message may be shorter */
};

struct transport;

struct transport_ops {
    const char *name;
    /* Starts to send and to receive; the bytes must not move until test() reports completion.
     * Messages from one rank to another arrive in the order in which they were started. False: the
     * library failed. */
    bool (*begin)(struct transport *t, const struct message *sends, int n_sends,
                  const struct message *receives, int n_receives);
    /* 1: everything started is complete; 0: not yet; -1: the library failed. */
    int (*test)(struct transport *t);
    /* is_orderly: every rank closes now; else peers may be dead, so it waits for none. */
    void (*close)(struct transport *t, bool is_orderly);
};

struct transport {
    const struct transport_ops *ops;
    int rank, n_ranks;
    int n_local;   /* ranks on this machine, this one included */
    int local;     /* the number of this rank among them */
    int n_sharing; /* of those, how many may run on cores of this rank, itself included */
};

/* The only symbol of a module. Joins the ranks that a launcher has started; false: why has the
 * reason. */
#define TRANSPORT_OPEN_SYMBOL "tutti_transport_open"
typedef bool transport_open_fn(struct transport **out, char *why, size_t why_bytes);

#endif
