#include "engine/schedule/spiller.h"

#include "base/log.h"
#include "base/rng.h"
#include "base/system/clock.h"
#include "engine/schedule/lifecycle.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    NONE = -1,
    SCAN_PAGES = 64, /* cached pages examined in one call: each costs a cache miss or two */
    PATIENCE_US = 5 * 1000 * 1000,
};

/* A page on its way between the pool and host memory. */
struct transfer {
    bool is_restore;
    struct kv_copy copy; /* with a use (spill.h) */
    const void *host;
    int32_t owner; /* of a restore */
    uint32_t ticket;
};

struct spiller {
    struct spiller_options options;
    uint64_t *roots;
    /* A ring: transfers end in the order in which they begin. The backend's copies have the same numbers. */
    struct transfer *transfers; /* [options.n_transfers] */
    int first_transfer, n_transfers, n_spilling;
    /* Pages to copy, the first one at the end: the parent of each is the next one, or has a copy. */
    int32_t *path;
    int n_path;
    int32_t cursor; /* next cached page to examine; NONE: the oldest */
    int n_looked;   /* pages examined since the oldest */
    bool has_host_tier;
    int n_window;   /* how many of the oldest cached pages must have a copy if no page is free */
    int first_slot; /* where the next search for reads begins, so that all sequences get buffers */
    struct spiller_counts counts;
};

/* Copies that the larger tier holds; the file has most pages of host memory too. */
static int most_copies(const struct spill *spill)
{
    struct spill_counts counts = spill_counts(spill);
    return (int)(counts.n_slots > counts.n_host_slots ? counts.n_slots : counts.n_host_slots);
}

enum tutti_status spiller_new(struct spiller **out, const struct spiller_options *options,
                              struct tutti_error *err)
{
    const struct scheduler_options *o = &options->scheduler->options;
    int n_context = scheduler_pages(options->scheduler, o->max_context),
        n_copies = most_copies(options->spill);
    struct spiller *p = calloc(1, sizeof *p);
    if (p) {
        p->options = *options;
        p->roots = calloc((size_t)options->n_roots, sizeof *p->roots);
        p->path = calloc((size_t)n_context, sizeof *p->path);
        p->transfers = calloc((size_t)options->n_transfers, sizeof *p->transfers);
    }
    if (!p || !p->roots || !p->path || !p->transfers) {
        spiller_free(p);
        return error_set(err, TUTTI_E_MEMORY, "spilled pages: out of memory");
    }
    memcpy(p->roots, options->roots, (size_t)options->n_roots * sizeof *p->roots);
    p->options.roots = p->roots;
    if (p->options.patience_us == 0)
        p->options.patience_us = PATIENCE_US;
    p->cursor = NONE;
    p->has_host_tier = spill_counts(options->spill).n_host_slots > 0;
    p->n_window = o->n_pages / 4 > n_context ? o->n_pages / 4 : n_context;
    if (p->n_window > (n_copies + 1) / 2) /* otherwise copies would evict each other for ever */
        p->n_window = (n_copies + 1) / 2;
    options->scheduler->spiller = p;
    *out = p;
    return TUTTI_OK;
}

void spiller_free(struct spiller *p)
{
    if (!p)
        return;
    free(p->transfers);
    free(p->path);
    free(p->roots);
    free(p);
}

struct spiller_counts spiller_counts(const struct spiller *p)
{
    return p->counts;
}

/* The parent of the first pages of a chain in the index of copies. For tenant 0 it is the adapter's root; for
 * other tenants it is derived from root and tenant. So a tenant finds its own pages again after a
 * restart, and no pages of others. */
static struct kv_copy root_of(const struct spiller *p, struct kv_chain chain)
{
    assert(chain.adapter + 1 < p->options.n_roots);
    uint64_t root = p->roots[chain.adapter + 1];
    if (chain.tenant != 0)
        root = SPILL_ROOT | mix64(root ^ mix64(chain.tenant)) >> 1;
    return (struct kv_copy){ .id = root, .entry = NONE };
}

