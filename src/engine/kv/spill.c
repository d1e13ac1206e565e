#include "engine/kv/spill.h"

#include "base/log.h"
#include "base/system/clock.h"
#include "base/system/os.h"
#include "base/system/thread.h"
#include "engine/kv/spill_index.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    NONE = SPILL_NONE,
    NEWEST = -2,
    FRAMES_BYTES = 64 << 20, /* on their way, if that gives a number within the next two */
    MIN_FRAMES = SPILL_MIN_FRAMES,
    MAX_FRAMES = 256,
    AHEAD = 32, /* pages of the host tier that are written before they must leave, and slots looked at */
    AHEAD_AT_END = 1024,         /* of slots, when nothing else is waiting */
    RETRY_US = 10 * 1000 * 1000, /* pause after a failed write */
    QUIET_US = 10 * 1000 * 1000, /* between two log messages */
};

struct job {
    bool is_write;
    int32_t entry, slot, frame;
    struct spill_record record;
    int32_t owner;
    uint32_t ticket;
    enum tutti_status status; /* set when it is done */
};

struct spill {
    struct spill_options options;

    /* ---- engine thread ---- */
    struct spill_index index;
    uint64_t next_id;
    int n_reading;                  /* reads under way */
    int most_reading, most_writing; /* most_writing: of pages on their way to the file */
    uint64_t n_uses;                /* of all copies */
    uint64_t retry_us;              /* no write before this time */
    bool is_flushing;
    int32_t back; /* of spill_write_back(): the next entry; NEWEST: it has not begun */
    struct spill_counts counts;

    /* ---- between the two threads ---- */
    /* struct job, to the file thread; reads first, because sequences wait for them */
    struct queue *reads, *writes;
    struct queue *done; /* struct job, back */
    struct bell bell;   /* wakes the file thread */
    atomic_bool is_stopping, has_no_reader;
    pthread_t thread;
    bool has_thread;

    /* ---- file thread ---- */
    struct spill_file *file; /* NULL: none */
    uint64_t log_us;         /* of the last message */
    uint64_t n_unlogged;
};

int spill_moving_frames(uint64_t page_bytes)
{
    uint64_t n = FRAMES_BYTES / page_bytes;
    return n < MIN_FRAMES ? MIN_FRAMES : n > MAX_FRAMES ? MAX_FRAMES : (int)n;
}

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

static void *frame_at(const struct spill *s, int32_t frame)
{
    return s->options.frames + (size_t)frame * (size_t)s->options.identity.page_bytes;
}

