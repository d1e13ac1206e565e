/* Worker threads that take work from many owners and share their time fairly among them.
 *
 * Each owner has a queue of its own. Its items are processed in order and one at a time, so an owner occupies at most one
 * thread. The owner whose items have cost least so far goes first: expensive items are served less often than cheap ones. An
 * owner gains no credit while it is idle. An owner that was served more than the others is served after them, until they have
 * had as much or no owner waits.
 *
 * The threads run at a lower priority than the process: they compete with steps for the cores, and steps go first. */
#ifndef TUTTI_BASE_SYSTEM_WORKERS_H
#define TUTTI_BASE_SYSTEM_WORKERS_H

#include "base/error.h"

struct workers;

/* Embedded in the caller's struct. Zero-initialise. */
struct work_item {
    struct work_item *next;
    uint64_t cost; /* at least 1; the caller chooses the unit, such as bytes */
};

/* Processes an item, on a worker thread. The function owns the item from then on. */
typedef void work_fn(void *user, struct work_item *item);

struct workers_options {
    const char *name; /* of the threads, up to 15 bytes */
    int n_threads;
    work_fn *work;
    void *user;
};

MUST_CHECK enum tutti_status workers_new(struct workers **out, const struct workers_options *options,
                                         struct tutti_error *err);
/* Ends the threads after every item was processed. NULL is allowed. */
void workers_free(struct workers *workers);

/* Queues an item. Any thread. False: out of memory, and the item stays the caller's. */
MUST_CHECK bool workers_add(struct workers *workers, uint64_t owner, struct work_item *item);
/* Adds to an owner's cost what an item turned out to cost beyond item->cost. Any thread; an owner that was forgotten is not charged. */
void workers_charge(struct workers *workers, uint64_t owner, uint64_t cost);

struct workers_counts {
    uint64_t n_waiting, n_running; /* items */
    uint64_t n_done;
    uint64_t n_owners; /* that are remembered */
};
void workers_counts(struct workers *workers, struct workers_counts *out);

#endif
