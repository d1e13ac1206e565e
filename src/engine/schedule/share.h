/* Owners of requests, and what each has had of the machine.
 *
 * An owner is known from its first request on, and forgotten some time after its last one, so that whoever has had more than
 * its part does not come back as a stranger at once. Made and found by callers' threads under the engine's lock; what the
 * engine thread writes of a share it alone reads, but for the counter. */
#ifndef TUTTI_SHARE_H
#define TUTTI_SHARE_H

#include "base/error.h"

#include <stdatomic.h>

struct lane;

struct share {
    uint64_t owner;

    /* Under the engine's lock: */
    struct share *next;          /* in its bucket */
    struct share *older, *newer; /* among those without requests */
    int64_t n_requests;
    int64_t n_choices; /* of those whose last event was not sent */

    /* Any thread: */
    atomic_int_fast64_t waiting; /* work (forecast.h) of its requests that have not begun */
    atomic_int_fast64_t
        debt; /* work done for it before the queue, in tokens, that service does not hold yet */

    /* Engine thread: */
    double service;     /* work begun, divided by the weight */
    double weight;      /* of its latest request */
    struct lane *lanes; /* where its requests wait; NULL: none does */
};

enum { SHARE_BUCKETS = 1024, SHARES_REMEMBERED = 1024 };

/* Zero-initialise. */
struct shares {
    struct share *buckets[SHARE_BUCKETS];
    struct share *oldest, *newest; /* without requests */
    int n_idle;
};

/* The share of an owner, for one request more or less. NULL: out of memory. */
struct share *share_take(struct shares *shares, uint64_t owner);
/* NULL: it has none. Valid under the lock. */
struct share *share_find(const struct shares *shares, uint64_t owner);
void share_drop(struct shares *shares, struct share *share);
void shares_clear(struct shares *shares); /* no request is left */

#endif
