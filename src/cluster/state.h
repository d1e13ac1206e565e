/* The internal state of a cluster, shared by its files. */
#ifndef TUTTI_CLUSTER_STATE_H
#define TUTTI_CLUSTER_STATE_H

#include "cluster/cluster.h"
#include "cluster/segment.h"
#include "cluster/transport.h"

#include <pthread.h>
#include <stdatomic.h>

enum { CLUSTER_PIECES = 8 };

/* Memory of the same size on each rank of the group, which all of them can read. */
struct message_part {
    size_t n_bytes;           /* 0: unused */
    struct segment *segments; /* [n_ranks] */
};

struct monitor;

struct cluster {
    struct transport *transport;
    struct monitor *monitor; /* NULL: none */
    int rank, n_ranks, group, n_groups;
    size_t direct_bytes;         /* at most DIRECT_BYTES */
    float *sums;                 /* [n_ranks][CHUNK]: received from the others */
    struct message_part meeting; /* for barriers and small sums of ranks on one machine; n_bytes 0: unused */
    uint64_t n_meetings;
    struct message_part pieces[CLUSTER_PIECES];
    struct message sends[TRANSPORT_MESSAGES], receives[TRANSPORT_MESSAGES];
    atomic_bool is_broken; /* the transport failed */
    bool is_ended;         /* by all ranks together */
    pthread_mutex_t lock;  /* protects the callback on_loss */
    void (*on_loss)(void *user);
    void *on_loss_user;
    struct cluster_cost cost;
};

/* State of a waiting loop: {0} to begin with. */
struct waiting {
    unsigned n_looks;
    uint64_t begin_ns; /* 0: not yet */
    long nap_ns;
};

/* Call between two polls: sleeps longer the longer it takes. is_idle: for work that may not come
 * soon. False: a rank was lost. */
bool cluster_wait(struct cluster *c, struct waiting *w, bool is_idle);

/* Starts the first n_sends of sends and n_receives of receives; returns when they are done. False:
 * a rank was lost, or the transport failed. */
bool cluster_exchange(struct cluster *c, int n_sends, int n_receives, bool is_idle);
struct message cluster_message(const struct cluster *c, int rank, const void *bytes, size_t n_bytes);

/* All-gather of n_bytes: all [n_ranks][n_bytes], where the caller has filled its own part. */
bool cluster_all_gather(struct cluster *c, void *all, size_t n_bytes);

/* Allocates what collectives need (sums.c). All ranks together, after all else of the cluster.
 * direct_bytes: of struct cluster_options. */
MUST_CHECK enum tutti_status cluster_open_sums(struct cluster *c, size_t direct_bytes,
                                               struct tutti_error *err);
void cluster_close_sums(struct cluster *c);

#endif