/* ---- transfers ---- */

static bool has_failed(const struct spiller *p)
{
    const struct backend *be = p->options.backend;
    return be->ops->check && be->ops->check(be, NULL) != TUTTI_OK;
}

/* Room for a page to spill: half of the transfers. */
static bool can_spill(const struct spiller *p)
{
    return p->n_spilling < p->options.n_transfers / 2 && p->n_transfers < p->options.n_transfers;
}

/* Room for pages to restore: the rest is left to spilled pages. */
static int n_restores_left(const struct spiller *p)
{
    int n = p->options.n_transfers, n_restoring = p->n_transfers - p->n_spilling,
        n_own = n - n / 4 - n_restoring, n_free = n - p->n_transfers;
    return n_own < n_free ? n_own : n_free;
}

/* The number of the copy that begins now. */
static int add_transfer(struct spiller *p, const struct transfer *transfer)
{
    int number = (p->first_transfer + p->n_transfers) % p->options.n_transfers;
    assert(p->n_transfers < p->options.n_transfers);
    p->transfers[number] = *transfer;
    p->n_transfers++;
    p->n_spilling += !transfer->is_restore;
    return number;
}

/* The page has its copy's content: publishes it, if the sequence still waits for it. */
static void end_restore(struct spiller *p, int number, bool is_good)
{
    const struct transfer *t = &p->transfers[number];
    struct scheduler *s = p->options.scheduler;
    struct backend *be = p->options.backend;
    struct sequence *seq = &s->seqs[t->owner];
    bool is_awaited = is_good && seq->state == SEQUENCE_RESTORING && seq->restore_ticket == t->ticket;
    int page = seq->n_computed / s->page_tokens;
    be->ops->kv_write_end(be, p->options.kv, number, is_awaited ? seq->page_table[page] : -1, t->host);
    if (is_awaited) {
        lifecycle_restored_page(s, seq);
        struct kv_copy *copy = kv_pool_copy(s->pool, seq->page_table[page]);
        if (!spill_can_read(p->options.spill, copy))
            *copy = t->copy;
        p->counts.n_restored_pages++;
        seq->restored_us = clock_now_us();
        if (page + 1 == seq->n_restorable)
            lifecycle_restored(s, seq);
    }
    spill_drop(p->options.spill, &t->copy);
}

/* Ends the transfers that are complete; waits: waits for the first. True: one has ended. */
static bool end_transfers(struct spiller *p, bool waits)
{
    struct backend *be = p->options.backend;
    bool has_ended = false;
    while (p->n_transfers > 0) {
        int number = p->first_transfer;
        if (!be->ops->kv_is_copied(be, p->options.kv, number, waits && !has_ended))
            break;
        bool is_good = !has_failed(p);
        has_ended = true;
        if (p->transfers[number].is_restore)
            end_restore(p, number, is_good);
        else
            spill_end_write(p->options.spill, &p->transfers[number].copy, is_good);
        p->n_spilling -= !p->transfers[number].is_restore;
        p->first_transfer = (number + 1) % p->options.n_transfers;
        p->n_transfers--;
    }
    return has_ended;
}

bool spiller_wait(struct spiller *p)
{
    return end_transfers(p, true);
}

static void end_all_transfers(struct spiller *p)
{
    while (end_transfers(p, true))
        ;
}

/* ---- restoring ---- */

/* Page n_loaded of the sequence is in host memory, with a use. */
static void begin_restore(struct spiller *p, int32_t slot, const struct kv_copy *copy, const void *page)
{
    struct backend *be = p->options.backend;
    struct sequence *seq = &p->options.scheduler->seqs[slot];
    int number = add_transfer(
        p,
        &(struct transfer){
            .is_restore = true, .copy = *copy, .host = page, .owner = slot, .ticket = seq->restore_ticket });
    be->ops->kv_write_begin(be, p->options.kv, number, page);
    seq->n_loaded++;
}

