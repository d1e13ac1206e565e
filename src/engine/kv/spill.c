#include "engine/kv/spill.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/system/clock.h"
#include "base/system/os.h"
#include "base/system/thread.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    NONE = -1,
    BUFFERS_BYTES = 64 << 20, /* all buffers, if that gives a number within the next two */
    MIN_BUFFERS = 8,          /* half of them may hold pages to be written */
    MAX_BUFFERS = 256,
    RETRY_US = 10 * 1000 * 1000, /* pause after a failed write */
    QUIET_US = 10 * 1000 * 1000, /* between two log messages */
};

/* A slot of the file. */
struct entry {
    struct spill_record record; /* id 0: free */
    int32_t parent_slot;        /* slot of the parent when this was added; it may be gone since */
    int32_t prev, next;         /* LRU list; free: only next */
    int32_t next_in_bucket;
    int32_t n_reads; /* under way; the slot must not be overwritten */
    bool is_written;
};

struct job {
    bool is_write;
    int32_t slot, buffer;
    struct spill_record record;
    int32_t owner;
    uint32_t ticket;
    enum tutti_status status; /* set when it is done */
};

struct spill {
    struct spill_options options;

    /* ---- engine thread ---- */
    struct entry *entries; /* [counts.n_slots] */
    int32_t *ids;          /* [counts.n_slots][page_tokens]: of the records; a job's are not changed */
    int32_t *buckets;      /* hash table by parent and ids: slot + 1 of each bucket's first, or 0 */
    uint64_t bucket_mask;
    int32_t free_head;
    int32_t oldest, newest;
    int32_t last_added; /* the slot added last, if no copy was used since: its prefix is the newest */
    uint64_t next_id;
    int32_t *free_buffers; /* [n_buffers] a stack */
    int n_buffers, n_free_buffers, n_writing;
    struct job writing; /* between spill_begin_write() and spill_end_write() */
    uint64_t retry_us;  /* no write before this time */
    struct spill_counts counts;

    /* ---- between the two threads ---- */
    uint8_t *buffers;
    /* struct job, to the file thread; reads first, because sequences wait for them */
    struct queue *reads, *writes;
    struct queue *done; /* struct job, back */
    struct bell bell;   /* wakes the file thread */
    atomic_bool is_stopping, has_no_reader;
    pthread_t thread;
    bool has_thread;

    /* ---- file thread ---- */
    struct spill_file *file;
    uint64_t log_us; /* of the last message */
    uint64_t n_unlogged;
};

/* ---- file thread ---- */

static void complain(struct spill *s, const struct tutti_error *err)
{
    uint64_t now_us = clock_now_us();
    if (s->log_us != 0 && now_us - s->log_us < QUIET_US) {
        s->n_unlogged++;
        return;
    }
    log_warn("KV spill: %s; the page is recomputed when it is needed", err->text);
    if (s->n_unlogged > 0)
        log_warn("KV spill: %" PRIu64 " further failures since the last message", s->n_unlogged);
    s->log_us = now_us;
    s->n_unlogged = 0;
}

static void *buffer_at(const struct spill *s, int32_t buffer)
{
    return s->buffers + (size_t)buffer * (size_t)s->options.identity.page_bytes;
}

static void run_job(struct spill *s, struct job job)
{
    struct tutti_error err = { 0 };
    void *page = buffer_at(s, job.buffer);
    if (s->options.delay_us > 0 && !job.is_write)
        usleep((useconds_t)s->options.delay_us);
    job.status = job.is_write ? spill_file_write(s->file, job.slot, &job.record, page, &err)
                              : spill_file_read(s->file, job.slot, &job.record, page, &err);
    if (job.status != TUTTI_OK)
        complain(s, &err);
    bool is_pushed = queue_push(s->done, &job); /* its capacity is the number of buffers */
    assert(is_pushed);
    (void)is_pushed;
    queue_publish(s->done);
    bell_ring(s->options.bell);
}

