/* The request queue: requests that have not started, or not with all their choices, and which of
 * them is next.
 *
 * Order: first by priority. Within a priority, the owner that has had the least service relative to
 * its weight: start-time fair queueing (Goyal et al., 1996) over tokens, as in VTC (Sheng et al.,
 * 2024, "Fairness in Serving Large Language Models"). An owner that returns after a pause has no
 * credit from that time. Within an owner and priority, first come, first served.
 *
 * The requests of one owner and priority form a lane. A lane ages while better priorities are served
 * first: it gains one priority for each QUEUE_AGEING_US since it was last served, up to the best
 * priority in the queue. At that priority the owners' service decides again, so an owner that floods
 * the queue gains nothing by waiting long.
 *
 * Engine thread only. Nothing here allocates after request_queue_init(). */
#ifndef TUTTI_REQUEST_QUEUE_H
#define TUTTI_REQUEST_QUEUE_H

#include "engine/requests/request.h"
#include "engine/schedule/forecast.h"

enum { QUEUE_AGEING_US = 10 * 1000 * 1000 };

/* Effective priority of work that has waited since since_us; best: the best priority it competes
 * with. */
static inline int aged_priority(int priority, int best, uint64_t since_us, uint64_t now_us)
{
    uint64_t n_steps = now_us > since_us ? (now_us - since_us) / QUEUE_AGEING_US : 0;
    if (n_steps >= TUTTI_PRIORITIES || priority - (int)n_steps < best)
        return best;
    return priority - (int)n_steps;
}

struct lane {
    struct share *share;
    int priority;
    struct request *head, *tail;
    int n;
    uint64_t since_us;            /* when it was served last, or began to wait */
    struct lane *previous, *next; /* in the queue; next: also in the free list */
    struct lane *of_share;        /* next lane of the same owner */
};

struct request_queue {
    struct lane *memory, *free; /* [n_requests] */
    struct lane *first;
    int n;                     /* requests */
    double virtual_time;       /* service of the owner that started last */
    double weights;            /* sum, of owners with waiting requests */
    uint64_t next_deadline_us; /* no deadline is earlier; UINT64_MAX: none */
};

MUST_CHECK enum tutti_status request_queue_init(struct request_queue *queue, int n_requests,
                                                struct tutti_error *err);
void request_queue_clear(struct request_queue *queue); /* a zeroed one is allowed */

/* Adds a request at the end of its lane, or at its front if some of its choices have started. */
void request_queue_add(struct request_queue *queue, struct request *r);
/* Does nothing if the request is not in the queue. */
void request_queue_remove(struct request_queue *queue, struct request *r);

/* Of the requests in the queue; TUTTI_PRIORITY_LAST: there is none. */
int request_queue_best_priority(const struct request_queue *queue);

/* The next request of those that may_start() allows (NULL: all); NULL: there is none. It is called with the first request of
 * each lane. */
typedef bool may_start_fn(const void *user, const struct request *r);
struct request *request_queue_best(const struct request_queue *queue, uint64_t now_us,
                                   may_start_fn *may_start, const void *user);
/* Starts a request: removes it from the queue and charges its owner for work. */
void request_queue_start(struct request_queue *queue, struct request *r, double work, uint64_t now_us);
/* Charges the owner for more work. */
void request_queue_charge(struct request *r, double work);

/* Calls late() for each request past its deadline; late() must remove it. */
void request_queue_drop_late(struct request_queue *queue, uint64_t now_us,
                             void (*late)(void *user, struct request *r), void *user);

/* Iterates over all requests in no particular order. Get the next one before removing one. */
struct request *request_queue_first(const struct request_queue *queue);
struct request *request_queue_next(const struct request *r);

/* Counts waiting requests by priority. waiting: [TUTTI_PRIORITIES]. */
void request_queue_count(const struct request_queue *queue, struct tutti_waiting *waiting, uint64_t now_us);

#endif