/* A page came from the file, or could not be read: then the sequence computes the rest. */
static void take_answer(struct spiller *p, const struct spill_answer *answer)
{
    struct sequence *seq = &p->options.scheduler->seqs[answer->owner];
    bool is_awaited = seq->state == SEQUENCE_RESTORING && seq->restore_ticket == answer->ticket &&
                      seq->n_loaded < seq->n_restorable;
    if (is_awaited && answer->page)
        begin_restore(p, answer->owner, &answer->copy, answer->page);
    else if (answer->page)
        spill_drop(p->options.spill, &answer->copy);
    else if (is_awaited)
        seq->n_requested = seq->n_restorable = seq->n_loaded;
}

/* Requests the next page. Pages are restored in order: what is in host memory waits for what the file still has to give.
 * False: not possible now. */
static bool request_page(struct spiller *p, int32_t slot, const struct kv_copy *copy)
{
    const struct sequence *seq = &p->options.scheduler->seqs[slot];
    bool is_next = seq->n_requested == seq->n_loaded && n_restores_left(p) > 0;
    const void *page = is_next ? spill_take(p->options.spill, copy) : NULL;
    if (!page)
        return spill_read(p->options.spill, copy, slot, seq->restore_ticket);
    begin_restore(p, slot, copy, page);
    p->counts.n_host_restored_pages += p->has_host_tier;
    return true;
}

/* Requests as many pages as possible, but of host memory no more than half of what is left for all sequences. True: no page
 * is awaited any more. */
static bool request_pages(struct spiller *p, int32_t slot)
{
    struct sequence *seq = &p->options.scheduler->seqs[slot];
    int page_tokens = p->options.scheduler->page_tokens;
    int n_most = seq->n_loaded + (n_restores_left(p) + 1) / 2;
    while (seq->n_requested < seq->n_restorable && seq->n_loaded < n_most) {
        struct kv_copy next;
        const int32_t *ids = seq->ids + seq->n_requested * page_tokens;
        if (!spill_find(p->options.spill, seq->last_requested.id, ids, &next) ||
            !spill_can_read(p->options.spill, &next)) { /* it was evicted */
            seq->n_restorable = seq->n_requested;
            break;
        }
        if (!request_page(p, slot, &next))
            break;
        seq->last_requested = next;
        seq->n_requested++;
    }
    return seq->n_computed == seq->n_restorable * page_tokens ||
           clock_now_us() - seq->restored_us > (uint64_t)p->options.patience_us;
}

bool spiller_begin(struct spiller *p, struct sequence *seq, int n_matched, int n_full)
{
    struct kv_copy at = root_of(p, sequence_chain(seq)), next;
    int n = 0, page_tokens = p->options.scheduler->page_tokens;
    seq->last_requested = at;
    for (; n < n_full && spill_find(p->options.spill, at.id, seq->ids + n * page_tokens, &next) &&
           (n < n_matched || spill_can_read(p->options.spill, &next));
         n++) {
        at = next;
        if (n < n_matched)
            seq->last_requested = at;
    }
    p->counts.n_looked_up_pages += (uint64_t)(n_full - n_matched);
    if (n <= n_matched)
        return false;
    p->counts.n_found_pages += (uint64_t)(n - n_matched);
    spill_touch(p->options.spill, &at);
    seq->restore_ticket++; /* answers to earlier reads are ignored */
    seq->n_loaded = seq->n_requested = n_matched;
    seq->n_restorable = n;
    seq->restored_us = clock_now_us();
    return !request_pages(p, (int32_t)(seq - p->options.scheduler->seqs));
}

/* ---- spilling ---- */

