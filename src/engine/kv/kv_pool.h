/* The books of the KV pages: who holds which, and what the prefix cache can lend. The bytes lie with the backend.
 *
 * A page has holders (sequences), or is cached (no holder, but its content is known and may be asked for again), or
 * is free. A full page can be published: it is then found again by its content, a chain of
 * (parent page, 16 token ids), so that equal prefixes of prompts share pages. A match compares chain, parent and ids, not
 * the hash alone: two different texts never share a page. Each adapter has chains of its own, since its keys and values differ
 * from those of the others; so has each tenant, since a match shows how another client's prompt begins.
 *
 * Whoever holds a published page holds its parents too; shares are dropped deepest page first. So a parent is never
 * evicted before its children, and a page id names its whole beginning for as long as it is published.
 *
 * Only the engine thread calls these functions, so there is no lock; nothing allocates after kv_pool_new().
 * After Kwon et al., "Efficient Memory Management for LLM Serving with PagedAttention", 2023, section 4, and Zheng et
 * al., "SGLang", 2024, section 3 (reuse of prefixes, least recently used first out). */
#ifndef TUTTI_KV_POOL_H
#define TUTTI_KV_POOL_H

#include "backend/backend.h"
#include "base/error.h"

struct kv_pool;

/* Where the content of a published page lies outside the pool; id 0: nowhere. */
struct kv_copy {
    uint64_t id;
    int32_t slot;
};

enum { KV_NO_PAGE = -1 }; /* as the parent of the first page of a chain */

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
    uint64_t n_lost; /* of those: pages without a copy */
};

/* n_pages: 1 or more. On success *out is the caller's, for kv_pool_free(). hash_seed: unknown to those who write
 * prompts, so that nobody can make long chains. TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status kv_pool_new(struct kv_pool **out, int n_pages, uint64_t hash_seed,
                                         struct tutti_error *err);
void kv_pool_free(struct kv_pool *pool); /* NULL is allowed */

struct kv_counts kv_pool_counts(const struct kv_pool *pool);

/* Takes n_pages unpublished pages, all or none, free ones first, then the cached ones that nobody used for longest.
 * False: wait or preempt. page_ids: [n_pages], written only on true; each page then has one holder. */
MUST_CHECK bool kv_pool_take(struct kv_pool *pool, int n_pages, int32_t *page_ids);

/* One more holder for each page; they must have one already. */
void kv_pool_share(struct kv_pool *pool, const int32_t *page_ids, int n_pages);

/* Drops one share of each page, the last page first. A page without holders is cached if published, else free. */
void kv_pool_drop(struct kv_pool *pool, const int32_t *page_ids, int n_pages);

/* More holders than one: it must be copied before it is written to. */
bool kv_pool_is_shared(const struct kv_pool *pool, int32_t page_id);

/* Takes a share of the longest run of published pages of this chain that holds the beginning of ids; returns its length, at
 * most n_ids / KV_PAGE_TOKENS. page_ids: room for that many. */
int kv_pool_match(struct kv_pool *pool, struct kv_chain chain, const int32_t *ids, int n_ids,
                  int32_t *page_ids);

/* Takes a share of the published page of this chain that holds ids [KV_PAGE_TOKENS] after parent (as below); -1: there is
 * none. */
int32_t kv_pool_take_next(struct kv_pool *pool, struct kv_chain chain, int32_t parent, const int32_t *ids);

/* Publishes the full page page_id of this chain, which holds ids [KV_PAGE_TOKENS] after parent (KV_NO_PAGE: it is the first;
 * else published, of the same chain, and held by the caller). Returns page_id, or where a page with that content is published
 * already, that one: the caller's share was moved there. */
int32_t kv_pool_publish(struct kv_pool *pool, int32_t page_id, struct kv_chain chain, int32_t parent,
                        const int32_t *ids);

/* Of a published page: its tokens [KV_PAGE_TOKENS], its chain, the page before it or KV_NO_PAGE, and the copy that the pool
 * remembers for it until the page gets another content. */
const int32_t *kv_pool_ids(const struct kv_pool *pool, int32_t page_id);
struct kv_chain kv_pool_chain(const struct kv_pool *pool, int32_t page_id);
int32_t kv_pool_parent(const struct kv_pool *pool, int32_t page_id);
bool kv_pool_is_published(const struct kv_pool *pool, int32_t page_id);
struct kv_copy *kv_pool_copy(struct kv_pool *pool, int32_t page_id);

/* The cached pages, in the order in which they will be given away: the one behind page_id, which must be cached; -1: the first.
 * -1: there is no further one. */
int32_t kv_pool_next_cached(const struct kv_pool *pool, int32_t page_id);
bool kv_pool_is_cached(const struct kv_pool *pool, int32_t page_id);

/* For the audit: checks all invariants against n_holders [n_pages], counted by the caller from its page tables.
 * NULL: all is well; else what is wrong, in a static buffer of the thread. */
const char *kv_pool_audit(const struct kv_pool *pool, const int32_t *n_holders);

#endif
