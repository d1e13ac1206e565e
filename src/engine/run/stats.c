#include "engine/run/stats.h"

#include <string.h>

/* Seconds; from one row of a small model to a long prompt with a long queue. */
static const double bounds[TUTTI_HISTOGRAM_BUCKETS] = {
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1,
    0.15,   0.25,  0.5,   1,     2.5,  5,    10,   30,   60,    300,
};

static void histogram_init(struct tutti_histogram *h)
{
    memcpy(h->bound, bounds, sizeof bounds);
}

enum tutti_status stats_init(struct stats *stats, struct tutti_error *err)
{
    memset(stats, 0, sizeof *stats);
    int rc = pthread_mutex_init(&stats->lock, NULL);
    if (rc != 0)
        return error_set(err, TUTTI_E_MEMORY, "cannot create a mutex: %s", strerror(rc));
    stats->has_lock = true;
    histogram_init(&stats->now.ttft);
    histogram_init(&stats->now.inter_token);
    histogram_init(&stats->now.step);
    histogram_init(&stats->now.queue);
    stats->shared = stats->now;
    return TUTTI_OK;
}

void stats_clear(struct stats *stats)
{
    if (stats->has_lock)
        pthread_mutex_destroy(&stats->lock);
    stats->has_lock = false;
}

void histogram_add(struct tutti_histogram *h, uint64_t us)
{
    double seconds = (double)us * 1e-6;
    for (int i = TUTTI_HISTOGRAM_BUCKETS; i-- > 0 && seconds <= h->bound[i];)
        h->count[i]++;
    h->n++;
    h->sum += seconds;
}

void stats_publish(struct stats *stats, bool waits)
{
    if (waits)
        pthread_mutex_lock(&stats->lock);
    else if (pthread_mutex_trylock(&stats->lock) != 0)
        return;
    stats->shared = stats->now;
    stats->shared_n_begun = stats->n_begun;
    pthread_mutex_unlock(&stats->lock);
}

void stats_read(struct stats *stats, struct tutti_stats *out)
{
    pthread_mutex_lock(&stats->lock);
    *out = stats->shared;
    uint64_t n_not_waiting = stats->shared_n_begun;
    pthread_mutex_unlock(&stats->lock);
    n_not_waiting += atomic_load(&stats->n_unprepared);
    out->n_requests = atomic_load(&stats->n_requests); /* after n_begun, which must not exceed it */
    out->n_waiting += out->n_requests - n_not_waiting;
    out->n_refused = atomic_load(&stats->n_refused);
    out->n_refused_full = atomic_load(&stats->n_refused_full);
    out->n_refused_early = atomic_load(&stats->n_refused_early);
    out->n_timed_out = atomic_load(&stats->n_timed_out);
    out->n_finished = atomic_load(&stats->n_finished);
    out->n_cancelled = atomic_load(&stats->n_cancelled);
    out->n_failed = atomic_load(&stats->n_failed);
    out->n_generated_tokens = atomic_load(&stats->n_generated_tokens);
}