static void *io_main(void *arg)
{
    struct spill *s = arg;
    os_name_thread("tutti-spill");
    for (;;) {
        unsigned ticket = bell_ticket(&s->bell);
        /* Loaded before the queues: no job is added after it is set. */
        bool is_stopping = atomic_load(&s->is_stopping);
        struct queue *queue = queue_front(s->reads) ? s->reads : s->writes;
        const struct job *job = queue_front(queue);
        if (job) {
            if (job->is_write || !atomic_load(&s->has_no_reader))
                run_job(s, *job);
            queue_pop(queue);
        } else if (is_stopping) {
            return NULL;
        } else {
            bell_wait(&s->bell, ticket);
        }
    }
}

/* Starts a thread with all signals blocked: exceeding the process' file size limit raises SIGXFSZ
 * in the thread that writes. */
static enum tutti_status start_thread(pthread_t *thread, void *(*entry)(void *), void *arg,
                                      struct tutti_error *err)
{
    int rc = thread_start(thread, entry, arg);
    return rc == 0 ? TUTTI_OK
                   : error_set(err, TUTTI_E_MEMORY, "cannot create the spill thread: %s", strerror(rc));
}

/* ---- LRU list ---- */

static bool is_at(const struct spill *s, uint64_t id, int32_t slot)
{
    return id != 0 && id < SPILL_ROOT && s->entries[slot].record.id == id;
}

static void use_list_remove(struct spill *s, int32_t slot)
{
    const struct entry *e = &s->entries[slot];
    *(e->prev != NONE ? &s->entries[e->prev].next : &s->oldest) = e->next;
    *(e->next != NONE ? &s->entries[e->next].prev : &s->newest) = e->prev;
}

/* Inserts slot before next; NONE: as the newest. */
static void use_list_add(struct spill *s, int32_t slot, int32_t next)
{
    struct entry *e = &s->entries[slot];
    e->next = next;
    e->prev = next != NONE ? s->entries[next].prev : s->newest;
    *(e->prev != NONE ? &s->entries[e->prev].next : &s->oldest) = slot;
    *(next != NONE ? &s->entries[next].prev : &s->newest) = slot;
}

/* Moves a prefix to the newest end, from its last page to its first, so that the first is the
 * newest. */
static void touch_prefix(struct spill *s, int32_t slot)
{
    for (;;) {
        const struct entry *e = &s->entries[slot];
        use_list_remove(s, slot);
        use_list_add(s, slot, NONE);
        if (!is_at(s, e->record.parent, e->parent_slot))
            return;
        slot = e->parent_slot;
    }
}

void spill_touch(struct spill *s, const struct kv_copy *copy)
{
    if (!is_at(s, copy->id, copy->slot))
        return;
    touch_prefix(s, copy->slot);
    s->last_added = NONE;
}

/* ---- the index ---- */

static size_t spill_ids_bytes(const struct spill *s)
{
    return (size_t)s->options.identity.page_tokens * sizeof *s->ids;
}

static int32_t *ids_of(const struct spill *s, int32_t slot)
{
    return s->ids + (size_t)slot * (size_t)s->options.identity.page_tokens;
}

static int32_t *bucket_of(const struct spill *s, uint64_t parent, const int32_t *ids)
{
    uint64_t seed = s->options.hash_seed ^ mix64(parent);
    uint64_t hash = hash64(seed, ids, spill_ids_bytes(s));
    return &s->buckets[hash & s->bucket_mask];
}

static int32_t find_entry(const struct spill *s, uint64_t parent, const int32_t *ids)
{
    int32_t slot = *bucket_of(s, parent, ids) - 1;
    for (; slot != NONE; slot = s->entries[slot].next_in_bucket) {
        const struct spill_record *r = &s->entries[slot].record;
        if (r->parent == parent && memcmp(r->ids, ids, spill_ids_bytes(s)) == 0)
            return slot;
    }
    return NONE;
}

