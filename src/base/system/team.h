/* A fork-join pool of compute threads. The caller is thread 0 of the team.
 *
 * Waiting threads spin for a while, since the next work usually comes within microseconds, then
 * sleep. A busy team takes no lock. Work must be divided so that results do not depend on
 * n_threads: give each thread whole output rows, never parts of one sum. */
#ifndef TUTTI_BASE_SYSTEM_TEAM_H
#define TUTTI_BASE_SYSTEM_TEAM_H

#include "base/error.h"

struct team;

/* thread: 0..n_threads-1 */
typedef void team_fn(void *arg, int thread, int n_threads);

/* n_threads: 1..256, the caller included; 0: one for each core that this process may run on. pin:
 * bind each thread to its own core. TUTTI_E_MEMORY: a thread could not be created. */
MUST_CHECK enum tutti_status team_new(struct team **out, int n_threads, bool pin, struct tutti_error *err);
void team_free(struct team *team); /* NULL is allowed */

int team_n_threads(const struct team *team);

/* Runs fn on every thread and returns when all have. One caller at a time. */
void team_run(struct team *team, team_fn *fn, void *arg);

/* Inside fn: waits until all threads have arrived. */
void team_barrier(struct team *team);

/* The range [*begin, *end) of n items for this thread of n_threads; begin is a multiple of step,
 * and so is end unless it is n. */
void team_share(int64_t n, int64_t step, int thread, int n_threads, int64_t *begin, int64_t *end);

/* Cores that this process may run on, from its affinity mask and the cgroup's quota; at least 1. */
int team_n_cores(void);

#endif
