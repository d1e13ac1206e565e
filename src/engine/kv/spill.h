/* Copies of KV pages outside of the pool: in host memory, in the spill file (spill_file.h), or in both. Runs the thread that
 * reads and writes the file.
 *
 * Content goes through frames, pieces of host memory of the size of a page. A page comes into a frame from the pool or from
 * the file, and goes from there to the pool or to the file:
 *
 *   keeps_pages: frames are the host tier. A page stays in its frame until another one needs it: the least recently used
 *                one leaves, and is written to the file ahead of that, if there is a file.
 *   else:        frames are on the way to and from the file only. A page is written as soon as it is in its frame.
 *
 * Eviction is LRU in both tiers, by whole prefixes from their end (spill_index.h).
 *
 * Engine thread only. It never waits for the file: if no frame is free, the call fails. Nothing allocates after spill_open().
 * Errors of the file cost copies, are counted, and are logged at most every ten seconds. */
#ifndef TUTTI_SPILL_H
#define TUTTI_SPILL_H

#include "base/system/queue.h"
#include "engine/kv/kv_pool.h"
#include "engine/kv/spill_file.h"

struct spill;

struct spill_options {
    const char *dir;  /* of the file; NULL: no file, then keeps_pages is set */
    uint64_t n_bytes; /* of the file, at most */
    /* Without a file only page_bytes and page_tokens count. */
    struct spill_identity identity;
    uint64_t hash_seed; /* secret from clients */
    struct bell *bell;  /* of the engine thread: rung after each read and write */
    int delay_us;       /* for tests: added to each read */
    uint8_t *frames;    /* borrowed: [n_frames][page_bytes] */
    int n_frames;       /* SPILL_MIN_FRAMES or more */
    bool keeps_pages;
};
enum { SPILL_MIN_FRAMES = 8 };

/* Frames that keep reads and writes under way, for pages of this size. */
int spill_moving_frames(uint64_t page_bytes);

struct spill_counts {
    uint64_t n_slots, n_pages;           /* of the file: capacity, and pages in it */
    uint64_t n_host_slots, n_host_pages; /* of the host tier */
    uint64_t n_written, n_read;          /* pages, by the file thread */
    uint64_t n_write_errors, n_read_errors;
    uint64_t n_evictions, n_host_evictions; /* pages evicted from the file, from the host tier */
};

/* Opens the file, if there is one, and loads its index. On success *out is the caller's, for spill_close(). Errors:
 * those of spill_file_open(), and TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status spill_open(struct spill **out, const struct spill_options *options,
                                        struct tutti_error *err);
/* Waits for reads and writes under way. NULL is allowed. */
void spill_close(struct spill *spill);

struct spill_counts spill_counts(const struct spill *spill);

/* Finds the copy of the page with ids [page_tokens] after parent, which is an id or a root. */
bool spill_find(const struct spill *spill, uint64_t parent, const int32_t *ids, struct kv_copy *out);

/* True: the copy is complete in host memory, or in the file. */
bool spill_can_read(const struct spill *spill, const struct kv_copy *copy);

/* True: the copy is there or on its way, and its parent is parent. */
bool spill_holds(const struct spill *spill, const struct kv_copy *copy, uint64_t parent);

/* Marks the prefix that ends with this copy as recently used. */
void spill_touch(struct spill *spill, const struct kv_copy *copy);

/* ---- a use: while a copy has uses, it and its frame stay ---- */

/* True: a frame is free or can be made free, and the file keeps up. */
bool spill_can_write(struct spill *spill);

/* Makes a copy of the page with ids after parent (whose id may be a root), with a use, and returns its frame, to be
 * filled until spill_end_write(). *out: the new copy. The page must have no copy yet. NULL: not possible now. */
void *spill_begin_write(struct spill *spill, const struct kv_copy *parent, const int32_t *ids,
                        struct kv_copy *out);
/* The frame is filled, or cannot be (!is_good: the copy is dropped); ends the use. */
void spill_end_write(struct spill *spill, const struct kv_copy *copy, bool is_good);

/* Adds a use to a copy that is complete in host memory, and returns the page. NULL: it is not there. */
const void *spill_take(struct spill *spill, const struct kv_copy *copy);
void spill_drop(struct spill *spill, const struct kv_copy *copy); /* ends it */

/* Starts to read a copy from the file. owner, ticket: returned with the answer. False: not possible now, or the copy is
 * gone, or it is on its way already. */
MUST_CHECK bool spill_read(struct spill *spill, const struct kv_copy *copy, int32_t owner, uint32_t ticket);

struct spill_answer {
    int32_t owner;
    uint32_t ticket;
    struct kv_copy copy;
    const void *page; /* with a use of the copy, for spill_drop(); NULL: it cannot be read */
};

/* Takes the next completed read, in the order of the calls; false: none yet. */
MUST_CHECK bool spill_next(struct spill *spill, struct spill_answer *out);

/* ---- the end ---- */

/* Gives up all reads: started ones may get no answer, and no new ones follow. From now on every page is written to the
 * file, if there is one. */
void spill_begin_flush(struct spill *spill);
/* After all new copies: starts to write pages of host memory that the file lacks, the newest first, until the file is full of
 * newer ones, or further pages must wait for writes under way: then it is called again. */
void spill_write_back(struct spill *spill);

/* spill_is_busy(): a copy has a use. spill_is_writing(): a page is on its way to the file. */
bool spill_is_busy(const struct spill *spill);
bool spill_is_writing(const struct spill *spill);

/* NULL: index, order and lists agree. Else what is wrong. */
const char *spill_audit(const struct spill *spill);

#endif
