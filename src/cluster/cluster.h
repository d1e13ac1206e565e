/* Ranks: processes that run one model together, each with its own slice of it.
 *
 * Every rank calls the same functions in the same order. Sums are added in the order of the ranks, element by element: so they are
 * the same bits on every rank and in every run, whatever the transport does, and do not depend on how many elements are
 * summed at a time.
 *
 * No call waits for a rank that is dead or stalled: a monitor (monitor.h) notices that, beside the messages, and every call
 * from then on fails at once. One thread at a time uses a cluster. Nothing but cluster_alloc() allocates after cluster_open(). */
#ifndef TUTTI_CLUSTER_H
#define TUTTI_CLUSTER_H

#include "base/error.h"
#include "base/limits.h"

struct cluster;
struct team;
struct transport;

/* tutti_ranks is struct cluster. */
static inline struct cluster *cluster_of(const tutti_ranks *handle)
{
    return (struct cluster *)(uintptr_t)handle;
}
static inline tutti_ranks *cluster_handle(struct cluster *cluster)
{
    return (tutti_ranks *)cluster;
}

enum { CLUSTER_MAX_RANKS = LIMIT_RANKS }; /* of all groups */

struct cluster_options {
    int n_ranks; /* of a group: those that run one model together */
    int n_groups; /* replicas; 0: one. All ranks watch each other: work that is shared out is lost with any of them */
    /* Up to so many every rank makes the whole of a sum, else its part; 0: what takes the least time. */
    size_t direct_bytes;
    bool stays; /* for tests: do not end the process when it takes too long to end by itself */
};

/* Joins the ranks that mpirun (or srun) started: ranks 0..n_ranks-1 are the first group, the next the second. On success *out is the
 * caller's, for cluster_close(). TUTTI_E_UNSUPPORTED: built without MPI. TUTTI_E_ARGUMENT: not started by a launcher,
 * or with another number of ranks; param is "tp", or "dp" where there are several groups. */
MUST_CHECK enum tutti_status cluster_open(struct cluster **out, const struct cluster_options *options,
                                          struct tutti_error *err);

/* The same over a given transport, which becomes the cluster's, also where this fails. has_monitor: no rank is watched without. */
MUST_CHECK enum tutti_status cluster_new(struct cluster **out, struct transport *transport,
                                         const struct cluster_options *options, bool has_monitor,
                                         struct tutti_error *err);
/* Where the ranks have not come to an end together (cluster_end(), or a failure that cluster_agree() told all of them), the others are
 * told that this one gives up. NULL is allowed. */
void cluster_close(struct cluster *c);

int cluster_rank(const struct cluster *c); /* in its group */
int cluster_n_ranks(const struct cluster *c);
int cluster_group(const struct cluster *c);
int cluster_n_groups(const struct cluster *c);
int cluster_n_local(const struct cluster *c); /* ranks on this machine, of all groups */

/* Threads for each rank of this machine, so that no core has two. */
int cluster_n_threads(const struct cluster *c);

/* ---- together: each false means that a rank was lost, or the transport failed; cluster_check() says which ---- */

/* x [n] = the sum of all ranks' x. team: helps to add; NULL: nobody does. */
bool cluster_reduce(struct cluster *c, struct team *team, float *x, size_t n);

/* The same in two halves, x [n_rows][n], between which a rank works on its own rows alone: as many for each as can be, begin to
 * end - 1. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022, section 4.2.2.
 * cluster_reduce_rows(): the own rows become the sum. What the other rows hold is of no meaning then, and they must not be written before
 * the next of these calls, for the other ranks may read them. cluster_share_rows(): every rank gets the own rows of all. */
bool cluster_reduce_rows(struct cluster *c, struct team *team, float *x, int n_rows, int n);
bool cluster_share_rows(struct cluster *c, struct team *team, float *x, int n_rows, int n);
void cluster_own_rows(const struct cluster *c, int n_rows, int *begin, int *end);
/* Whether that takes less time than to have all of the sum on every rank at once. */
bool cluster_shares_rows(const struct cluster *c, int n_rows, int n);

/* Memory for what is summed, zeroed and aligned to 64 bytes: where all ranks of the group are on one machine they read each other's in
 * place, and nothing is sent. All ranks call it together, with the same n_floats, and cluster_dealloc() in the same order; NULL: this
 * rank has no memory, which the others do not know. */
float *cluster_alloc(struct cluster *c, size_t n_floats);
void cluster_dealloc(struct cluster *c, float *memory); /* NULL is allowed */

/* On rank 0 whole [n_rows][begins[n_ranks]] = all ranks' parts side by side; part of rank r: [n_rows][begins[r + 1] - begins[r]].
 * Elsewhere whole is NULL. */
bool cluster_gather_rows(struct cluster *c, float *whole, const float *part, int n_rows, const int *begins);

/* What rank 0 has at bytes is copied to the others, which have room for n_bytes. is_idle: rank 0 may take its time, so that
 * the others wait without using a core. */
bool cluster_broadcast(struct cluster *c, void *bytes, size_t n_bytes, bool is_idle);

/* Called by rank 0 of every group, when its group has nothing under way: all bring n_bytes, in their own time, and the first group gets
 * them: take() for each of the others, in the order of the groups; the bytes are valid during the call. TUTTI_E_IO: a rank was
 * lost. TUTTI_E_MEMORY: there is no room for what a group brings. */
MUST_CHECK enum tutti_status cluster_collect(struct cluster *c, const void *bytes, size_t n_bytes,
                                             void (*take)(void *user, int group, const void *bytes,
                                                          size_t n_bytes),
                                             void *user, struct tutti_error *err);

/* The smallest of all ranks' values; all of them, [n_ranks]. */
bool cluster_min(struct cluster *c, uint64_t *value);
bool cluster_values(struct cluster *c, uint64_t value, uint64_t *all);

/* Returns the same status on every rank: st where all have TUTTI_OK, else that of the first one that has not; *err then has its
 * text, with the rank before it on other ranks. */
MUST_CHECK enum tutti_status cluster_agree(struct cluster *c, enum tutti_status st, struct tutti_error *err);

/* Waits for all ranks to call it: they may close now. */
bool cluster_end(struct cluster *c);

/* TUTTI_E_IO: a rank was lost, which the text names. Any thread. */
enum tutti_status cluster_check(const struct cluster *c, struct tutti_error *err);

bool cluster_is_lost(const struct cluster *c);

/* fn(user) is called once when a rank is lost, on the monitor's thread; at once if one is. fn NULL: nobody is called any more,
 * and no call is under way when this returns. */
void cluster_on_loss(struct cluster *c, void (*fn)(void *user), void *user);

/* ---- what it costs, of this rank, since the start ---- */
struct cluster_cost {
    uint64_t n_reduces, n_reduced_bytes,
        reduce_ns;         /* bytes: of the sums. Times include waiting for the others */
    uint64_t n_sent_bytes; /* of all */
    uint64_t gather_ns, broadcast_ns;
};
void cluster_read_cost(const struct cluster *c, struct cluster_cost *out);

#endif
