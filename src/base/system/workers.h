/* Worker threads with a fair queue: their time is divided evenly among the owners of the work.
 *
 * Each owner has its own queue. Its items are processed in order and one at a time, so an owner
 * occupies at most one thread. The owner with the lowest total cost so far is served next. An
 * idle owner gains no credit. An owner that was served more than the others waits until they have
 * caught up, or until no other owner waits.
 *
 * The threads have a lower priority than the process, so that engine steps get the cores first. */
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
/* Adds the cost of an item beyond item->cost to its owner, when it is known afterwards. Any
 * thread. Owners that were already forgotten are not charged. */
void workers_charge(struct workers *workers, uint64_t owner, uint64_t cost);

struct workers_counts {
    uint64_t n_waiting, n_running; /* items */
    uint64_t n_done;
    uint64_t n_owners; /* that are remembered */
};
void workers_counts(struct workers *workers, struct workers_counts *out);

#endif
