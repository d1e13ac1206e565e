/* Which pages leave for the spill file, and which come back: between the scheduler, the pool and the file's index.
 *
 * Of the cached pages those that would be given away next are copied ahead of that, a part of the pool that holds the longest
 * prompt at least; so a prompt that needs many pages at once finds them copied. A page is copied after the ones before it.
 *
 * A sequence that begins takes its pages as ever; those that the file holds are read before the rest of its prompt is computed.
 * It waits for them, others go on. If one cannot be read, or nothing comes for some seconds, it computes from there.
 *
 * Engine thread only. Nothing here allocates after spiller_new(), or waits, but for spiller_flush(). */
#ifndef TUTTI_SPILLER_H
#define TUTTI_SPILLER_H

#include "engine/kv/spill.h"
#include "engine/schedule/scheduler.h"

struct spiller_options {
    struct scheduler *scheduler;
    struct backend *backend;
    struct kv_memory *kv;
    struct spill *spill;   /* the caller's */
    const uint64_t *roots; /* of no adapter, then of each adapter in turn; copied */
    int n_roots;
    int patience_us; /* without a page that comes, before it is computed instead; 0: five seconds */
};

/* From now on the scheduler asks it. On success *out is the caller's, for spiller_free(). TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status spiller_new(struct spiller **out, const struct spiller_options *options,
                                         struct tutti_error *err);
void spiller_free(struct spiller *spiller); /* NULL is allowed */

/* For the scheduler: seq has taken its pages, n_matched of them from the pool, of n_full that need not be computed if they are
 * known. */
void spiller_begin(struct spiller *spiller, struct sequence *seq, int n_matched, int n_full);
/* seq gives its pages up. */
void spiller_end(struct spiller *spiller, struct sequence *seq);

/* Between steps: takes in what came back, asks for more, copies; for about budget_us. True: there is more to do at once. */
bool spiller_work(struct spiller *spiller, uint64_t budget_us);

/* Copies all cached pages, the newest that fit; waits on the bell, for most_us at most. No sequence runs. */
void spiller_flush(struct spiller *spiller, struct bell *bell, uint64_t most_us);

struct spiller_counts {
    uint64_t n_asked_pages; /* full pages of prompts that the pool did not have, */
    uint64_t n_found_pages; /* and those of them that the file had */
    uint64_t n_returned_pages;
};
struct spiller_counts spiller_counts(const struct spiller *spiller);

#endif
