/* Pages outside the pool: the index of a spill file (spill_file.h), and the thread that reads and writes it.
 *
 * A page is found as the pool finds it: by the one before it, and by its own tokens, which are compared. The one before is named
 * by the id of its copy, which no other copy ever has; so an id names a whole beginning, across restarts too. The first page
 * of an adapter stands behind that adapter's root, a number that its weights decide.
 *
 * The copies used least recently make room. A use counts for the whole beginning, and a copy lies in that order right before the one that
 * it stands behind; so beginnings are shortened from their end.
 *
 * All functions are the engine thread's. It never waits for the file: bytes go through buffers that are there from the
 * start; where none is free, it is told so. Nothing allocates after spill_open(). What goes wrong with the file costs copies, is
 * counted, and is logged at most every ten seconds. */
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
    uint64_t hash_seed; /* unknown to those who write prompts */
    struct bell *bell;  /* of the engine thread: rung when something was written or read */
    int delay_us;       /* for tests: of each read */
};

struct spill_counts {
    uint64_t n_slots, n_copies; /* that fit, that are there */
    uint64_t n_written, n_read; /* pages */
    uint64_t n_write_errors, n_read_errors;
    uint64_t n_evictions; /* copies that made room */
};

/* Opens the file and reads what it holds. On success *out is the caller's, for spill_close(). Errors: as spill_file_open(), and
 * TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status spill_open(struct spill **out, const struct spill_options *options,
                                        struct tutti_error *err);
/* Waits until what was begun is done. NULL is allowed. */
void spill_close(struct spill *spill);

struct spill_counts spill_counts(const struct spill *spill);

/* The copy of the page that holds ids [KV_PAGE_TOKENS] behind parent, an id or a root. */
bool spill_find(const struct spill *spill, uint64_t parent, const int32_t *ids, struct kv_copy *out);

/* It is in the file as a whole: it can be read. */
bool spill_is_written(const struct spill *spill, const struct kv_copy *copy);

/* It is there still, or on its way to the file, and stands behind parent. */
bool spill_holds(const struct spill *spill, const struct kv_copy *copy, uint64_t parent);

/* The beginning that ends with this copy was used. */
void spill_touch(struct spill *spill, const struct kv_copy *copy);

/* There is a buffer, and writing did not fail just now. */
bool spill_can_write(const struct spill *spill);

/* Room for the bytes of a page that holds ids behind parent (its id may be a root), to be filled before spill_end_write(), and what
 * its copy is called. There is none yet. NULL: not now. At most one is between begin and end. */
void *spill_begin_write(struct spill *spill, const struct kv_copy *parent, const int32_t *ids,
                        struct kv_copy *out);
void spill_end_write(struct spill *spill);

/* Asks for the bytes of a copy that was found. owner, ticket: come back with the answer. False: not now, or it is gone. */
MUST_CHECK bool spill_read(struct spill *spill, const struct kv_copy *copy, int32_t owner, uint32_t ticket);

struct spill_answer {
    int32_t owner;
    uint32_t ticket;
    struct kv_copy copy;
    const void *page; /* NULL: it cannot be read */
    int32_t buffer;
};

/* The next answer, in the order of the questions; false: none has come. The page is lent until spill_done(), which must follow. */
MUST_CHECK bool spill_next(struct spill *spill, struct spill_answer *out);
void spill_done(struct spill *spill, const struct spill_answer *answer);

/* Nobody waits for pages any more: what was asked for need not be answered, nothing will be asked. */
void spill_end_reads(struct spill *spill);

/* Something was begun and is not done; a page was to be written, and is not. */
bool spill_is_busy(const struct spill *spill);
bool spill_is_writing(const struct spill *spill);

/* NULL: index, order and lists agree. Else what is wrong. */
const char *spill_audit(const struct spill *spill);

#endif
