/* The spill index: finds KV pages in the spill file (spill_file.h), and runs the thread that reads
 * and writes it.
 *
 * A copy in the file is found as the pool finds a page: by its parent and by its own tokens, which
 * are compared. The parent is named by the id of its copy. Ids are never reused, so an id
 * identifies a whole prefix, across restarts too. The parent of the first page is the root of its
 * adapter, a number derived from the adapter's weights.
 *
 * Eviction is LRU. A use counts for the whole prefix, and a copy is ordered right before its
 * parent, so prefixes are evicted from their end.
 *
 * Engine thread only. It never waits for the file: pages go through buffers allocated at the start;
 * if none is free, the call fails. Nothing allocates after spill_open(). Errors of the file cost
 * copies, are counted, and are logged at most every ten seconds. */
#ifndef TUTTI_SPILL_H
#define TUTTI_SPILL_H

#include "base/system/queue.h"
#include "engine/kv/kv_pool.h"
#include "engine/kv/spill_file.h"

struct spill;

struct spill_options {
    const char *dir;
    uint64_t n_bytes; /* of the file, at most */
    struct spill_identity identity;
    uint64_t hash_seed; /* secret from clients */
    struct bell *bell;  /* of the engine thread: rung after each read and write */
    int delay_us;       /* for tests: added to each read */
};

struct spill_counts {
    uint64_t n_slots, n_copies; /* capacity, and copies present */
    uint64_t n_written, n_read; /* pages */
    uint64_t n_write_errors, n_read_errors;
    uint64_t n_evictions; /* copies evicted */
};

/* Opens the file and loads its index. On success *out is the caller's, for spill_close(). Errors:
 * those of spill_file_open(), and TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status spill_open(struct spill **out, const struct spill_options *options,
                                        struct tutti_error *err);
/* Waits for reads and writes under way. NULL is allowed. */
void spill_close(struct spill *spill);

struct spill_counts spill_counts(const struct spill *spill);

/* Finds the copy of the page with ids [page_tokens] after parent, which is an id or a root. */
bool spill_find(const struct spill *spill, uint64_t parent, const int32_t *ids, struct kv_copy *out);

/* True: the copy was written completely and can be read. */
bool spill_is_written(const struct spill *spill, const struct kv_copy *copy);

/* True: the copy is in the file or being written, and its parent is parent. */
bool spill_holds(const struct spill *spill, const struct kv_copy *copy, uint64_t parent);

/* Marks the prefix that ends with this copy as recently used. */
void spill_touch(struct spill *spill, const struct kv_copy *copy);

/* True: a buffer is free, and no write failed just now. */
bool spill_can_write(const struct spill *spill);

/* Reserves a copy of the page with ids after parent (whose id may be a root) and returns a buffer
 * for its content. The caller fills it, then calls spill_end_write(). *out: the new copy. The page
 * must have no copy yet. NULL: not possible now. Only one write can be between begin and end. */
void *spill_begin_write(struct spill *spill, const struct kv_copy *parent, const int32_t *ids,
                        struct kv_copy *out);
void spill_end_write(struct spill *spill);

/* Starts to read a copy that was found. owner, ticket: returned with the answer. False: not
 * possible now, or the copy is gone. */
MUST_CHECK bool spill_read(struct spill *spill, const struct kv_copy *copy, int32_t owner, uint32_t ticket);

struct spill_answer {
    int32_t owner;
    uint32_t ticket;
    struct kv_copy copy;
    const void *page; /* NULL: it cannot be read */
    int32_t buffer;
};

/* Takes the next completed read, in the order of the calls; false: none yet. The page is valid
 * until spill_done(), which must follow. */
MUST_CHECK bool spill_next(struct spill *spill, struct spill_answer *out);
void spill_done(struct spill *spill, const struct spill_answer *answer);

/* Gives up all reads: started ones may get no answer, and no new ones follow. */
void spill_end_reads(struct spill *spill);

/* spill_is_busy(): a read or write is under way. spill_is_writing(): a page is to be written. */
bool spill_is_busy(const struct spill *spill);
bool spill_is_writing(const struct spill *spill);

/* NULL: index, order and lists agree. Else what is wrong. */
const char *spill_audit(const struct spill *spill);

#endif
