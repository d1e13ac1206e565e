/* When requests arrive, and which prompt each of them takes. Both follow from the seed alone: neither the machine's speed
 * nor the answers change them, so that two servers can be given the same hour of work. */
#ifndef TUTTI_LOAD_ARRIVALS_H
#define TUTTI_LOAD_ARRIVALS_H

#include "base/error.h"

enum arrival_process {
    ARRIVALS_POISSON, /* as many people do who do not know of each other: gaps have an exponential distribution */
    ARRIVALS_EVEN, /* equal gaps */
};

struct arrivals {
    enum arrival_process process;
    double per_second;
    uint64_t seed, n;
    double at_s; /* of the one drawn last */
};

/* per_second: above 0. The first arrival is one gap after the start. */
void arrivals_init(struct arrivals *a, enum arrival_process process, double per_second, uint64_t seed);

/* Seconds from the start to the next arrival; never less than what the call before gave. */
double arrivals_next(struct arrivals *a);

/* Goes through n prompts again and again: each time in another order (or always in that of the file), so that all are
 * used equally often. */
struct rounds {
    uint32_t *order; /* [n] */
    uint32_t n, next;
    uint64_t seed, round;
    bool in_order;
};

/* Fills *out for rounds_clear(). n: above 0. TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status rounds_init(struct rounds *out, uint32_t n, bool in_order, uint64_t seed,
                                         struct tutti_error *err);
uint32_t rounds_next(struct rounds *r); /* below n */
void rounds_clear(struct rounds *r);

#endif
