/* Ranks: processes that run one model together, each with its own slice of the weights, and their
 * collectives.
 *
 * Every rank calls the same functions in the same order. Sums are added element by element in the
 * order of the ranks. So they have the same bits on every rank and in every run, for any transport,
 * and do not depend on how many elements are summed at a time.
 *
 * No call waits for a rank that is dead or stalled: a monitor (monitor.h) with its own connections
 * detects it, and every call from then on fails at once. One thread at a time uses a cluster. Only
 * cluster_alloc() allocates after cluster_open(). */
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

enum { CLUSTER_MAX_RANKS = LIMIT_RANKS }; /* of all groups together */

struct cluster_options {
    int n_ranks; /* ranks of a group, which run one model together */
    /* Groups (replicas); 0: one. The ranks of all groups monitor each other, because a batch that is
     * distributed over the groups cannot be completed without one of them. */
    int n_groups;
    /* All-reduce of up to this size: every rank computes the whole sum; above, each rank its part.
     * 0: the faster of both. */
    size_t direct_bytes;
    bool stays; /* for tests: do not terminate the process if it takes too long to exit after a loss */
};

/* Joins the ranks that mpirun (or srun) started: ranks 0..n_ranks-1 are the first group, the next
 * n_ranks the second. On success *out is the caller's, for cluster_close(). TUTTI_E_UNSUPPORTED:
 * built without MPI. TUTTI_E_ARGUMENT: not started by a launcher, or with another number of ranks;
 * param is "tp", or "dp" if there are several groups. */
MUST_CHECK enum tutti_status cluster_open(struct cluster **out, const struct cluster_options *options,
                                          struct tutti_error *err);

/* The same over a given transport, which the cluster owns even if this fails. has_monitor false:
 * lost ranks are not detected. */
MUST_CHECK enum tutti_status cluster_new(struct cluster **out, struct transport *transport,
                                         const struct cluster_options *options, bool has_monitor,
                                         struct tutti_error *err);
/* Leaves the cluster. Unless all ranks end together (cluster_end(), or a failure reported by
 * cluster_agree()), the others are notified that this rank is gone. NULL is allowed. */
void cluster_close(struct cluster *c);

int cluster_rank(const struct cluster *c); /* in its group */
int cluster_n_ranks(const struct cluster *c);
int cluster_group(const struct cluster *c);
int cluster_n_local(const struct cluster *c);    /* ranks on this machine, of all groups */
int cluster_local_rank(const struct cluster *c); /* the number of this rank among them */

/* Compute threads of each rank on this machine, so that no core has two. */
int cluster_n_threads(const struct cluster *c);

/* ---- collectives ---- */

/* All return false if a rank was lost or the transport failed; cluster_check() says which. */

/* All-reduce: x [n] = the sum of all ranks' x. team: threads that help to add; NULL: none. */
bool cluster_reduce(struct cluster *c, struct team *team, float *x, size_t n);

/* The same as reduce-scatter and all-gather by rows, x [n_rows][n]; in between a rank works only on
 * its own rows, begin to end - 1, which are evenly divided. Korthikanti et al., "Reducing
 * Activation Recomputation in Large Transformer Models", 2022, section 4.2.2.
 * cluster_reduce_rows(): the own rows become the sum. The other rows are then undefined, and must
 * not be written before the next of these calls, because other ranks may read them.
 * cluster_all_gather_rows(): every rank gets the own rows of all. */
bool cluster_reduce_rows(struct cluster *c, struct team *team, float *x, int n_rows, int n);
bool cluster_all_gather_rows(struct cluster *c, struct team *team, float *x, int n_rows, int n);
void cluster_own_rows(const struct cluster *c, int n_rows, int *begin, int *end);
/* True: that is faster than an all-reduce and the same work on all rows. */
bool cluster_prefers_scatter(const struct cluster *c, int n_rows, int n);

/* Memory for buffers of collectives, zeroed and aligned to 64 bytes. If all ranks of the group are
 * on one machine they read each other's in place, and nothing is sent. All ranks call it together,
 * with the same n_floats, and cluster_dealloc() in the same order. NULL: this rank is out of
 * memory; the other ranks do not learn of it. */
float *cluster_alloc(struct cluster *c, size_t n_floats);
void cluster_dealloc(struct cluster *c, float *memory); /* NULL is allowed */

/* Gather on rank 0: whole [n_rows][begins[n_ranks]] = all ranks' parts as columns; part of rank r:
 * [n_rows][begins[r + 1] - begins[r]]. On other ranks whole is NULL. */
bool cluster_gather_rows(struct cluster *c, float *whole, const float *part, int n_rows, const int *begins);

/* Broadcast: copies n_bytes from rank 0 to the others. is_idle: rank 0 may take long, so
 * the others wait without occupying a core. */
bool cluster_broadcast(struct cluster *c, void *bytes, size_t n_bytes, bool is_idle);
/* The same with is_idle on a rank other than 0, which has other work to watch: calls goes_on(user) until the bytes
 * are there. False also if that returned false; then the cluster can only be closed. */
bool cluster_await(struct cluster *c, void *bytes, size_t n_bytes, bool (*goes_on)(void *user), void *user);

/* Gathers n_bytes from rank 0 of every group on the first group. Each calls it when its group has
 * nothing under way; they need not arrive at the same time. The first group calls take() for each
 * other group, in the order of the groups; the bytes are valid during the call. TUTTI_E_IO: a rank
 * was lost. TUTTI_E_MEMORY: no memory for a group's bytes. */
MUST_CHECK enum tutti_status cluster_collect(struct cluster *c, const void *bytes, size_t n_bytes,
                                             void (*take)(void *user, int group, const void *bytes,
                                                          size_t n_bytes),
                                             void *user, struct tutti_error *err);

/* cluster_min(): *value = the smallest of all ranks' values. cluster_values(): all of them,
 * [n_ranks]. */
bool cluster_min(struct cluster *c, uint64_t *value);
bool cluster_values(struct cluster *c, uint64_t value, uint64_t *all);

/* Agrees on one status: TUTTI_OK if all ranks have it, else that of the first rank that has not;
 * *err then has that rank's text, which other ranks prefix with the rank. So if loading fails on
 * one rank, all ranks fail. */
MUST_CHECK enum tutti_status cluster_agree(struct cluster *c, enum tutti_status st, struct tutti_error *err);

/* Waits until all ranks call it: they may close then. */
bool cluster_end(struct cluster *c);

/* TUTTI_E_IO: a rank was lost; the text names it. Any thread. */
enum tutti_status cluster_check(const struct cluster *c, struct tutti_error *err);

bool cluster_is_lost(const struct cluster *c);

/* fn(user) is called once when a rank is lost, on the monitor's thread, or at once if one is lost
 * already. fn NULL: removes the callback; no call is under way when this returns. */
void cluster_on_loss(struct cluster *c, void (*fn)(void *user), void *user);

/* ---- cost of this rank since the start ---- */
struct cluster_cost {
    uint64_t n_reduces, n_reduced_bytes, /* bytes of the summed vectors */
        reduce_ns;                       /* times include waiting for other ranks */
    uint64_t n_sent_bytes;               /* of all operations */
    uint64_t gather_ns, broadcast_ns;
};
void cluster_read_cost(const struct cluster *c, struct cluster_cost *out);

#endif
