/* How long a request that comes now would wait: what makes a refusal early, and tells when to come again.
 *
 * Work is counted in tokens as the fair share counts them: one for a token of a prompt, OUTPUT_WORK for one of an answer. How long
 * answers become, and how much work begins in a second while others wait, is measured; so whatever the count leaves out (a
 * prompt that is in the cache, an answer that ends early) is in the rate as well. */
#ifndef TUTTI_FORECAST_H
#define TUTTI_FORECAST_H

#include "engine/schedule/share.h"

enum { OUTPUT_WORK = 2 }; /* Sheng et al., 2024: a token of an answer costs about twice one of a prompt */

struct request;

struct forecast {
    /* Engine thread: */
    double work, us; /* that began while others waited, and the time in which it did; older ones count less */
    double last_work;  /* what began together last */
    double pause_us;   /* since then */
    double mean_work;  /* of a request */
    double new_work;   /* that begins in the step that is being planned */
    int n_begun;       /* requests that began so, up to ENOUGH */
    double answer;     /* tokens of an answer, in the mean; 0: not known */
    uint64_t since_us; /* the line has been waiting since then; 0: it is empty */

    /* Written by the engine thread, read by all: */
    _Atomic double rate;        /* work a second; 0: not known */
    _Atomic double mean_answer; /* answer */
    _Atomic double weights;     /* of the owners whose requests wait */
    _Atomic double room;        /* work that can begin at once */

    atomic_int_fast64_t waiting[TUTTI_PRIORITIES]; /* work that has not begun; written by all */
};

/* The request's work waits, or its prompt is known by now; the request belongs to the caller's thread. */
void forecast_enter(struct forecast *f, struct request *r);
/* It has begun or ended. May be called again. */
void forecast_leave(struct forecast *f, struct request *r);

/* Microseconds that a request of this owner and priority would wait if it came now; 0: none, or it is not known. */
uint64_t forecast_wait_us(const struct forecast *f, const struct share *share, double weight, int priority);
/* Work that waits. */
double forecast_waiting(const struct forecast *f);
/* Milliseconds until the work that waits is half of what it is; 0: not known. */
uint32_t forecast_half_ms(const struct forecast *f);

/* ---- engine thread ---- */

/* A step is being planned, and requests wait from an earlier one. */
void forecast_look(struct forecast *f, uint64_t now_us);
/* A request begins. */
void forecast_begin(struct forecast *f, struct request *r);
/* Every one has begun who can. weights: of those who wait; 0: nobody does. n_free: sequences that could run besides. */
void forecast_close(struct forecast *f, double weights, int n_free, uint64_t now_us);
/* An answer has ended by itself. */
void forecast_answer(struct forecast *f, int n_tokens);

#endif
