/* The KV page pool: which sequences hold which pages, and the prefix cache. The backend has the
 * pages' contents.
 *
 * A page is in use (one or more sequences hold it), cached (no holder, but its content is known and
 * can be reused), or free. Publishing a full page enters it into the prefix cache: it is found
 * again by its content, a chain of (parent page, its token ids), so equal prefixes of prompts share
 * pages. A match compares chain, parent and ids, not only the hash: two different texts never share
 * a page. Each adapter has its own chains, because its keys and values differ. Each tenant has its
 * own chains, because a match shows how another client's prompt begins.
 *
 * A sequence that holds a published page holds its parents too, and drops the deepest page first.
 * So a parent is never evicted before its children, and a page id identifies a whole prefix as long
 * as the page is published.
 *
 * A holder has passed a page when none of its further rows attends to the page in the layers with a
 * window: it then needs the page's keys and values in the other layers only (window_slots.h).
 *
 * Only the engine thread calls these functions, so there is no lock. Nothing allocates after
 * kv_pool_new(). After Kwon et al., "Efficient Memory Management for LLM Serving with
 * PagedAttention", 2023, section 4, and Zheng et al., "SGLang", 2024, section 3 (prefix reuse, LRU
 * eviction). */
#ifndef TUTTI_KV_POOL_H
#define TUTTI_KV_POOL_H

#include "backend/backend.h"
#include "base/error.h"

struct kv_pool;

/* The copy of a published page outside of the pool (spill.h); id 0: there is none. */
struct kv_copy {
    uint64_t id;
    int32_t entry; /* of the index of copies */
};

enum { KV_NO_PAGE = -1 }; /* parent of the first page of a chain */

/* Which published pages may match: those of one tenant that were computed with one adapter. */
struct kv_chain {
    uint64_t tenant;
    int32_t adapter; /* -1: none */
};

static inline bool kv_chain_equal(struct kv_chain a, struct kv_chain b)
{
    return a.tenant == b.tenant && a.adapter == b.adapter;
}

struct kv_counts {
    int n_pages; /* = n_used + n_cached + n_free */
    int n_used, n_cached, n_free;
    uint64_t n_evictions;
    uint64_t n_lost; /* of those: pages without a copy outside of the pool */
};

struct kv_pool_options {
    int n_pages, page_tokens; /* 1 or more */
    int n_slots;              /* for the layers with a window (window_slots.h): n_pages, or fewer */
    int window;         /* the widest one of any layer; 0: no layer has one, or each page has its slot */
    uint64_t hash_seed; /* secret from clients, so that no prompt can provoke hash collisions */
};

/* On success *out is the caller's, for kv_pool_free(). TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status kv_pool_new(struct kv_pool **out, const struct kv_pool_options *options,
                                         struct tutti_error *err);
void kv_pool_free(struct kv_pool *pool); /* NULL is allowed */

struct kv_counts kv_pool_counts(const struct kv_pool *pool);

/* Takes n_pages unpublished pages, all or none: free ones first, then cached ones, least recently
 * used first (eviction). False: wait or preempt. page_ids: [n_pages], written only on true; each
 * page then has one holder. */
MUST_CHECK bool kv_pool_take(struct kv_pool *pool, int n_pages, int32_t *page_ids);

/* Adds one holder to each page; each must have one already. The new holder has passed the first
 * n_passed pages. */
void kv_pool_share(struct kv_pool *pool, const int32_t *page_ids, int n_pages, int n_passed);

/* Drops one holder of each page, the last page first. A page without holders is cached if
 * published, else free. The holder had passed the first n_passed pages. */
void kv_pool_drop(struct kv_pool *pool, const int32_t *page_ids, int n_pages, int n_passed);

/* ---- the layers with a window ---- */

/* The number of pages that a sequence has passed when its next row is at position n. */
int kv_pool_passable(const struct kv_pool *pool, int n);

/* Records that a holder has passed these pages. */
void kv_pool_pass(struct kv_pool *pool, const int32_t *page_ids, int n_pages);

/* The page's slot; -1: none, so its keys and values in these layers are unknown. */
int32_t kv_pool_slot(const struct kv_pool *pool, int32_t page_id);

/* Assigns a slot to a page that has one holder and no slot. False: wait or preempt. */
MUST_CHECK bool kv_pool_take_slot(struct kv_pool *pool, int32_t page_id);

/* Slots that can be taken; INT_MAX: every page has its own. */
int kv_pool_slots_left(const struct kv_pool *pool);

/* More than one holder: copy it before writing. */
bool kv_pool_is_shared(const struct kv_pool *pool, int32_t page_id);

/* Prefix cache lookup: takes the longest run of published pages of this chain that matches the
 * beginning of ids. The pages that the row after them attends to in the layers with a window must have
 * slots. Returns its length, at most n_ids / page_tokens. page_ids: room for that many. The caller
 * becomes a holder of each, and has passed the first *n_passed. */
int kv_pool_match(struct kv_pool *pool, struct kv_chain chain, const int32_t *ids, int n_ids,
                  int32_t *page_ids, int *n_passed);

/* Takes the published page of this chain that has ids [page_tokens] after parent (as below), as
 * a further holder; -1: not found, or it has no slot. */
int32_t kv_pool_take_next(struct kv_pool *pool, struct kv_chain chain, int32_t parent, const int32_t *ids);

/* Publishes the full page page_id of this chain, which has ids [page_tokens] after parent.
 * parent: KV_NO_PAGE for the first page; else published, of the same chain, and held by the caller.
 * Returns page_id. If a page with that content is published already, returns that page: the caller
 * now holds it instead of page_id. */
int32_t kv_pool_publish(struct kv_pool *pool, int32_t page_id, struct kv_chain chain, int32_t parent,
                        const int32_t *ids);

/* Of a published page: its tokens [page_tokens], its chain, its parent or KV_NO_PAGE, and its
 * copy outside of the pool, remembered until the page is reused. */
const int32_t *kv_pool_ids(const struct kv_pool *pool, int32_t page_id);
struct kv_chain kv_pool_chain(const struct kv_pool *pool, int32_t page_id);
int32_t kv_pool_parent(const struct kv_pool *pool, int32_t page_id);
bool kv_pool_is_published(const struct kv_pool *pool, int32_t page_id);
struct kv_copy *kv_pool_copy(struct kv_pool *pool, int32_t page_id);

/* Iterates over the cached pages in the order of eviction: the page after page_id, which must be
 * cached; -1: the first. Returns -1 at the end. */
int32_t kv_pool_next_cached(const struct kv_pool *pool, int32_t page_id);
bool kv_pool_is_cached(const struct kv_pool *pool, int32_t page_id);

/* Whether pages have viewers: some layers have a window, and fewer slots than there are pages. */
bool kv_pool_has_viewers(const struct kv_pool *pool);

/* For the audit: checks all invariants against n_holders and n_viewers [n_pages], which the caller
 * counted in its page tables; viewers are holders that have not passed the page, if it has a slot.
 * n_viewers NULL: without kv_pool_has_viewers().
 * NULL: all hold; else what is wrong, in a static buffer of the thread. */
const char *kv_pool_audit(const struct kv_pool *pool, const int32_t *n_holders, const int32_t *n_viewers);

#endif
