/* Generates the arrival times of requests and the choice of their prompts. Both depend only on
 * the seed, not on the machine's speed or the answers, so two servers can be given the same load. */
#ifndef TUTTI_LOAD_ARRIVALS_H
#define TUTTI_LOAD_ARRIVALS_H

#include "base/error.h"

enum arrival_process {
    ARRIVALS_POISSON, /* independent users: gaps have an exponential distribution */
    ARRIVALS_EVEN,    /* equal gaps */
};

struct arrivals {
    enum arrival_process process;
    double per_second;
    uint64_t seed, n;
    double at_s; /* time of the last arrival */
};

/* per_second: above 0. The first arrival is one gap after the start. */
void arrivals_init(struct arrivals *a, enum arrival_process process, double per_second, uint64_t seed);

/* Seconds from the start to the next arrival; never decreases. */
double arrivals_next(struct arrivals *a);

/* Iterates over n prompts repeatedly, each round in a new random order (or always in the file's
 * order), so that all are used equally often. */
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
