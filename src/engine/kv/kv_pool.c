#include "engine/kv/kv_pool.h"

#include "base/hash.h"
#include "base/rng.h"
#include "engine/kv/window_slots.h"

#include <assert.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NONE = KV_NO_PAGE };

struct page {
    int32_t n_holders;
    int32_t parent;       /* published: the page before it; NONE: it is the first */
    int32_t prev, next;   /* cached: LRU list; free: only next */
    int32_t next_in_slot; /* published: hash chain */
    bool is_published;
    uint64_t hash; /* of its chain and all tokens up to the end of this page */
    struct kv_chain chain;
    struct kv_copy copy;
};

struct kv_pool {
    struct page *pages;
    int32_t *ids; /* [n_pages][page_tokens]: of published pages */
    int page_tokens;
    int32_t *slots; /* hash table: first page of each slot */
    uint64_t slot_mask, hash_seed;
    int32_t free_head;
    int32_t oldest, newest; /* cached pages, LRU list */
    struct kv_counts counts;
    struct window_slots windows;
    int window;
};

/* Bytes of the ids of a page. */
static size_t kv_pool_ids_bytes(const struct kv_pool *pool)
{
    return (size_t)pool->page_tokens * sizeof *pool->ids;
}

static int32_t *ids_of(const struct kv_pool *pool, int32_t page_id)
{
    return pool->ids + (size_t)page_id * (size_t)pool->page_tokens;
}

enum tutti_status kv_pool_new(struct kv_pool **out, const struct kv_pool_options *options,
                              struct tutti_error *err)
{
    int n_pages = options->n_pages;
    struct kv_pool *pool = calloc(1, sizeof *pool);
    size_t n_slots = 16;
    while (n_slots < (size_t)n_pages * 2)
        n_slots *= 2;
    assert(n_pages >= 1 && options->page_tokens >= 1 && options->n_slots >= 1);
    if (pool) {
        pool->page_tokens = options->page_tokens;
        pool->ids = calloc((size_t)n_pages, kv_pool_ids_bytes(pool));
        pool->pages = calloc((size_t)n_pages, sizeof *pool->pages);
        pool->slots = malloc(n_slots * sizeof *pool->slots);
    }
    if (!pool || !pool->pages || !pool->ids || !pool->slots ||
        window_slots_open(&pool->windows, n_pages, options->n_slots, NULL) != TUTTI_OK) {
        kv_pool_free(pool);
        return error_set(err, TUTTI_E_MEMORY, "page table of %d KV pages: out of memory", n_pages);
    }
    for (size_t i = 0; i < n_slots; i++)
        pool->slots[i] = NONE;
    pool->slot_mask = n_slots - 1;
    pool->window = options->window;
    pool->hash_seed = options->hash_seed;
    pool->oldest = pool->newest = NONE;
    pool->free_head = 0;
    for (int32_t i = 0; i < n_pages; i++)
        pool->pages[i].next = i + 1 < n_pages ? i + 1 : NONE;
    pool->counts = (struct kv_counts){ .n_pages = n_pages, .n_free = n_pages };
    *out = pool;
    return TUTTI_OK;
}

void kv_pool_free(struct kv_pool *pool)
{
    if (!pool)
        return;
    window_slots_close(&pool->windows);
    free(pool->slots);
    free(pool->ids);
    free(pool->pages);
    free(pool);
}

struct kv_counts kv_pool_counts(const struct kv_pool *pool)
{
    return pool->counts;
}

/* ---- LRU list of the cached pages ---- */

static void use_list_remove(struct kv_pool *pool, int32_t page_id)
{
    struct page *page = &pool->pages[page_id];
    if (page->prev != NONE)
        pool->pages[page->prev].next = page->next;
    else
        pool->oldest = page->next;
    if (page->next != NONE)
        pool->pages[page->next].prev = page->prev;
    else
        pool->newest = page->prev;
    pool->counts.n_cached--;
}

static void use_list_add(struct kv_pool *pool, int32_t page_id)
{
    struct page *page = &pool->pages[page_id];
    page->prev = pool->newest;
    page->next = NONE;
    if (pool->newest != NONE)
        pool->pages[pool->newest].next = page_id;
    else
        pool->oldest = page_id;
    pool->newest = page_id;
    pool->counts.n_cached++;
}

/* ---- the hash table of published pages ---- */