static void spill_put_free(struct spill *s, int32_t slot)
{
    s->entries[slot] = (struct entry){ .next = s->free_head };
    s->free_head = slot;
}

/* Adds a slot that is in no list; it and its parents, if they are there, become the newest. */
static void add_entry(struct spill *s, int32_t slot, const struct spill_record *record, int32_t parent_slot)
{
    struct entry *e = &s->entries[slot];
    int32_t *bucket = bucket_of(s, record->parent, record->ids);
    *e = (struct entry){ .record = *record, .parent_slot = parent_slot, .next_in_bucket = *bucket - 1 };
    *bucket = slot + 1;
    bool has_parent = is_at(s, record->parent, parent_slot);
    if (has_parent && s->last_added != parent_slot)
        touch_prefix(s, parent_slot);
    use_list_add(s, slot, has_parent ? parent_slot : NONE);
    s->last_added = slot;
    s->counts.n_copies++;
}

static void drop_entry(struct spill *s, int32_t slot)
{
    struct entry *e = &s->entries[slot];
    int32_t *link = bucket_of(s, e->record.parent, e->record.ids);
    if (*link - 1 == slot) {
        *link = e->next_in_bucket + 1;
    } else {
        int32_t at = *link - 1;
        while (s->entries[at].next_in_bucket != slot)
            at = s->entries[at].next_in_bucket;
        s->entries[at].next_in_bucket = e->next_in_bucket;
    }
    use_list_remove(s, slot);
    spill_put_free(s, slot);
    if (s->last_added == slot)
        s->last_added = NONE;
    s->counts.n_copies--;
}

bool spill_find(const struct spill *s, uint64_t parent, const int32_t *ids, struct kv_copy *out)
{
    int32_t slot = find_entry(s, parent, ids);
    if (slot == NONE)
        return false;
    *out = (struct kv_copy){ .id = s->entries[slot].record.id, .slot = slot };
    return true;
}

bool spill_is_written(const struct spill *s, const struct kv_copy *copy)
{
    return is_at(s, copy->id, copy->slot) && s->entries[copy->slot].is_written;
}

bool spill_holds(const struct spill *s, const struct kv_copy *copy, uint64_t parent)
{
    return is_at(s, copy->id, copy->slot) && s->entries[copy->slot].record.parent == parent;
}

/* ---- opening ---- */

struct opening {
    struct spill *spill;
    enum tutti_status status;
    struct tutti_error error;
    char started_anew[128];
};

static bool reserve_index(struct spill *s)
{
    size_t n_slots = (size_t)spill_file_n_slots(s->file), n_buckets = 16;
    while (n_buckets < 2 * n_slots)
        n_buckets *= 2;
    s->entries = calloc(n_slots, sizeof *s->entries);
    s->ids = calloc(n_slots, spill_ids_bytes(s));
    s->buckets = calloc(n_buckets, sizeof *s->buckets);
    s->bucket_mask = n_buckets - 1;
    s->counts.n_slots = n_slots;
    return s->entries && s->ids && s->buckets;
}

static bool reserve_buffers(struct spill *s)
{
    size_t page_bytes = (size_t)s->options.identity.page_bytes, n = BUFFERS_BYTES / page_bytes, n_bytes;
    n = n < MIN_BUFFERS ? MIN_BUFFERS : n > MAX_BUFFERS ? MAX_BUFFERS : n;
    if (__builtin_mul_overflow(n, page_bytes, &n_bytes))
        return false;
    s->buffers = malloc(n_bytes);
    s->free_buffers = calloc(n, sizeof *s->free_buffers);
    if (!s->buffers || !s->free_buffers)
        return false;
    for (size_t i = 0; i < n; i++)
        s->free_buffers[i] = (int32_t)(n - 1 - i);
    s->n_buffers = s->n_free_buffers = (int)n;
    return true;
}

struct place {
    uint64_t id;
    int32_t slot;
};

