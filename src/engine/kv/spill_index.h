/* The index of spilled pages: finds copies of pages by content, and keeps the order in which they are evicted.
 *
 * A copy is in host memory (a frame), in the spill file (a slot), or in both. It is found as the pool finds a page: by its
 * parent and by its own tokens, which are compared. The parent is named by the id of its copy. Ids are never reused, so
 * an id identifies a whole prefix, across restarts too. The parent of the first page is the root of its adapter and
 * tenant, a number that is no id.
 *
 * Two lists are in order of use: of all copies, and of those in host memory. A use counts for the whole prefix, and a copy
 * is ordered right before its parent, so prefixes are evicted from their end. Nothing allocates after
 * spill_index_init(). */
#ifndef TUTTI_SPILL_INDEX_H
#define TUTTI_SPILL_INDEX_H

#include "engine/kv/kv_pool.h"
#include "engine/kv/spill_file.h"

enum { SPILL_NONE = -1 };
enum spill_list { SPILL_ALL, SPILL_HOST, N_SPILL_LISTS };

struct spill_entry {
    struct spill_record record; /* id 0: free */
    int32_t parent;             /* entry of the parent when this was added; it may be gone since */
    struct {
        int32_t prev, next; /* towards the oldest, and the newest; a free entry has SPILL_ALL's next */
    } links[N_SPILL_LISTS];
    int32_t next_in_bucket;
    int32_t slot, frame; /* SPILL_NONE: none */
    bool is_written;     /* the slot has the page; else it is being written */
    bool is_filled;      /* the frame has the page; else it is on its way there */
    int32_t n_uses;      /* copies, reads and writes under way: it must not be dropped */
};

struct spill_index {
    struct spill_entry *entries; /* [n_entries] */
    int32_t *ids;                /* [n_entries][page_tokens]: of the records */
    int32_t *buckets;            /* hash table by parent and ids: entry + 1 of each bucket's first, or 0 */
    uint64_t bucket_mask, hash_seed;
    size_t ids_bytes; /* of a page */
    int32_t n_entries, free_head;
    struct {
        int32_t oldest, newest;
    } lists[N_SPILL_LISTS];
    int32_t last_added; /* the entry added last, if no copy was used since: its prefix is the newest */
    int32_t *free_slots, *free_frames; /* stacks */
    int32_t n_slots, n_free_slots, n_frames, n_free_frames;
    int32_t n_unwritten; /* slots whose page is on its way to the file */
};

/* All entries and frames are free; slots are not yet (spill_index_free_slots()). False: out of memory. In any case the caller
 * calls spill_index_clear(). */
MUST_CHECK bool spill_index_init(struct spill_index *index, int32_t n_entries, int32_t n_slots,
                                 int32_t n_frames, size_t page_tokens, uint64_t hash_seed);
void spill_index_clear(struct spill_index *index);

int32_t *spill_index_ids(const struct spill_index *index, int32_t entry);

/* The entry with these ids after parent; SPILL_NONE: there is none. */
int32_t spill_index_find(const struct spill_index *index, uint64_t parent, const int32_t *ids);
/* Whether the entry is that of this id. */
bool spill_index_is(const struct spill_index *index, uint64_t id, int32_t entry);

/* Takes a free entry that spill_index_add() is to be called for; SPILL_NONE: there is none. */
int32_t spill_index_take(struct spill_index *index);
/* Adds an entry that is in no list, without slot and frame; record->ids: those of the entry. It and its parents, if they are
 * there, become the newest. */
void spill_index_add(struct spill_index *index, int32_t entry, const struct spill_record *record,
                     int32_t parent);
/* Drops an entry that has no uses, with its slot and frame. */
void spill_index_drop(struct spill_index *index, int32_t entry);
/* Makes the prefix that ends with this entry the newest. */
void spill_index_touch(struct spill_index *index, int32_t entry);

/* A free frame, or slot, becomes the entry's; there must be one. The slot is unwritten until spill_index_set_written(). */
void spill_index_take_frame(struct spill_index *index, int32_t entry);
void spill_index_take_slot(struct spill_index *index, int32_t entry);
void spill_index_set_written(struct spill_index *index, int32_t entry);
void spill_index_drop_frame(struct spill_index *index, int32_t entry);
void spill_index_drop_slot(struct spill_index *index, int32_t entry);

/* After loading: entries without a record are free, and slots without an entry; entry i has slot i. */
void spill_index_free_rest(struct spill_index *index);

/* NULL: hash table, lists and stacks agree. Else what is wrong. */
const char *spill_index_audit(const struct spill_index *index);

#endif
