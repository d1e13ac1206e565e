/* A fork-join pool of compute threads. The caller is thread 0 of the team.
 *
 * Idle threads spin for a while, since the next work usually comes within microseconds, and then
 * sleep. The team takes no lock while it is busy. If a thread gets no core, because other programs
 * run too, the caller executes that thread's share: work never waits for a thread that has not begun.
 *
 * Divide work so that results do not depend on n_threads: give each thread whole output rows, never
 * parts of one sum. Shares must not wait for one another. A phase that needs all results of an
 * earlier phase is a team_run() of its own. */
#ifndef TUTTI_BASE_SYSTEM_TEAM_H
#define TUTTI_BASE_SYSTEM_TEAM_H

#include "base/error.h"

struct team;
struct node;
struct nodes;

/* thread: 0..n_threads-1 */
typedef void team_fn(void *arg, int thread, int n_threads);

struct team_options {
    int n_threads; /* 1..256, the caller included; 0: one for each core that this process may run on */
    bool pin;      /* bind each thread to a core of its own */
    /* On a machine with several NUMA nodes: bind each thread to the cores of one node. Threads of a node have
     * consecutive numbers, and each node has as many as its part of the cores. */
    bool by_node;
};

/* TUTTI_E_MEMORY: a thread could not be created. */
MUST_CHECK enum tutti_status team_new(struct team **out, const struct team_options *options,
                                      struct tutti_error *err);
void team_free(struct team *team); /* NULL is allowed */

int team_n_threads(const struct team *team);

/* The nodes that have threads; 1 without by_node. */
const struct nodes *team_nodes(const struct team *team);
int team_node_of(const struct team *team, int thread);
/* The first thread of a node; of the number of nodes: the number of threads. */
int team_first_thread(const struct team *team, int node);
/* n items divided among the nodes by their threads: the first item of a node; of the number of nodes: n. */
int64_t team_node_begin(const struct team *team, int64_t n, int node);

/* Binds the calling thread as thread 0; threads that it starts inherit the binding. */
void team_bind_caller(struct team *team);

/* Calls fn once for each thread number, and returns when all calls have returned. A call runs on the
 * thread of that number or, if that thread has no core, on the caller. One caller at a time. */
void team_run(struct team *team, team_fn *fn, void *arg);

/* As team_run(), with the caller bound as thread 0 during the work: for the first write of memory. */
void team_run_bound(struct team *team, team_fn *fn, void *arg);

/* Divides n items among n_threads at multiples of step; thread gets the items [*begin, *end). */
void team_range(int64_t n, int64_t step, int thread, int n_threads, int64_t *begin, int64_t *end);

/* Cores that this process may run on, from its affinity mask and the cgroup's quota; at least 1. */
int team_n_cores(void);

#endif
