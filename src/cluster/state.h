/* The parts of a cluster: what its files share. */
#ifndef TUTTI_CLUSTER_STATE_H
#define TUTTI_CLUSTER_STATE_H

#include "cluster/cluster.h"
#include "cluster/segment.h"
#include "cluster/transport.h"

#include <pthread.h>
#include <stdatomic.h>

enum { CLUSTER_PIECES = 8 };

/* A piece of memory on each rank of the group, all of the same size, which all of them see. */
struct piece {
    size_t n_bytes;           /* 0: this one is not in use */
    struct segment *segments; /* [n_ranks] */
};

struct monitor;

struct cluster {
    struct transport *transport;
    struct monitor *monitor; /* NULL: none */
    int rank, n_ranks, group, n_groups;
    size_t direct_bytes;  /* at most DIRECT_BYTES */
    float *sums;          /* [n_ranks][CHUNK]: what the others sent */
    struct piece meeting; /* where ranks of one machine meet; n_bytes 0: they cannot */
    uint64_t n_meetings;
    struct piece pieces[CLUSTER_PIECES];
    struct message sends[TRANSPORT_MESSAGES], receives[TRANSPORT_MESSAGES];
    atomic_bool is_broken; /* the transport failed */
    bool is_ended;         /* by all ranks together */
    pthread_mutex_t lock;  /* of what follows */
    void (*on_loss)(void *user);
    void *on_loss_user;
    struct cluster_cost cost;
};

/* Somebody who waits: {0} to begin with. */
struct waiting {
    unsigned n_looks;
    uint64_t begin_ns; /* 0: not yet */
    long nap_ns;
};

/* Between two looks, the longer it takes the less a core is used. is_idle: for work that may not come. False: a rank was lost. */
bool cluster_wait(struct cluster *c, struct waiting *w, bool is_idle);

/* Of sends and receives the first ones; returns when they are done. False: a rank was lost, or the transport failed. */
bool cluster_exchange(struct cluster *c, int n_sends, int n_receives, bool is_idle);
struct message cluster_message(const struct cluster *c, int rank, const void *bytes, size_t n_bytes);

/* Everybody's n_bytes to all of the group: [n_ranks][n_bytes], where the own ones stand already. */
bool cluster_share(struct cluster *c, void *all, size_t n_bytes);

/* What sums need (sums.c). All ranks together, when all else of the cluster is there. direct_bytes: of struct cluster_options. */
MUST_CHECK enum tutti_status cluster_open_sums(struct cluster *c, size_t direct_bytes,
                                               struct tutti_error *err);
void cluster_close_sums(struct cluster *c);

#endif