static uint64_t chain_hash(const struct kv_pool *pool, struct kv_chain chain, int32_t parent,
                           const int32_t *ids)
{
    uint64_t seed = parent != NONE
                        ? pool->pages[parent].hash
                        : mix64(pool->hash_seed ^ mix64((uint32_t)chain.adapter)) ^ mix64(chain.tenant);
    return hash64(seed, ids, kv_pool_ids_bytes(pool));
}

static int32_t find_published(const struct kv_pool *pool, uint64_t hash, struct kv_chain chain,
                              int32_t parent, const int32_t *ids)
{
    int32_t page_id = pool->slots[hash & pool->slot_mask];
    while (page_id != NONE) {
        const struct page *page = &pool->pages[page_id];
        if (page->hash == hash && page->parent == parent && kv_chain_equal(page->chain, chain) &&
            memcmp(ids_of(pool, page_id), ids, kv_pool_ids_bytes(pool)) == 0)
            return page_id;
        page_id = page->next_in_slot;
    }
    return NONE;
}

static void unpublish(struct kv_pool *pool, int32_t page_id)
{
    struct page *page = &pool->pages[page_id];
    int32_t *link = &pool->slots[page->hash & pool->slot_mask];
    while (*link != page_id)
        link = &pool->pages[*link].next_in_slot;
    *link = page->next_in_slot;
    page->is_published = false;
}

/* ---- taking, sharing and dropping ---- */

static void add_holder(struct kv_pool *pool, int32_t page_id)
{
    struct page *page = &pool->pages[page_id];
    if (page->n_holders++ == 0) {
        if (page->is_published)
            use_list_remove(pool, page_id);
        pool->counts.n_used++;
    }
}

static void kv_pool_put_free(struct kv_pool *pool, int32_t page_id)
{
    pool->pages[page_id].next = pool->free_head;
    pool->free_head = page_id;
    pool->counts.n_free++;
}

bool kv_pool_take(struct kv_pool *pool, int n_pages, int32_t *page_ids)
{
    if (n_pages > pool->counts.n_free + pool->counts.n_cached)
        return false;
    for (int i = 0; i < n_pages; i++) {
        if (pool->free_head == NONE) {
            int32_t victim = pool->oldest;
            use_list_remove(pool, victim);
            unpublish(pool, victim);
            window_slots_forget(&pool->windows, victim);
            kv_pool_put_free(pool, victim);
            pool->counts.n_evictions++;
            pool->counts.n_lost += pool->pages[victim].copy.id == 0;
        }
        page_ids[i] = pool->free_head;
        pool->free_head = pool->pages[page_ids[i]].next;
        pool->counts.n_free--;
        add_holder(pool, page_ids[i]);
    }
    return true;
}

/* Makes a new holder a viewer of the page. A page without a slot was passed or is not computed yet. */
static void add_viewer(struct kv_pool *pool, int32_t page_id)
{
    if (window_slots_of(&pool->windows, page_id) != NONE)
        window_slots_see(&pool->windows, page_id);
}

static void remove_viewer(struct kv_pool *pool, int32_t page_id)
{
    if (window_slots_of(&pool->windows, page_id) != NONE)
        window_slots_pass(&pool->windows, page_id, pool->pages[page_id].is_published);
}

void kv_pool_share(struct kv_pool *pool, const int32_t *page_ids, int n_pages, int n_passed)
{
    for (int i = 0; i < n_pages; i++) {
        assert(pool->pages[page_ids[i]].n_holders > 0);
        add_holder(pool, page_ids[i]);
        if (i >= n_passed)
            add_viewer(pool, page_ids[i]);
    }
}

void kv_pool_drop(struct kv_pool *pool, const int32_t *page_ids, int n_pages, int n_passed)
{
    for (int i = n_pages; i-- > 0;) {
        struct page *page = &pool->pages[page_ids[i]];
        assert(page->n_holders > 0);
        if (i >= n_passed)
            remove_viewer(pool, page_ids[i]);
        if (--page->n_holders > 0)
            continue;
        pool->counts.n_used--;
        if (page->is_published)
            use_list_add(pool, page_ids[i]);
        else
            kv_pool_put_free(pool, page_ids[i]);
    }
}

int kv_pool_passable(const struct kv_pool *pool, int n)
{
    int first_seen = n - pool->window + 1; /* by the row at position n */
    return pool->window > 0 && first_seen > 0 ? first_seen / pool->page_tokens : 0;
}