/* The copy of a page's parent; id 0: it has none. */
static struct kv_copy copy_before(const struct spiller *p, int32_t page_id)
{
    struct kv_pool *pool = p->options.scheduler->pool;
    int32_t parent = kv_pool_parent(pool, page_id);
    if (parent == KV_NO_PAGE)
        return root_of(p, kv_pool_chain(pool, page_id));
    return *kv_pool_copy(pool, parent);
}

static bool has_copy(const struct spiller *p, int32_t page_id)
{
    struct kv_copy before = copy_before(p, page_id);
    const struct kv_copy *copy = kv_pool_copy(p->options.scheduler->pool, page_id);
    return before.id != 0 && spill_holds(p->options.spill, copy, before.id);
}

/* The next cached page without a copy. NONE: there is none among those to be evicted soon; or the
 * search takes long, then *has_more is set. */
static int32_t find_uncopied(struct spiller *p, int n_window, bool *has_more)
{
    struct kv_pool *pool = p->options.scheduler->pool;
    *has_more = false;
    for (int n = 0; n < SCAN_PAGES; n++) {
        if (p->cursor == NONE || !kv_pool_is_cached(pool, p->cursor)) {
            p->cursor = kv_pool_next_cached(pool, NONE);
            p->n_looked = 0;
        }
        if (p->cursor == NONE || p->n_looked >= n_window) {
            p->cursor = NONE;
            return NONE;
        }
        int32_t page_id = p->cursor;
        p->n_looked++;
        p->cursor = kv_pool_next_cached(pool, page_id);
        if (!has_copy(p, page_id)) {
            *has_more = true;
            return page_id;
        }
        if (p->cursor == NONE)
            return NONE; /* the end of the list */
    }
    *has_more = true;
    return NONE;
}

/* Collects the page and its parents without a copy. */
static void find_path(struct spiller *p, int32_t page_id)
{
    const struct scheduler *s = p->options.scheduler;
    p->n_path = 0;
    while (page_id >= 0 && !has_copy(p, page_id)) {
        assert(p->n_path < scheduler_pages(s, s->options.max_context));
        p->path[p->n_path++] = page_id;
        page_id = kv_pool_parent(s->pool, page_id);
    }
}

/* False: not possible now. */
static bool copy_page(struct spiller *p, int32_t page_id)
{
    struct kv_pool *pool = p->options.scheduler->pool;
    struct backend *be = p->options.backend;
    struct kv_copy before = copy_before(p, page_id), *copy = kv_pool_copy(pool, page_id), made;
    const int32_t *ids = kv_pool_ids(pool, page_id);
    if (spill_find(p->options.spill, before.id, ids, copy)) /* it was computed although there was a copy */
        return true;
    void *page = can_spill(p) ? spill_begin_write(p->options.spill, &before, ids, &made) : NULL;
    if (!page)
        return false;
    int number = add_transfer(p, &(struct transfer){ .copy = made, .host = page });
    be->ops->kv_read_begin(be, p->options.kv, number, page_id, page);
    *copy = made;
    return true;
}

/* Copies the last page of the path, if it is still valid. True: one was copied. */
static bool copy_next(struct spiller *p)
{
    while (p->n_path > 0) {
        int32_t page_id = p->path[p->n_path - 1];
        if (!kv_pool_is_published(p->options.scheduler->pool, page_id) ||
            copy_before(p, page_id).id == 0) { /* the page has been reused */
            p->n_path = 0;
            return false;
        }
        bool is_copied = has_copy(p, page_id);
        if (!is_copied && !copy_page(p, page_id)) {
            p->n_path = 0; /* search again: the page may be evicted before a buffer is free */
            return false;
        }
        p->n_path--;
        if (!is_copied)
            return true;
    }
    return false;
}

