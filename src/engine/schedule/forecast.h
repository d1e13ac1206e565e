/* Predicts how long a new request would wait in the queue, for early refusals and for Retry-After.
 *
 * Work is counted in tokens, as fair queueing counts it: 1 for a token of a prompt, OUTPUT_WORK for
 * a generated one. The mean length of answers is measured, and so is the rate at which work starts
 * while requests wait. So whatever the count ignores (a cached prompt, an answer that ends early)
 * is contained in the measured rate. */
#ifndef TUTTI_FORECAST_H
#define TUTTI_FORECAST_H

#include "engine/schedule/share.h"

enum { OUTPUT_WORK = 2 }; /* Sheng et al., 2024: a generated token costs about two prompt tokens */

struct request;

struct forecast {
    /* Engine thread: */
    double work, us;   /* work that started while requests waited, and its duration; with exponential decay */
    double last_work;  /* work that started together last */
    double pause_us;   /* time since then */
    double mean_work;  /* of a request */
    double new_work;   /* work that starts in the step being planned */
    int n_begun;       /* requests measured, up to ENOUGH */
    double answer;     /* mean tokens of an answer; 0: not known */
    uint64_t since_us; /* since when the queue has not been empty; 0: it is empty */

    /* Written by the engine thread, read by all: */
    _Atomic double rate;        /* work per second; 0: not known */
    _Atomic double mean_answer; /* = answer */
    _Atomic double weights;     /* sum, of the owners with waiting requests */
    _Atomic double room;        /* work that can start at once */

    atomic_int_fast64_t waiting[TUTTI_PRIORITIES]; /* work that has not started; written by all */
};

/* Adds a request's work to waiting, or corrects it when its prompt is tokenized. The calling thread
 * owns the request. */
void forecast_enter(struct forecast *f, struct request *r);
/* Removes it again: the request has started or ended. May be called again. */
void forecast_leave(struct forecast *f, struct request *r);

/* Predicted wait in microseconds of a new request of this owner and priority; 0: none, or not known. */
uint64_t forecast_wait_us(const struct forecast *f, const struct share *share, double weight, int priority);
/* Work in the queue. */
double forecast_waiting(const struct forecast *f);
/* Milliseconds until half of the work in the queue has started; 0: not known. */
uint32_t forecast_half_ms(const struct forecast *f);

/* ---- engine thread ---- */

/* A step is being planned while requests from an earlier step still wait. */
void forecast_look(struct forecast *f, uint64_t now_us);
/* A request starts. */
void forecast_begin(struct forecast *f, struct request *r);
/* Every request that can start has started. weights: sum, of owners with waiting requests; 0: none
 * waits. n_free: free sequence slots. */
void forecast_close(struct forecast *f, double weights, int n_free, uint64_t now_us);
/* An answer has ended by itself. */
void forecast_answer(struct forecast *f, int n_tokens);

#endif
