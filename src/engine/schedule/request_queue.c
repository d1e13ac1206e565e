#include "engine/schedule/request_queue.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum tutti_status request_queue_init(struct request_queue *queue, int n_requests, struct tutti_error *err)
{
    *queue = (struct request_queue){ .next_deadline_us = UINT64_MAX };
    queue->memory = calloc((size_t)n_requests, sizeof *queue->memory);
    if (!queue->memory)
        return error_set(err, TUTTI_E_MEMORY, "a queue of %d requests: out of memory", n_requests);
    for (int i = n_requests; i-- > 0;) {
        queue->memory[i].next = queue->free;
        queue->free = &queue->memory[i];
    }
    return TUTTI_OK;
}

void request_queue_clear(struct request_queue *queue)
{
    free(queue->memory);
    *queue = (struct request_queue){ 0 };
}

/* ---- lanes ---- */

/* Work that was charged outside the queue becomes service. */
static void take_debt(struct share *share)
{
    share->service += (double)atomic_exchange(&share->debt, 0) / share->weight;
}

static struct lane *lane_open(struct request_queue *queue, struct request *r)
{
    struct share *share = r->share;
    for (struct lane *lane = share->lanes; lane; lane = lane->of_share)
        if (lane->priority == r->spec.priority)
            return lane;
    struct lane *lane = queue->free;
    assert(lane); /* a lane holds a request, and there are as many lanes as requests */
    queue->free = lane->next;
    if (!share->lanes) {
        if (share->service < queue->virtual_time)
            share->service = queue->virtual_time;
        share->weight = r->spec.weight;
        take_debt(share);
        queue->weights += share->weight;
    }
    *lane = (struct lane){ .share = share,
                           .priority = r->spec.priority,
                           .since_us = r->submit_us,
                           .next = queue->first,
                           .of_share = share->lanes };
    if (queue->first)
        queue->first->previous = lane;
    queue->first = lane;
    share->lanes = lane;
    return lane;
}

static void lane_close(struct request_queue *queue, struct lane *lane)
{
    struct lane **at = &lane->share->lanes;
    while (*at != lane)
        at = &(*at)->of_share;
    *at = lane->of_share;
    *(lane->previous ? &lane->previous->next : &queue->first) = lane->next;
    if (lane->next)
        lane->next->previous = lane->previous;
    if (!lane->share->lanes)
        queue->weights -= lane->share->weight;
    if (!queue->first)
        queue->weights = 0; /* no rounding error remains */
    *lane = (struct lane){ .next = queue->free };
    queue->free = lane;
}

/* ---- requests ---- */

void request_queue_add(struct request_queue *queue, struct request *r)
{
    struct lane *lane = lane_open(queue, r);
    bool goes_first = r->n_started > 0;
    r->lane = lane;
    r->next = goes_first ? lane->head : NULL;
    r->previous = goes_first ? NULL : lane->tail;
    *(r->next ? &r->next->previous : &lane->tail) = r;
    *(r->previous ? &r->previous->next : &lane->head) = r;
    lane->n++;
    queue->n++;
    if (!goes_first && r->deadline_us > 0 && r->deadline_us < queue->next_deadline_us)
        queue->next_deadline_us = r->deadline_us;
}

void request_queue_remove(struct request_queue *queue, struct request *r)
{
    struct lane *lane = r->lane;
    if (!lane)
        return;
    *(r->previous ? &r->previous->next : &lane->head) = r->next;
    *(r->next ? &r->next->previous : &lane->tail) = r->previous;
    r->next = r->previous = NULL;
    r->lane = NULL;
    lane->n--;
    queue->n--;
    if (!lane->head)
        lane_close(queue, lane);
}

static int priority_now(const struct lane *lane, int best, uint64_t now_us)
{
    uint64_t since_us = lane->since_us > lane->head->submit_us ? lane->since_us : lane->head->submit_us;
    return aged_priority(lane->priority, best, since_us, now_us);
}

static bool is_before(const struct lane *a, const struct lane *b, int best, uint64_t now_us)
{
    int priority_a = priority_now(a, best, now_us), priority_b = priority_now(b, best, now_us);
    if (priority_a != priority_b)
        return priority_a < priority_b;
    if (a->share->service != b->share->service)
        return a->share->service < b->share->service;
    return a->head->serial < b->head->serial;
}

int request_queue_best_priority(const struct request_queue *queue)
{
    int best = TUTTI_PRIORITY_LAST;
    for (const struct lane *lane = queue->first; lane; lane = lane->next)
        best = lane->priority < best ? lane->priority : best;
    return best;
}

struct request *request_queue_best(const struct request_queue *queue, uint64_t now_us,
                                   may_start_fn *may_start, const void *user)
{
    const struct lane *next = NULL;
    int best = request_queue_best_priority(queue);
    for (const struct lane *lane = queue->first; lane; lane = lane->next)
        if ((!next || is_before(lane, next, best, now_us)) && (!may_start || may_start(user, lane->head)))
            next = lane;
    return next ? next->head : NULL;
}

void request_queue_charge(struct request *r, double work)
{
    r->share->service += work / r->spec.weight;
}

void request_queue_start(struct request_queue *queue, struct request *r, double work, uint64_t now_us)
{
    if (queue->virtual_time < r->share->service)
        queue->virtual_time = r->share->service;
    r->lane->since_us = now_us;
    take_debt(r->share);
    request_queue_remove(queue, r);
    request_queue_charge(r, work);
}

void request_queue_drop_late(struct request_queue *queue, uint64_t now_us,
                             void (*late)(void *user, struct request *r), void *user)
{
    if (now_us < queue->next_deadline_us)
        return;
    queue->next_deadline_us = UINT64_MAX;
    for (struct request *r = request_queue_first(queue), *next; r; r = next) {
        next = request_queue_next(r);
        if (r->deadline_us == 0 || r->n_started > 0)
            continue;
        if (r->deadline_us <= now_us)
            late(user, r);
        else if (r->deadline_us < queue->next_deadline_us)
            queue->next_deadline_us = r->deadline_us;
    }
}

struct request *request_queue_first(const struct request_queue *queue)
{
    return queue->first ? queue->first->head : NULL;
}

struct request *request_queue_next(const struct request *r)
{
    if (r->next)
        return r->next;
    return r->lane->next ? r->lane->next->head : NULL;
}

void request_queue_count(const struct request_queue *queue, struct tutti_waiting *waiting, uint64_t now_us)
{
    memset(waiting, 0, TUTTI_PRIORITIES * sizeof *waiting);
    for (const struct lane *lane = queue->first; lane; lane = lane->next) {
        struct tutti_waiting *class = &waiting[lane->priority - TUTTI_PRIORITY_FIRST];
        uint64_t submit_us = lane->head->submit_us, us = now_us > submit_us ? now_us - submit_us : 0;
        class->n += (uint64_t)lane->n;
        class->oldest_us = us > class->oldest_us ? us : class->oldest_us;
    }
}
