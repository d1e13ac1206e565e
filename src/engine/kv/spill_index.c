#include "engine/kv/spill_index.h"

#include "base/hash.h"
#include "base/rng.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NONE = SPILL_NONE };

bool spill_index_init(struct spill_index *x, int32_t n_entries, int32_t n_slots, int32_t n_frames,
                      size_t page_tokens, uint64_t hash_seed)
{
    size_t n = (size_t)n_entries, n_buckets = 16;
    while (n_buckets < 2 * n)
        n_buckets *= 2;
    *x = (struct spill_index){ .n_entries = n_entries,
                               .n_slots = n_slots,
                               .n_frames = n_frames,
                               .hash_seed = hash_seed,
                               .ids_bytes = page_tokens * sizeof *x->ids,
                               .bucket_mask = n_buckets - 1,
                               .free_head = NONE,
                               .last_added = NONE };
    for (int i = 0; i < N_SPILL_LISTS; i++)
        x->lists[i].oldest = x->lists[i].newest = NONE;
    x->entries = calloc(n, sizeof *x->entries);
    x->ids = calloc(n, x->ids_bytes);
    x->buckets = calloc(n_buckets, sizeof *x->buckets);
    x->free_slots = calloc((size_t)n_slots + 1, sizeof *x->free_slots);
    x->free_frames = calloc((size_t)n_frames + 1, sizeof *x->free_frames);
    if (!x->entries || !x->ids || !x->buckets || !x->free_slots || !x->free_frames)
        return false;
    while (x->n_free_frames < n_frames) {
        x->free_frames[x->n_free_frames] = n_frames - 1 - x->n_free_frames;
        x->n_free_frames++;
    }
    return true;
}

void spill_index_clear(struct spill_index *x)
{
    free(x->entries);
    free(x->ids);
    free(x->buckets);
    free(x->free_slots);
    free(x->free_frames);
}

/* ---- the lists ---- */

static void list_remove(struct spill_index *x, enum spill_list list, int32_t entry)
{
    int32_t prev = x->entries[entry].links[list].prev, next = x->entries[entry].links[list].next;
    *(prev != NONE ? &x->entries[prev].links[list].next : &x->lists[list].oldest) = next;
    *(next != NONE ? &x->entries[next].links[list].prev : &x->lists[list].newest) = prev;
}

/* Inserts entry before next; NONE: as the newest. */
static void list_add(struct spill_index *x, enum spill_list list, int32_t entry, int32_t next)
{
    int32_t prev = next != NONE ? x->entries[next].links[list].prev : x->lists[list].newest;
    x->entries[entry].links[list].prev = prev;
    x->entries[entry].links[list].next = next;
    *(prev != NONE ? &x->entries[prev].links[list].next : &x->lists[list].oldest) = entry;
    *(next != NONE ? &x->entries[next].links[list].prev : &x->lists[list].newest) = entry;
}

bool spill_index_is(const struct spill_index *x, uint64_t id, int32_t entry)
{
    return id != 0 && id < SPILL_ROOT && x->entries[entry].record.id == id;
}

/* Moves a prefix to the newest end, from its last page to its first, so that the first is the
 * newest. */
static void touch_prefix(struct spill_index *x, int32_t entry)
{
    for (;;) {
        const struct spill_entry *e = &x->entries[entry];
        list_remove(x, SPILL_ALL, entry);
        list_add(x, SPILL_ALL, entry, NONE);
        if (e->frame != NONE) {
            list_remove(x, SPILL_HOST, entry);
            list_add(x, SPILL_HOST, entry, NONE);
        }
        if (!spill_index_is(x, e->record.parent, e->parent))
            return;
        entry = e->parent;
    }
}

void spill_index_touch(struct spill_index *x, int32_t entry)
{
    touch_prefix(x, entry);
    x->last_added = NONE;
}

/* ---- the hash table ---- */

int32_t *spill_index_ids(const struct spill_index *x, int32_t entry)
{
    return x->ids + (size_t)entry * (x->ids_bytes / sizeof *x->ids);
}

static int32_t *bucket_of(const struct spill_index *x, uint64_t parent, const int32_t *ids)
{
    uint64_t hash = hash64(x->hash_seed ^ mix64(parent), ids, x->ids_bytes);
    return &x->buckets[hash & x->bucket_mask];
}

int32_t spill_index_find(const struct spill_index *x, uint64_t parent, const int32_t *ids)
{
    int32_t entry = *bucket_of(x, parent, ids) - 1;
    for (; entry != NONE; entry = x->entries[entry].next_in_bucket) {
        const struct spill_record *r = &x->entries[entry].record;
        if (r->parent == parent && memcmp(r->ids, ids, x->ids_bytes) == 0)
            return entry;
    }
    return NONE;
}

static void put_free(struct spill_index *x, int32_t entry)
{
    x->entries[entry] = (struct spill_entry){ .slot = NONE, .frame = NONE };
    x->entries[entry].links[SPILL_ALL].next = x->free_head;
    x->free_head = entry;
}

int32_t spill_index_take(struct spill_index *x)
{
    int32_t entry = x->free_head;
    if (entry != NONE)
        x->free_head = x->entries[entry].links[SPILL_ALL].next;
    return entry;
}

void spill_index_add(struct spill_index *x, int32_t entry, const struct spill_record *record, int32_t parent)
{
    int32_t *bucket = bucket_of(x, record->parent, record->ids);
    x->entries[entry] = (struct spill_entry){
        .record = *record, .parent = parent, .next_in_bucket = *bucket - 1, .slot = NONE, .frame = NONE
    };
    *bucket = entry + 1;
    bool has_parent = spill_index_is(x, record->parent, parent);
    if (has_parent && x->last_added != parent)
        touch_prefix(x, parent);
    list_add(x, SPILL_ALL, entry, has_parent ? parent : NONE);
    x->last_added = entry;
}

