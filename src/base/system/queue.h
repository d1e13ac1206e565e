/* Communication between threads: a bell (an event that one thread waits for) and a bounded
 * single-producer, single-consumer queue.
 *
 * The queue is lock-free. A bell takes its lock only to sleep and to wake the sleeper, never
 * around work. */
#ifndef TUTTI_BASE_SYSTEM_QUEUE_H
#define TUTTI_BASE_SYSTEM_QUEUE_H

#include "base/error.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- bell ---- */

/* Any number of threads ring, one thread sleeps. The sleeper takes a ticket, checks for work, and
 * waits with that ticket if there is none: a ring in between is not lost. */
struct bell {
    atomic_uint n_rings;
    atomic_bool is_asleep;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool is_open;
};

MUST_CHECK enum tutti_status bell_init(struct bell *bell, struct tutti_error *err);
void bell_clear(struct bell *bell); /* a zeroed one is allowed */

unsigned bell_ticket(struct bell *bell);
void bell_wait(struct bell *bell, unsigned ticket); /* until it was rung after the ticket was taken */
/* The same with a timeout: until clock_now_us() is end_us. False: it was not rung. */
bool bell_wait_until(struct bell *bell, unsigned ticket, uint64_t end_us);
void bell_ring(struct bell *bell);

/* ---- queue: one producer, one consumer ---- */
struct queue;

/* n_items is rounded up to a power of two. All memory is allocated here. On success *out is the
 * caller's, for queue_free(). TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status queue_new(struct queue **out, size_t n_items, size_t item_bytes,
                                       struct tutti_error *err);
void queue_free(struct queue *queue); /* NULL is allowed */

/* Producer: appends a copy of *item; false: full. The consumer sees it only after
 * queue_publish(). */
MUST_CHECK bool queue_push(struct queue *queue, const void *item);
void queue_publish(struct queue *queue);

/* Consumer: the oldest item, valid until queue_pop(); NULL: empty. */
const void *queue_front(struct queue *queue);
void queue_pop(struct queue *queue); /* queue_front() was not NULL */

#endif
