/* The owners of requests and how much service each has had, for fair queueing.
 *
 * An owner is created with its first request, and kept for some time after its last one: otherwise
 * an owner that has used more than its share would return as a new one. Callers' threads create and
 * find owners under the engine's lock. The fields of the engine thread are read by no other thread. */
#ifndef TUTTI_SHARE_H
#define TUTTI_SHARE_H

#include "base/error.h"

#include <stdatomic.h>

struct lane;

struct share {
    uint64_t owner;

    /* Under the engine's lock: */
    struct share *next;          /* in its bucket */
    struct share *older, *newer; /* in the list of owners without requests */
    int64_t n_requests;
    int64_t n_choices; /* of requests whose last event was not sent */

    /* Any thread: */
    atomic_int_fast64_t waiting;    /* work (forecast.h) of its requests that have not started */
    atomic_int_fast64_t debt;       /* tokens charged outside the queue, not yet added to service */
    atomic_int_fast64_t held_bytes; /* struct request_memory, of its requests */

    /* Engine thread: */
    double service;     /* work started, divided by the weight */
    double weight;      /* of its latest request */
    int n_slots;        /* of its sequences */
    struct lane *lanes; /* of its waiting requests; NULL: none */
};

enum { SHARE_BUCKETS = 1024, SHARES_REMEMBERED = 1024 };

/* Zero-initialise. */
struct shares {
    struct share *buckets[SHARE_BUCKETS];
    struct share *oldest, *newest; /* without requests */
    int n_idle;
};

/* Finds or creates the share of an owner and counts one more request; share_drop() counts one less.
 * NULL: out of memory. */
struct share *share_take(struct shares *shares, uint64_t owner);
/* NULL: not found. Valid under the lock. */
struct share *share_find(const struct shares *shares, uint64_t owner);
void share_drop(struct shares *shares, struct share *share);
void shares_clear(struct shares *shares); /* no request is left */

#endif
