/* Decides which pages are spilled to the file and which are restored; connects scheduler, page pool
 * and spill index.
 *
 * Spill: cached pages are copied to the file before they are evicted, in the order of eviction. The
 * copied part of the cache is at least as large as the longest prompt; so a prompt that needs many
 * pages at once evicts only pages that have a copy. A page is copied after its parents.
 *
 * Restore: a sequence that starts takes its pages from the pool as usual. Pages that only the file
 * has are read before the rest of its prompt is computed. The sequence waits for them; others go
 * on. If a page cannot be read, or none arrives for some seconds, the sequence computes the rest.
 *
 * Engine thread only. Nothing here allocates after spiller_new(). Only spiller_flush() waits. */
#ifndef TUTTI_SPILLER_H
#define TUTTI_SPILLER_H

#include "engine/kv/spill.h"
#include "engine/schedule/scheduler.h"

struct spiller_options {
    struct scheduler *scheduler;
    struct backend *backend;
    struct kv_memory *kv;
    struct spill *spill;   /* borrowed */
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

/* Between steps: takes in restored pages, requests more, copies pages; for about budget_us. True:
 * there is more to do at once. */
bool spiller_work(struct spiller *spiller, uint64_t budget_us);

/* Copies all cached pages, the newest that fit; waits on the bell, for most_us at most. No sequence
 * may run. */
void spiller_flush(struct spiller *spiller, struct bell *bell, uint64_t most_us);

struct spiller_counts {
    uint64_t n_looked_up_pages; /* full pages of prompts that missed the pool */
    uint64_t n_found_pages;     /* of those, found in the file */
    uint64_t n_restored_pages;
};
struct spiller_counts spiller_counts(const struct spiller *spiller);

#endif