static void run_job(struct spill *s, struct job job)
{
    struct tutti_error err = { 0 };
    void *page = frame_at(s, job.frame);
    if (s->options.delay_us > 0 && !job.is_write)
        usleep((useconds_t)s->options.delay_us);
    job.status = job.is_write ? spill_file_write(s->file, job.slot, &job.record, page, &err)
                              : spill_file_read(s->file, job.slot, &job.record, page, &err);
    if (job.status != TUTTI_OK)
        complain(s, &err);
    bool is_pushed = queue_push(s->done, &job); /* its capacity is that of all jobs */
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

/* ---- finding ---- */

static struct spill_entry *entry_of(const struct spill *s, const struct kv_copy *copy)
{
    return spill_index_is(&s->index, copy->id, copy->entry) ? &s->index.entries[copy->entry] : NULL;
}

bool spill_find(const struct spill *s, uint64_t parent, const int32_t *ids, struct kv_copy *out)
{
    int32_t entry = spill_index_find(&s->index, parent, ids);
    if (entry == NONE)
        return false;
    *out = (struct kv_copy){ .id = s->index.entries[entry].record.id, .entry = entry };
    return true;
}

bool spill_can_read(const struct spill *s, const struct kv_copy *copy)
{
    const struct spill_entry *e = entry_of(s, copy);
    return e && (e->is_filled || e->is_written);
}

bool spill_holds(const struct spill *s, const struct kv_copy *copy, uint64_t parent)
{
    const struct spill_entry *e = entry_of(s, copy);
    return e && e->record.parent == parent;
}

void spill_touch(struct spill *s, const struct kv_copy *copy)
{
    if (entry_of(s, copy))
        spill_index_touch(&s->index, copy->entry);
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
    const struct spill_options *o = &s->options;
    int32_t n_slots = s->file ? spill_file_n_slots(s->file) : 0, n_kept = o->keeps_pages ? o->n_frames : 0;
    return spill_index_init(&s->index, n_slots + n_kept, n_slots, o->n_frames,
                            (size_t)o->identity.page_tokens, o->hash_seed);
}

struct place {
    uint64_t id;
    int32_t entry;
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
    struct spill_index *x = &s->index;
    for (size_t i = 0; i < n; i++) {
        int32_t entry = places[i].entry;
        struct spill_record record = x->entries[entry].record;
        struct place wanted = { .id = record.parent };
        const struct place *parent = record.parent < SPILL_ROOT && i > 0
                                         ? bsearch(&wanted, places, i, sizeof *places, compare_places)
                                         : NULL;
        bool is_linked = record.parent >= SPILL_ROOT || (parent && x->entries[parent->entry].is_written);
        bool is_twice = (i > 0 && places[i - 1].id == record.id) ||
                        spill_index_find(x, record.parent, record.ids) != NONE;
        if (!is_linked || is_twice) {
            x->entries[entry].record.id = 0;
            continue;
        }
        spill_index_add(x, entry, &record, parent ? parent->entry : NONE);
        x->entries[entry].slot = entry;
        x->entries[entry].is_written = true;
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
        st = spill_file_load(s->file, first, n_here, records, spill_index_ids(&s->index, first), &is_end,
                             err);
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
            s->index.entries[first + i].record = records[i];
            places[n++] = (struct place){ records[i].id, first + i };
        }
    }
    if (st == TUTTI_OK) {
        if (n > 0)
            qsort(places, n, sizeof *places, compare_places);
        link_loaded(s, places, n);
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
    if (o->status == TUTTI_OK && !reserve_index(s))
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

/* The file, its thread, and the queues between them. */
static enum tutti_status start_file(struct spill *s, struct tutti_error *err)
{
    size_t n = (size_t)s->most_reading;
    enum tutti_status st = open_file(s, err);
    if (st == TUTTI_OK)
        st = queue_new(&s->reads, n, sizeof(struct job), err);
    if (st == TUTTI_OK)
        st = queue_new(&s->writes, n, sizeof(struct job), err);
    if (st == TUTTI_OK)
        st = queue_new(&s->done, 2 * n, sizeof(struct job), err);
    if (st == TUTTI_OK)
        st = bell_init(&s->bell, err);
    if (st == TUTTI_OK) {
        st = start_thread(&s->thread, io_main, s, err);
        s->has_thread = st == TUTTI_OK;
    }
    return st;
}

enum tutti_status spill_open(struct spill **out, const struct spill_options *options, struct tutti_error *err)
{
    struct spill *s = calloc(1, sizeof *s);
    enum tutti_status st = TUTTI_OK;
    if (!s)
        return error_set(err, TUTTI_E_MEMORY, "spilled pages: out of memory");
    assert(options->n_frames >= MIN_FRAMES && (options->dir || options->keeps_pages));
    s->options = *options;
    s->next_id = 1;
    s->back = NEWEST;
    s->most_reading = options->n_frames < MAX_FRAMES ? options->n_frames : MAX_FRAMES;
    s->most_writing = s->most_reading / 2;
    if (options->dir)
        st = start_file(s, err);
    else if (!reserve_index(s))
        st = error_set(err, TUTTI_E_MEMORY, "index of %d spilled pages: out of memory", options->n_frames);
    if (st != TUTTI_OK) {
        spill_close(s);
        return st;
    }
    spill_index_free_rest(&s->index);
    s->options.dir = NULL; /* borrowed from the caller */
    *out = s;
    return TUTTI_OK;
}

void spill_close(struct spill *s)
{
    if (!s)
        return;
    if (s->has_thread) {
        spill_begin_flush(s);
        atomic_store(&s->is_stopping, true);
        bell_ring(&s->bell);
        pthread_join(s->thread, NULL);
    }
    bell_clear(&s->bell);
    queue_free(s->reads);
    queue_free(s->writes);
    queue_free(s->done);
    if (s->file)
        spill_file_close(s->file);
    spill_index_clear(&s->index);
    free(s);
}

struct spill_counts spill_counts(const struct spill *s)
{
    struct spill_counts counts = s->counts;
    const struct spill_index *x = &s->index;
    counts.n_slots = (uint64_t)x->n_slots;
    counts.n_pages = (uint64_t)(x->n_slots - x->n_free_slots);
    if (s->options.keeps_pages) {
        counts.n_host_slots = (uint64_t)x->n_frames;
        counts.n_host_pages = (uint64_t)(x->n_frames - x->n_free_frames);
    }
    return counts;
}

/* ---- uses ---- */

static void add_use(struct spill *s, int32_t entry)
{
    s->index.entries[entry].n_uses++;
    s->n_uses++;
}

static void drop_entry(struct spill *s, int32_t entry)
{
    if (s->back == entry)
        s->back = s->index.entries[entry].links[SPILL_ALL].prev;
    spill_index_drop(&s->index, entry);
}

/* Without other uses, a page stays where it may: in its frame if frames are kept, else in the file, else nowhere. */
static void drop_use(struct spill *s, int32_t entry)
{
    struct spill_entry *e = &s->index.entries[entry];
    s->n_uses--;
    if (--e->n_uses > 0 || (s->options.keeps_pages && e->is_filled))
        return;
    if (!e->is_written)
        drop_entry(s, entry);
    else if (e->frame != NONE)
        spill_index_drop_frame(&s->index, entry);
}

/* ---- writing to the file ---- */

static void push_job(struct spill *s, struct queue *queue, const struct job *job)
{
    bool is_pushed = queue_push(queue, job); /* its capacity is that of all jobs of its kind */
    assert(is_pushed);
    (void)is_pushed;
    queue_publish(queue);
    bell_ring(&s->bell);
}

/* Makes a slot free: that of the least recently used page which is in the file only. At the end, pages of host memory are
 * not needed there any more, so their slots count too. parent: the id of a page that stays. end: this entry and those used
 * later stay; NONE: there is no such entry. */
static bool make_slot(struct spill *s, uint64_t parent, int32_t end)
{
    struct spill_index *x = &s->index;
    int n_ahead = s->is_flushing ? AHEAD_AT_END : AHEAD;
    int32_t i = x->lists[SPILL_ALL].oldest;
    if (x->n_free_slots > 0)
        return true;
    for (int n = 0; n < n_ahead && i != end; n++, i = x->entries[i].links[SPILL_ALL].next) {
        const struct spill_entry *e = &x->entries[i];
        if (!e->is_written || e->n_uses > 0 || e->record.id == parent ||
            (e->frame != NONE && !s->is_flushing))
            continue;
        if (e->frame != NONE)
            spill_index_drop_slot(x, i);
        else
            drop_entry(s, i);
        s->counts.n_evictions++;
        return true;
    }
    return false;
}

static bool may_write(const struct spill *s)
{
    return s->file && s->index.n_unwritten < s->most_writing && clock_now_us() >= s->retry_us;
}

/* Gives the entry a slot, but not one of a page that was used later, as its parents were. */
static bool begin_file_copy(struct spill *s, int32_t entry)
{
    if (!may_write(s) || !make_slot(s, 0, entry))
        return false;
    spill_index_take_slot(&s->index, entry);
    return true;
}

/* The frame is filled, and the entry has a slot. */
static void push_write(struct spill *s, int32_t entry)
{
    const struct spill_entry *e = &s->index.entries[entry];
    add_use(s, entry);
    push_job(s, s->writes,
             &(struct job){
                 .is_write = true, .entry = entry, .slot = e->slot, .frame = e->frame, .record = e->record });
}

/* ---- frames ---- */

/* The page that leaves host memory next; NONE: none can now. Pages that leave soon are written to the file ahead of that.
 * What cannot be written, also when no write is under way any more, is lost when it leaves. */
static int32_t find_leaving(struct spill *s, uint64_t parent)
{
    const struct spill_index *x = &s->index;
    int32_t found = NONE, i = x->lists[SPILL_HOST].oldest;
    for (int n = 0; n < AHEAD && i != NONE; n++, i = x->entries[i].links[SPILL_HOST].next) {
        const struct spill_entry *e = &x->entries[i];
        if (e->n_uses > 0 || e->record.id == parent)
            continue;
        bool is_begun = e->slot == NONE && begin_file_copy(s, i);
        if (is_begun)
            push_write(s, i);
        else if (found == NONE && (e->slot != NONE || !spill_is_writing(s)))
            found = i;
    }
    return found;
}

static bool make_frame(struct spill *s, uint64_t parent)
{
    if (s->index.n_free_frames > 0)
        return true;
    int32_t entry = s->options.keeps_pages ? find_leaving(s, parent) : NONE;
    if (entry == NONE)
        return false;
    if (s->index.entries[entry].slot != NONE)
        spill_index_drop_frame(&s->index, entry);
    else
        drop_entry(s, entry);
    s->counts.n_host_evictions++;
    return true;
}

bool spill_can_write(struct spill *s)
{
    if (!s->options.keeps_pages)
        return s->index.n_free_frames > 0 && may_write(s);
    return s->index.n_free_frames > 0 || find_leaving(s, 0) != NONE;
}

void *spill_begin_write(struct spill *s, const struct kv_copy *parent, const int32_t *ids,
                        struct kv_copy *out)
{
    struct spill_index *x = &s->index;
    assert(spill_index_find(x, parent->id, ids) == NONE);
    bool keeps = s->options.keeps_pages;
    if (!(keeps || may_write(s)) || !make_frame(s, parent->id) || !(keeps || make_slot(s, parent->id, NONE)))
        return NULL;
    int32_t entry = spill_index_take(x); /* there is one for each frame that is kept, and for each slot */
    if (entry == NONE)
        return NULL;
    struct spill_record record = { .id = s->next_id++,
                                   .parent = parent->id,
                                   .ids = spill_index_ids(x, entry) };
    memcpy(spill_index_ids(x, entry), ids, x->ids_bytes);
    spill_index_add(x, entry, &record, parent->entry);
    spill_index_take_frame(x, entry);
    add_use(s, entry);
    if (!keeps)
        spill_index_take_slot(x, entry);
    *out = (struct kv_copy){ .id = record.id, .entry = entry };
    return frame_at(s, x->entries[entry].frame);
}

void spill_end_write(struct spill *s, const struct kv_copy *copy, bool is_good)
{
    struct spill_entry *e = entry_of(s, copy);
    assert(e && e->frame != NONE && !e->is_filled);
    e->is_filled = is_good;
    if (is_good && (e->slot != NONE || (s->is_flushing && begin_file_copy(s, copy->entry))))
        push_write(s, copy->entry);
    drop_use(s, copy->entry);
}

const void *spill_take(struct spill *s, const struct kv_copy *copy)
{
    const struct spill_entry *e = entry_of(s, copy);
    if (!e || !e->is_filled)
        return NULL;
    add_use(s, copy->entry);
    return frame_at(s, e->frame);
}

void spill_drop(struct spill *s, const struct kv_copy *copy)
{
    assert(entry_of(s, copy));
    drop_use(s, copy->entry);
}

/* ---- reading from the file ---- */

bool spill_read(struct spill *s, const struct kv_copy *copy, int32_t owner, uint32_t ticket)
{
    const struct spill_entry *e = entry_of(s, copy);
    if (!e || !e->is_written || e->frame != NONE || s->n_reading == s->most_reading || s->is_flushing)
        return false;
    add_use(s, copy->entry); /* making a frame must not drop it */
    bool has_frame = make_frame(s, 0);
    if (has_frame) {
        spill_index_take_frame(&s->index, copy->entry);
        s->n_reading++;
        push_job(s, s->reads,
                 &(struct job){ .entry = copy->entry,
                                .slot = e->slot,
                                .frame = e->frame,
                                .record = e->record,
                                .owner = owner,
                                .ticket = ticket });
    } else {
        drop_use(s, copy->entry);
    }
    return has_frame;
}

static void note_written(struct spill *s, const struct job *job)
{
    if (job->status == TUTTI_OK) {
        spill_index_set_written(&s->index, job->entry);
        s->counts.n_written++;
    } else {
        spill_index_drop_slot(&s->index, job->entry);
        s->counts.n_write_errors++;
        s->retry_us = clock_now_us() + RETRY_US;
    }
    drop_use(s, job->entry);
}

static const void *note_read(struct spill *s, const struct job *job)
{
    struct spill_entry *e = &s->index.entries[job->entry];
    bool is_good = job->status == TUTTI_OK;
    s->n_reading--;
    s->counts.n_read += is_good;
    s->counts.n_read_errors += !is_good;
    e->is_filled = is_good;
    if (is_good)
        return frame_at(s, e->frame);
    spill_index_drop_slot(&s->index, job->entry); /* the file has erased the page */
    drop_use(s, job->entry);
    return NULL;
}

bool spill_next(struct spill *s, struct spill_answer *out)
{
    for (const struct job *front; s->file && (front = queue_front(s->done));) {
        struct job job = *front;
        queue_pop(s->done);
        if (job.is_write) {
            note_written(s, &job);
            continue;
        }
        *out = (struct spill_answer){ .owner = job.owner,
                                      .ticket = job.ticket,
                                      .copy = { .id = job.record.id, .entry = job.entry },
                                      .page = note_read(s, &job) };
        return true;
    }
    return false;
}

/* ---- the end ---- */

void spill_begin_flush(struct spill *s)
{
    s->is_flushing = true;
    atomic_store(&s->has_no_reader, true);
}

void spill_write_back(struct spill *s)
{
    const struct spill_index *x = &s->index;
    if (s->back == NEWEST)
        s->back = x->lists[SPILL_ALL].newest;
    while (s->back != NONE) {
        const struct spill_entry *e = &x->entries[s->back];
        if (e->is_filled && e->slot == NONE) {
            if (!begin_file_copy(s, s->back))
                return;
            push_write(s, s->back);
        }
        s->back = e->links[SPILL_ALL].prev;
    }
}

bool spill_is_busy(const struct spill *s)
{
    return s->n_uses > 0;
}

bool spill_is_writing(const struct spill *s)
{
    return s->index.n_unwritten > 0;
}

const char *spill_audit(const struct spill *s)
{
    return spill_index_audit(&s->index);
}