void kv_pool_pass(struct kv_pool *pool, const int32_t *page_ids, int n_pages)
{
    for (int i = 0; i < n_pages; i++)
        remove_viewer(pool, page_ids[i]);
}

int32_t kv_pool_slot(const struct kv_pool *pool, int32_t page_id)
{
    return window_slots_of(&pool->windows, page_id);
}

bool kv_pool_take_slot(struct kv_pool *pool, int32_t page_id)
{
    assert(pool->pages[page_id].n_holders == 1 && !pool->pages[page_id].is_published);
    return window_slots_take(&pool->windows, page_id);
}

int kv_pool_slots_left(const struct kv_pool *pool)
{
    return pool->windows.is_identity ? INT_MAX : pool->windows.n_free + pool->windows.n_unseen;
}

bool kv_pool_is_shared(const struct kv_pool *pool, int32_t page_id)
{
    return pool->pages[page_id].n_holders > 1;
}

int kv_pool_match(struct kv_pool *pool, struct kv_chain chain, const int32_t *ids, int n_ids,
                  int32_t *page_ids, int *n_passed)
{
    int32_t parent = NONE;
    int n = 0, n_known = 0, n_slots = 0; /* n_slots: of the last pages, without a gap */
    for (; (n_known + 1) * pool->page_tokens <= n_ids; ids += pool->page_tokens) {
        parent = find_published(pool, chain_hash(pool, chain, parent, ids), chain, parent, ids);
        if (parent == NONE)
            break;
        page_ids[n_known++] = parent;
        n_slots = window_slots_of(&pool->windows, parent) != NONE ? n_slots + 1 : 0;
        if (n_slots >= n_known - kv_pool_passable(pool, n_known * pool->page_tokens))
            n = n_known;
    }
    *n_passed = kv_pool_passable(pool, n * pool->page_tokens);
    for (int i = 0; i < n; i++) {
        add_holder(pool, page_ids[i]);
        if (i >= *n_passed)
            add_viewer(pool, page_ids[i]);
    }
    return n;
}

int32_t kv_pool_take_next(struct kv_pool *pool, struct kv_chain chain, int32_t parent, const int32_t *ids)
{
    int32_t page_id = find_published(pool, chain_hash(pool, chain, parent, ids), chain, parent, ids);
    if (page_id == NONE || window_slots_of(&pool->windows, page_id) == NONE)
        return NONE;
    add_holder(pool, page_id);
    add_viewer(pool, page_id);
    return page_id;
}

int32_t kv_pool_publish(struct kv_pool *pool, int32_t page_id, struct kv_chain chain, int32_t parent,
                        const int32_t *ids)
{
    struct page *page = &pool->pages[page_id];
    assert(page->n_holders > 0);
    assert(parent == NONE ||
           (pool->pages[parent].is_published && kv_chain_equal(pool->pages[parent].chain, chain)));
    if (page->is_published) /* another choice of the same prompt has published it */
        return page_id;
    uint64_t hash = chain_hash(pool, chain, parent, ids);
    int32_t known = find_published(pool, hash, chain, parent, ids);
    if (known != NONE) {
        add_holder(pool, known);
        if (window_slots_of(&pool->windows, known) == NONE)
            window_slots_move(&pool->windows, page_id, known);
        else
            add_viewer(pool, known);
        kv_pool_drop(pool, &page_id, 1, 0);
        return known;
    }
    page->hash = hash;
    page->chain = chain;
    page->parent = parent;
    page->copy = (struct kv_copy){ 0 };
    memcpy(ids_of(pool, page_id), ids, kv_pool_ids_bytes(pool));
    page->next_in_slot = pool->slots[hash & pool->slot_mask];
    pool->slots[hash & pool->slot_mask] = page_id;
    page->is_published = true;
    return page_id;
}

const int32_t *kv_pool_ids(const struct kv_pool *pool, int32_t page_id)
{
    return ids_of(pool, page_id);
}

struct kv_chain kv_pool_chain(const struct kv_pool *pool, int32_t page_id)
{
    return pool->pages[page_id].chain;
}

int32_t kv_pool_parent(const struct kv_pool *pool, int32_t page_id)
{
    return pool->pages[page_id].parent;
}

bool kv_pool_is_published(const struct kv_pool *pool, int32_t page_id)
{
    return pool->pages[page_id].is_published;
}

struct kv_copy *kv_pool_copy(struct kv_pool *pool, int32_t page_id)
{
    assert(pool->pages[page_id].is_published);
    return &pool->pages[page_id].copy;
}