static int compare_places(const void *a, const void *b)
{
    uint64_t x = ((const struct place *)a)->id, y = ((const struct place *)b)->id;
    return (x > y) - (x < y);
}

/* Builds the LRU list from the loaded records: a page is newer than its parent; a page without a valid
 * parent is dropped. places [n] by id. */
static void link_loaded(struct spill *s, const struct place *places, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        int32_t slot = places[i].slot;
        struct spill_record record = s->entries[slot].record;
        struct place wanted = { .id = record.parent };
        const struct place *parent = record.parent < SPILL_ROOT && i > 0
                                         ? bsearch(&wanted, places, i, sizeof *places, compare_places)
                                         : NULL;
        bool is_linked = record.parent >= SPILL_ROOT || (parent && s->entries[parent->slot].is_written);
        bool is_twice = (i > 0 && places[i - 1].id == record.id) ||
                        find_entry(s, record.parent, record.ids) != NONE;
        if (!is_linked || is_twice) {
            s->entries[slot].record.id = 0;
            continue;
        }
        add_entry(s, slot, &record, parent ? parent->slot : NONE);
        s->entries[slot].is_written = true;
    }
    s->next_id = n > 0 ? places[n - 1].id + 1 : 1;
}

static enum tutti_status spill_load(struct spill *s, struct tutti_error *err)
{
    int32_t n_slots = spill_file_n_slots(s->file);
    struct place *places = NULL;
    size_t n = 0, room = 0;
    bool is_end = false;
    enum tutti_status st = TUTTI_OK;
    for (int32_t first = 0; first < n_slots && !is_end && st == TUTTI_OK; first += SPILL_SEGMENT_SLOTS) {
        struct spill_record records[SPILL_SEGMENT_SLOTS];
        int32_t left = n_slots - first, n_here = left < SPILL_SEGMENT_SLOTS ? left : SPILL_SEGMENT_SLOTS;
        st = spill_file_load(s->file, first, n_here, records, ids_of(s, first), &is_end, err);
        if (st == TUTTI_OK && n + SPILL_SEGMENT_SLOTS > room) {
            room = 2 * room + SPILL_SEGMENT_SLOTS;
            struct place *more = realloc(places, room * sizeof *places);
            if (!more)
                st = error_set(err, TUTTI_E_MEMORY, "index of spilled pages: out of memory");
            else
                places = more;
        }
        for (int i = 0; i < n_here && st == TUTTI_OK; i++) {
            if (records[i].id == 0)
                continue;
            s->entries[first + i].record = records[i];
            places[n++] = (struct place){ records[i].id, first + i };
        }
    }
    if (st == TUTTI_OK) {
        if (n > 0)
            qsort(places, n, sizeof *places, compare_places);
        link_loaded(s, places, n);
        for (int32_t slot = n_slots; slot-- > 0;)
            if (s->entries[slot].record.id == 0)
                spill_put_free(s, slot);
    }
    free(places);
    return st;
}

/* Runs on a thread of its own, with signals blocked. */
static void *open_main(void *arg)
{
    struct opening *o = arg;
    struct spill *s = o->spill;
    o->status = spill_file_open(&s->file, s->options.dir, s->options.n_bytes, &s->options.identity,
                                o->started_anew, sizeof o->started_anew, &o->error);
    if (o->status == TUTTI_OK && (!reserve_index(s) || !reserve_buffers(s)))
        o->status = error_set(&o->error, TUTTI_E_MEMORY, "index of %d spilled pages: out of memory",
                              spill_file_n_slots(s->file));
    if (o->status == TUTTI_OK)
        o->status = spill_load(s, &o->error);
    return NULL;
}

static enum tutti_status open_file(struct spill *s, struct tutti_error *err)
{
    struct opening opening = { .spill = s };
    pthread_t thread;
    enum tutti_status st = start_thread(&thread, open_main, &opening, err);
    if (st != TUTTI_OK)
        return st;
    pthread_join(thread, NULL);
    if (opening.status != TUTTI_OK && err)
        *err = opening.error;
    if (opening.status == TUTTI_OK && opening.started_anew[0])
        log_warn("KV spill: %s: %s; starting with an empty file", s->options.dir, opening.started_anew);
    return opening.status;
}

