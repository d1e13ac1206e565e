/* Decides which pages are spilled and which are restored; connects scheduler, page pool and the copies in host memory
 * and in the spill file (spill.h).
 *
 * Spill: cached pages are copied to host memory before they are evicted, in the order of eviction. The
 * copied part of the cache is at least as large as the longest prompt; so a prompt that needs many
 * pages at once evicts only pages that have a copy. A page is copied after its parents.
 *
 * Restore: a sequence that starts takes its pages from the pool as usual. Pages that only have a copy
 * are restored before the rest of its prompt is computed. The sequence waits for them; others go
 * on. If a page cannot be read, or none arrives for some seconds, the sequence computes the rest.
 *
 * Pages are copied between the pool and host memory by transfers (kv_read_begin() and kv_write_begin() of backend.h), which
 * a card carries out while it computes. Spilled pages have at most half of them, and no sequence takes more than half of
 * what is left.
 *
 * Engine thread only. Nothing here allocates after spiller_new(). Only spiller_wait() and spiller_flush() wait. */
#ifndef TUTTI_SPILLER_H
#define TUTTI_SPILLER_H

#include "engine/kv/spill.h"
#include "engine/schedule/scheduler.h"

struct spiller_options {
    struct scheduler *scheduler;
    struct backend *backend;
    struct kv_memory *kv;
    struct spill *spill;   /* borrowed */
    int n_transfers;       /* at a time: as many copies as were reserved, 4 or more */
    const uint64_t *roots; /* without an adapter, then of each adapter; copied */
    int n_roots;
    int patience_us; /* without a restored page, before the sequence computes instead; 0: five seconds */
};

/* Creates a spiller; from now on the scheduler calls it. On success *out is the caller's, for
 * spiller_free(). TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status spiller_new(struct spiller **out, const struct spiller_options *options,
                                         struct tutti_error *err);
void spiller_free(struct spiller *spiller); /* NULL is allowed */

/* For the scheduler: seq has taken its pages, n_matched of them from the pool. n_full: pages that
 * need not be computed if they are cached. True: pages are read for it, which it must wait for. */
MUST_CHECK bool spiller_begin(struct spiller *spiller, struct sequence *seq, int n_matched, int n_full);

/* Between steps: ends transfers, requests pages to restore, copies pages; for about budget_us. True:
 * there is more to do at once. */
bool spiller_work(struct spiller *spiller, uint64_t budget_us);

/* Waits for the first transfer under way, if there is one: spiller_work() then goes on. False: there is none. */
bool spiller_wait(struct spiller *spiller);

/* Writes all cached pages, and those of host memory, to the file, the newest that fit; waits on the bell, for most_us at
 * most. No sequence may run. */
void spiller_flush(struct spiller *spiller, struct bell *bell, uint64_t most_us);

struct spiller_counts {
    uint64_t n_looked_up_pages; /* full pages of prompts that missed the pool */
    uint64_t n_found_pages;     /* of those, found in host memory or in the file */
    uint64_t n_restored_pages;
    uint64_t n_host_restored_pages; /* of those, without the file */
};
struct spiller_counts spiller_counts(const struct spiller *spiller);

#endif