int32_t kv_pool_next_cached(const struct kv_pool *pool, int32_t page_id)
{
    return page_id == NONE ? pool->oldest : pool->pages[page_id].next;
}

bool kv_pool_is_cached(const struct kv_pool *pool, int32_t page_id)
{
    return pool->pages[page_id].is_published && pool->pages[page_id].n_holders == 0;
}

/* ---- audit ---- */

static _Thread_local char audit_text[160];

static const char *complain(const char *what, int64_t page_id, int64_t found, int64_t expected)
{
    snprintf(audit_text, sizeof audit_text, "KV page %lld: %s: %lld, expected %lld", (long long)page_id, what,
             (long long)found, (long long)expected);
    return audit_text;
}

static const char *audit_lists(const struct kv_pool *pool)
{
    const struct kv_counts *c = &pool->counts;
    int n_free = 0, n_cached = 0;
    for (int32_t i = pool->free_head; i != NONE && n_free <= c->n_pages; i = pool->pages[i].next, n_free++)
        if (pool->pages[i].n_holders != 0 || pool->pages[i].is_published)
            return complain("holders of a free page", i, pool->pages[i].n_holders, 0);
    if (n_free != c->n_free)
        return complain("pages in the free list", NONE, n_free, c->n_free);
    int32_t prev = NONE;
    for (int32_t i = pool->oldest; i != NONE && n_cached <= c->n_pages; prev = i, i = pool->pages[i].next) {
        n_cached++;
        if (pool->pages[i].n_holders != 0 || !pool->pages[i].is_published || pool->pages[i].prev != prev)
            return complain("holders of a cached page", i, pool->pages[i].n_holders, 0);
    }
    if (n_cached != c->n_cached || prev != pool->newest)
        return complain("pages in the LRU list", NONE, n_cached, c->n_cached);
    if (c->n_used + c->n_cached + c->n_free != c->n_pages)
        return complain("used, cached and free pages together", NONE, c->n_used + c->n_cached + c->n_free,
                        c->n_pages);
    return NULL;
}

bool kv_pool_has_viewers(const struct kv_pool *pool)
{
    return !pool->windows.is_identity;
}

static const char *audit_slots(const struct kv_pool *pool, const int32_t *n_viewers)
{
    const struct window_slots *w = &pool->windows;
    int n_seen = 0, n_unseen = 0;
    if (w->is_identity)
        return NULL;
    for (int32_t i = 0; i < pool->counts.n_pages; i++) {
        const struct window_page *page = &w->pages[i];
        if (page->n_viewers != n_viewers[i])
            return complain("viewers", i, page->n_viewers, n_viewers[i]);
        n_seen += page->n_viewers > 0;
        n_unseen += page->slot != NONE && page->n_viewers == 0;
        if (page->slot != NONE && pool->pages[i].n_holders == 0 && !pool->pages[i].is_published)
            return complain("slot of a free page", i, page->slot, NONE);
    }
    if (n_unseen != w->n_unseen || n_seen + n_unseen + w->n_free != w->n_slots)
        return complain("slots seen, unseen and free together", NONE, n_seen + n_unseen + w->n_free,
                        w->n_slots);
    return NULL;
}

const char *kv_pool_audit(const struct kv_pool *pool, const int32_t *n_holders, const int32_t *n_viewers)
{
    int n_used = 0;
    for (int32_t i = 0; i < pool->counts.n_pages; i++) {
        const struct page *page = &pool->pages[i];
        if (page->n_holders != n_holders[i])
            return complain("holders", i, page->n_holders, n_holders[i]);
        n_used += page->n_holders > 0;
        if (!page->is_published)
            continue;
        int32_t found = find_published(pool, page->hash, page->chain, page->parent, ids_of(pool, i));
        if (found != i)
            return complain("published, but found in the table is", i, found, i);
        if (page->parent == NONE)
            continue;
        const struct page *parent = &pool->pages[page->parent];
        if (!kv_chain_equal(parent->chain, page->chain))
            return complain("adapter of its parent", i, parent->chain.adapter, page->chain.adapter);
        if (!parent->is_published || parent->n_holders < (page->n_holders > 0))
            return complain("holders of its parent", i, parent->n_holders, page->n_holders);
    }
    if (n_used != pool->counts.n_used)
        return complain("pages with holders", NONE, n_used, pool->counts.n_used);
    const char *fault = audit_lists(pool);
    return fault ? fault : audit_slots(pool, n_viewers);
}