/* Copies pages among the n_window oldest cached ones until end_us. True: it can go on at once. */
static bool copy_some(struct spiller *p, int n_window, uint64_t end_us)
{
    bool has_more = true;
    do {
        (void)end_transfers(p, false);
        if (!can_spill(p) || !spill_can_write(p->options.spill))
            return false;
        if (p->n_path == 0) {
            int32_t page_id = find_uncopied(p, n_window, &has_more);
            if (page_id == NONE)
                return has_more;
            find_path(p, page_id);
        }
        (void)copy_next(p); /* if this page has no slot, another one may have */
    } while (clock_now_us() < end_us);
    return true;
}

/* ---- work ---- */

bool spiller_work(struct spiller *p, uint64_t budget_us)
{
    struct scheduler *s = p->options.scheduler;
    uint64_t end_us = clock_now_us() + budget_us;
    struct spill_answer answer;
    bool is_late = false, has_more = false;
    if (has_failed(p))
        return false;
    (void)end_transfers(p, false);
    while (!is_late && n_restores_left(p) > 0 && spill_next(p->options.spill, &answer)) {
        take_answer(p, &answer);
        is_late = clock_now_us() >= end_us;
    }
    for (int i = 0; i < s->options.max_seqs && s->n_restoring > 0; i++) {
        int32_t slot = (p->first_slot + i) % s->options.max_seqs;
        if (s->seqs[slot].state == SEQUENCE_RESTORING && request_pages(p, slot))
            lifecycle_restored(s, &s->seqs[slot]);
    }
    p->first_slot = (p->first_slot + 1) % s->options.max_seqs;
    int n_window = p->n_window - kv_pool_counts(s->pool).n_free;
    if (!is_late && n_window > 0)
        has_more = copy_some(p, n_window, end_us);
    return end_transfers(p, false) || is_late || has_more;
}

/* Copies cached pages from *page_id on, as many as possible now. */
static void flush_pool(struct spiller *p, int32_t *page_id)
{
    while (*page_id != NONE) {
        if (p->n_path == 0)
            find_path(p, *page_id);
        if (p->n_path > 0 && !copy_next(p) && !has_copy(p, *page_id)) {
            if (!end_transfers(p, true))
                return;
        } else if (p->n_path == 0) {
            *page_id = kv_pool_next_cached(p->options.scheduler->pool, *page_id);
        }
    }
}

void spiller_flush(struct spiller *p, struct bell *bell, uint64_t most_us)
{
    struct kv_pool *pool = p->options.scheduler->pool;
    struct spill *spill = p->options.spill;
    struct spill_counts before = spill_counts(spill);
    uint64_t start_us = clock_now_us(), end_us = start_us + most_us;
    struct spill_answer answer;
    int32_t page_id = kv_pool_next_cached(pool, NONE);
    bool is_done = before.n_slots == 0 || has_failed(p);
    if (is_done)
        return;
    for (int n = kv_pool_counts(pool).n_cached; n > (int)before.n_slots; n--)
        page_id = kv_pool_next_cached(pool, page_id);
    p->n_path = 0;
    end_all_transfers(p);
    spill_begin_flush(spill);
    while (!is_done && clock_now_us() < end_us) {
        unsigned ticket = bell_ticket(bell);
        while (spill_next(spill, &answer))
            if (answer.page)
                spill_drop(spill, &answer.copy);
        flush_pool(p, &page_id);
        end_all_transfers(p);
        if (page_id == NONE)
            spill_write_back(spill);
        is_done = !spill_is_writing(spill); /* then all is written, or waiting does not help */
        if (!is_done && !bell_wait_until(bell, ticket, end_us))
            break;
    }
    int n_left = 0;
    for (; page_id != NONE; page_id = kv_pool_next_cached(pool, page_id))
        n_left += !has_copy(p, page_id);
    uint64_t n_written = spill_counts(spill).n_written - before.n_written;
    if (n_written > 0 || n_left > 0)
        log_info("KV spill: %" PRIu64 " pages written in %.1f s, %d left out", n_written,
                 (double)(clock_now_us() - start_us) * 1e-6, n_left);
}
