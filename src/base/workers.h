/* Worker threads that take work from many owners and share their time fairly among them.
 *
 * Each owner has a queue of its own, which is worked off in order and one item at a time, so however much one owner sends, it
 * occupies one thread. The owner that has had the least goes first, counted in what its items cost: one that sends expensive
 * items gets its turn less often than one that sends cheap ones. An owner that was idle has nothing saved up; one that has
 * had much keeps its debt until the others have had as much, or until nobody waits.
 *
 * The threads run at a lower priority than the process: they compete with steps for the cores, and steps go first. */
#ifndef TUTTI_BASE_WORKERS_H
#define TUTTI_BASE_WORKERS_H

#include "base/error.h"

struct workers;

/* A part of what the caller hands over. Zero-initialise. */
struct work_item {
    struct work_item *next;
    uint64_t cost; /* at least 1; in a unit that is the caller's, such as bytes */
};

/* Works on an item, on a worker's thread. The item is the function's own from then on. */
typedef void work_fn(void *user, struct work_item *item);

struct workers_options {
    const char *name; /* of the threads, up to 15 bytes */
    int n_threads;
    work_fn *work;
    void *user;
};

MUST_CHECK enum tutti_status workers_new(struct workers **out, const struct workers_options *options,
                                         struct tutti_error *err);
/* Ends the threads once every item was worked on. NULL is allowed. */
void workers_free(struct workers *workers);

/* Queues an item. Any thread. False: out of memory, and the item stays the caller's. */
MUST_CHECK bool workers_add(struct workers *workers, uint64_t owner, struct work_item *item);
/* What an item has cost beyond what was said when it was queued. Any thread; an owner that is not known any more is let off. */
void workers_charge(struct workers *workers, uint64_t owner, uint64_t cost);

struct workers_counts {
    uint64_t n_waiting, n_running; /* items */
    uint64_t n_done;
    uint64_t n_owners; /* that are remembered */
};
void workers_counts(struct workers *workers, struct workers_counts *out);

#endif
