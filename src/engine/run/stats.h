/* Statistics of the engine. Each counter is written by one thread. Readers get a snapshot that the
 * engine thread publishes between steps; the lock is held for one copy only. */
#ifndef TUTTI_STATS_H
#define TUTTI_STATS_H

#include "base/error.h"

#include <pthread.h>
#include <stdatomic.h>

struct stats {
    struct tutti_stats now; /* engine thread */
    pthread_mutex_t lock;
    bool has_lock;
    struct tutti_stats shared;
    /* Requests that have left the queue: their first row was planned, or they ended. */
    uint64_t n_begun, shared_n_begun;
    /* Counted by callers and the text thread: */
    atomic_uint_fast64_t n_requests, n_refused, n_refused_full, n_refused_early;
    atomic_uint_fast64_t n_timed_out;  /* by the engine thread too */
    atomic_uint_fast64_t n_unprepared; /* ended before the engine thread saw them */
    atomic_uint_fast64_t n_finished, n_cancelled, n_failed, n_generated_tokens;
};

MUST_CHECK enum tutti_status stats_init(struct stats *stats, struct tutti_error *err);
void stats_clear(struct stats *stats); /* a zeroed one is allowed */

/* Engine thread: */
void histogram_add(struct tutti_histogram *h, uint64_t us);
/* waits: for a reader that copies the snapshot; else that one stays as it is until the next call. */
void stats_publish(struct stats *stats, bool waits);

/* Any thread: */
void stats_read(struct stats *stats, struct tutti_stats *out);

#endif