enum tutti_status spill_open(struct spill **out, const struct spill_options *options, struct tutti_error *err)
{
    struct spill *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(err, TUTTI_E_MEMORY, "spilled pages: out of memory");
    s->options = *options;
    s->oldest = s->newest = s->free_head = s->last_added = NONE;
    enum tutti_status st = open_file(s, err);
    size_t n = (size_t)s->n_buffers;
    if (st == TUTTI_OK)
        st = queue_new(&s->reads, n, sizeof(struct job), err);
    if (st == TUTTI_OK)
        st = queue_new(&s->writes, n, sizeof(struct job), err);
    if (st == TUTTI_OK)
        st = queue_new(&s->done, n, sizeof(struct job), err);
    if (st == TUTTI_OK)
        st = bell_init(&s->bell, err);
    if (st == TUTTI_OK) {
        st = start_thread(&s->thread, io_main, s, err);
        s->has_thread = st == TUTTI_OK;
    }
    if (st != TUTTI_OK) {
        spill_close(s);
        return st;
    }
    s->options.dir = NULL; /* borrowed from the caller */
    s->last_added = NONE;
    *out = s;
    return TUTTI_OK;
}

void spill_close(struct spill *s)
{
    if (!s)
        return;
    if (s->has_thread) {
        spill_end_reads(s);
        atomic_store(&s->is_stopping, true);
        bell_ring(&s->bell);
        pthread_join(s->thread, NULL);
    }
    bell_clear(&s->bell);
    queue_free(s->reads);
    queue_free(s->writes);
    queue_free(s->done);
    spill_file_close(s->file);
    free(s->free_buffers);
    free(s->buffers);
    free(s->buckets);
    free(s->ids);
    free(s->entries);
    free(s);
}

struct spill_counts spill_counts(const struct spill *s)
{
    return s->counts;
}

/* ---- jobs ---- */

static void push_job(struct spill *s, struct queue *queue, const struct job *job)
{
    bool is_pushed = queue_push(queue, job); /* its capacity is the number of buffers */
    assert(is_pushed);
    (void)is_pushed;
    queue_publish(queue);
    bell_ring(&s->bell);
}

/* A free slot, or the least recently used one, unless it is being read or is the parent of the new
 * page. */
static int32_t take_slot(struct spill *s, const struct kv_copy *parent)
{
    if (s->free_head == NONE) {
        int32_t victim = s->oldest;
        const struct entry *e = &s->entries[victim];
        if (!e->is_written || e->n_reads > 0 || e->record.id == parent->id)
            return NONE;
        drop_entry(s, victim);
        s->counts.n_evictions++;
    }
    int32_t slot = s->free_head;
    s->free_head = s->entries[slot].next;
    return slot;
}

bool spill_can_write(const struct spill *s)
{
    return s->n_free_buffers > 0 && s->n_writing < s->n_buffers / 2 && clock_now_us() >= s->retry_us;
}

void *spill_begin_write(struct spill *s, const struct kv_copy *parent, const int32_t *ids,
                        struct kv_copy *out)
{
    assert(find_entry(s, parent->id, ids) == NONE);
    if (!spill_can_write(s))
        return NULL;
    int32_t slot = take_slot(s, parent);
    if (slot == NONE)
        return NULL;
    struct spill_record record = { .id = s->next_id++, .parent = parent->id, .ids = ids_of(s, slot) };
    memcpy(ids_of(s, slot), ids, spill_ids_bytes(s));
    add_entry(s, slot, &record, parent->slot);
    int32_t buffer = s->free_buffers[--s->n_free_buffers];
    s->n_writing++;
    s->writing = (struct job){ .is_write = true, .slot = slot, .buffer = buffer, .record = record };
    *out = (struct kv_copy){ .id = record.id, .slot = slot };
    return buffer_at(s, buffer);
}