void spill_index_drop(struct spill_index *x, int32_t entry)
{
    struct spill_entry *e = &x->entries[entry];
    int32_t *link = bucket_of(x, e->record.parent, e->record.ids);
    assert(e->n_uses == 0);
    if (*link - 1 == entry) {
        *link = e->next_in_bucket + 1;
    } else {
        int32_t at = *link - 1;
        while (x->entries[at].next_in_bucket != entry)
            at = x->entries[at].next_in_bucket;
        x->entries[at].next_in_bucket = e->next_in_bucket;
    }
    if (e->frame != NONE)
        spill_index_drop_frame(x, entry);
    if (e->slot != NONE)
        spill_index_drop_slot(x, entry);
    list_remove(x, SPILL_ALL, entry);
    put_free(x, entry);
    if (x->last_added == entry)
        x->last_added = NONE;
}

/* ---- frames and slots ---- */

void spill_index_take_frame(struct spill_index *x, int32_t entry)
{
    struct spill_entry *e = &x->entries[entry];
    bool is_after_parent = spill_index_is(x, e->record.parent, e->parent) &&
                           x->entries[e->parent].frame != NONE;
    e->frame = x->free_frames[--x->n_free_frames];
    e->is_filled = false;
    list_add(x, SPILL_HOST, entry, is_after_parent ? e->parent : NONE);
}

void spill_index_drop_frame(struct spill_index *x, int32_t entry)
{
    list_remove(x, SPILL_HOST, entry);
    x->free_frames[x->n_free_frames++] = x->entries[entry].frame;
    x->entries[entry].frame = NONE;
    x->entries[entry].is_filled = false;
}

void spill_index_take_slot(struct spill_index *x, int32_t entry)
{
    x->entries[entry].slot = x->free_slots[--x->n_free_slots];
    x->entries[entry].is_written = false;
    x->n_unwritten++;
}

void spill_index_set_written(struct spill_index *x, int32_t entry)
{
    x->entries[entry].is_written = true;
    x->n_unwritten--;
}

void spill_index_drop_slot(struct spill_index *x, int32_t entry)
{
    struct spill_entry *e = &x->entries[entry];
    x->n_unwritten -= !e->is_written;
    x->free_slots[x->n_free_slots++] = e->slot;
    e->slot = NONE;
    e->is_written = false;
}

void spill_index_free_rest(struct spill_index *x)
{
    for (int32_t i = x->n_entries; i-- > 0;) {
        if (x->entries[i].record.id != 0)
            continue;
        put_free(x, i);
        if (i < x->n_slots)
            x->free_slots[x->n_free_slots++] = i;
    }
    x->last_added = NONE;
}

/* ---- audit ---- */

/* Entries of a list; -1: its links disagree. */
static int64_t count_list(const struct spill_index *x, enum spill_list list)
{
    int64_t n = 0;
    int32_t prev = NONE;
    for (int32_t i = x->lists[list].oldest; i != NONE && n <= x->n_entries; n++) {
        if (x->entries[i].links[list].prev != prev)
            return -1;
        prev = i;
        i = x->entries[i].links[list].next;
    }
    return prev == x->lists[list].newest ? n : -1;
}

const char *spill_index_audit(const struct spill_index *x)
{
    static _Thread_local char text[256];
    int64_t n_free = 0, n_frames = 0, n_slots = 0, n_unwritten = 0, n = 0;
    for (int32_t i = x->free_head; i != NONE && n_free <= x->n_entries; n_free++) {
        if (x->entries[i].record.id != 0) {
            snprintf(text, sizeof text, "spilled page %d: is in the free list", i);
            return text;
        }
        i = x->entries[i].links[SPILL_ALL].next;
    }
    for (int32_t i = x->lists[SPILL_ALL].oldest; i != NONE && n <= x->n_entries; n++) {
        const struct spill_entry *e = &x->entries[i];
        n_frames += e->frame != NONE;
        n_slots += e->slot != NONE;
        n_unwritten += e->slot != NONE && !e->is_written;
        if (e->record.id == 0 || spill_index_find(x, e->record.parent, e->record.ids) != i || e->n_uses < 0 ||
            (e->frame == NONE && (e->slot == NONE || e->is_filled)) || (e->slot == NONE && e->is_written)) {
            snprintf(text, sizeof text, "spilled page %d: id %" PRIu64 ", frame %d, slot %d, %d uses", i,
                     e->record.id, e->frame, e->slot, e->n_uses);
            return text;
        }
        i = e->links[SPILL_ALL].next;
    }
    if (count_list(x, SPILL_ALL) == n && count_list(x, SPILL_HOST) == n_frames &&
        n + n_free == x->n_entries && n_frames + x->n_free_frames == x->n_frames &&
        n_slots + x->n_free_slots == x->n_slots && n_unwritten == x->n_unwritten)
        return NULL;
    snprintf(text, sizeof text,
             "spilled pages: %" PRId64 " used and %" PRId64 " free of %d, %" PRId64
             " and %d frames of %d, %" PRId64 " and %d slots of %d, of which %" PRId64
             " are unwritten; counted %d",
             n, n_free, x->n_entries, n_frames, x->n_free_frames, x->n_frames, n_slots, x->n_free_slots,
             x->n_slots, n_unwritten, x->n_unwritten);
    return text;
}