void spill_end_write(struct spill *s)
{
    push_job(s, s->writes, &s->writing);
}

bool spill_read(struct spill *s, const struct kv_copy *copy, int32_t owner, uint32_t ticket)
{
    if (!spill_is_written(s, copy) || s->n_free_buffers == 0)
        return false;
    struct entry *e = &s->entries[copy->slot];
    e->n_reads++;
    struct job job = { .slot = copy->slot,
                       .buffer = s->free_buffers[--s->n_free_buffers],
                       .record = e->record,
                       .owner = owner,
                       .ticket = ticket };
    push_job(s, s->reads, &job);
    return true;
}

static void note_written(struct spill *s, const struct job *job)
{
    s->n_writing--;
    s->free_buffers[s->n_free_buffers++] = job->buffer;
    if (job->status == TUTTI_OK) {
        s->entries[job->slot].is_written = true;
        s->counts.n_written++;
        return;
    }
    drop_entry(s, job->slot);
    s->counts.n_write_errors++;
    s->retry_us = clock_now_us() + RETRY_US;
}

bool spill_next(struct spill *s, struct spill_answer *out)
{
    for (const struct job *front; (front = queue_front(s->done));) {
        struct job job = *front;
        queue_pop(s->done);
        if (job.is_write) {
            note_written(s, &job);
            continue;
        }
        bool is_good = job.status == TUTTI_OK;
        s->entries[job.slot].n_reads--;
        s->counts.n_read += is_good;
        s->counts.n_read_errors += !is_good;
        *out = (struct spill_answer){ .owner = job.owner,
                                      .ticket = job.ticket,
                                      .copy = { .id = job.record.id, .slot = job.slot },
                                      .page = is_good ? buffer_at(s, job.buffer) : NULL,
                                      .buffer = job.buffer };
        if (!is_good && s->entries[job.slot].n_reads == 0)
            drop_entry(s, job.slot);
        return true;
    }
    return false;
}

void spill_done(struct spill *s, const struct spill_answer *answer)
{
    s->free_buffers[s->n_free_buffers++] = answer->buffer;
}

bool spill_is_busy(const struct spill *s)
{
    return s->n_free_buffers < s->n_buffers;
}

void spill_end_reads(struct spill *s)
{
    atomic_store(&s->has_no_reader, true);
}

bool spill_is_writing(const struct spill *s)
{
    return s->n_writing > 0;
}

/* ---- audit ---- */

const char *spill_audit(const struct spill *s)
{
    static _Thread_local char text[160];
    uint64_t n_free = 0, n_used = 0;
    int32_t prev = NONE;
    for (int32_t i = s->free_head; i != NONE && n_free <= s->counts.n_slots; i = s->entries[i].next, n_free++)
        if (s->entries[i].record.id != 0) {
            snprintf(text, sizeof text, "spilled page %d: is in the free list", i);
            return text;
        }
    for (int32_t i = s->oldest; i != NONE && n_used <= s->counts.n_slots; prev = i, i = s->entries[i].next) {
        const struct entry *e = &s->entries[i];
        n_used++;
        if (e->record.id == 0 || e->prev != prev || find_entry(s, e->record.parent, e->record.ids) != i) {
            snprintf(text, sizeof text, "spilled page %d: id %" PRIu64 ", found in slot %d", i, e->record.id,
                     find_entry(s, e->record.parent, e->record.ids));
            return text;
        }
    }
    if (n_used != s->counts.n_copies || n_free + n_used > s->counts.n_slots || prev != s->newest) {
        snprintf(text, sizeof text,
                 "spilled pages: %" PRIu64 " in the LRU list, %" PRIu64 " free, of %" PRIu64, n_used, n_free,
                 s->counts.n_slots);
        return text;
    }
    return NULL;
}
