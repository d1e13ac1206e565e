#include "server/http/http_pool.h"

#include "server/http/by_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 96, OVERHEAD_BYTES = 512, /* of an empty body */ STALL_US = 1000000 };

/* The bodies of one client. It exists while the client has a body. */
struct http_share {
    char name[NAME_BYTES]; /* the first member: by_name.h */
    struct http_pool *pool;
    LIST_ENTRY(http_share) link; /* in the pool */
    LIST_HEAD(, http_body) bodies;
    size_t n_bytes;
};

struct http_pool {
    LIST_HEAD(, http_share) shares;
    void *tree; /* of the shares */
    size_t n_bytes, max_bytes, max_client_bytes;
    size_t n_bodies;
    bool is_closed; /* the last body frees the pool */
};

enum tutti_status http_pool_new(struct http_pool **out, size_t max_bytes, size_t max_client_bytes,
                                struct tutti_error *err)
{
    struct http_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the HTTP server");
    pool->max_bytes = max_bytes;
    pool->max_client_bytes = max_client_bytes;
    *out = pool;
    return TUTTI_OK;
}

void http_pool_free(struct http_pool *pool)
{
    if (!pool)
        return;
    pool->is_closed = true;
    if (pool->n_bodies == 0)
        free(pool);
}

static struct http_share *share_of(struct http_pool *pool, const char *client)
{
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s", client);
    struct http_share *share = by_name_find(&pool->tree, name);
    if (share)
        return share;
    share = calloc(1, sizeof *share);
    if (!share)
        return NULL;
    memcpy(share->name, name, sizeof name);
    share->pool = pool;
    if (!tsearch(share, &pool->tree, by_name)) {
        free(share);
        return NULL;
    }
    LIST_INSERT_HEAD(&pool->shares, share, link);
    return share;
}

void http_body_set_charge(struct http_body *body, size_t n_bytes)
{
    struct http_share *share = body->share;
    share->n_bytes = share->n_bytes - body->n_charged + n_bytes;
    share->pool->n_bytes = share->pool->n_bytes - body->n_charged + n_bytes;
    body->n_charged = n_bytes;
}

struct http_body *http_body_new(struct http_pool *pool, const char *client, void *user)
{
    struct http_body *body = calloc(1, sizeof *body);
    struct http_share *share = body ? share_of(pool, client) : NULL;
    if (!share) {
        free(body);
        return NULL;
    }
    body->share = share;
    body->user = user;
    LIST_INSERT_HEAD(&share->bodies, body, link);
    pool->n_bodies++;
    http_body_set_charge(body, OVERHEAD_BYTES);
    return body;
}

void http_body_free(struct http_body *body)
{
    if (!body)
        return;
    struct http_share *share = body->share;
    struct http_pool *pool = share->pool;
    http_body_set_charge(body, 0);
    LIST_REMOVE(body, link);
    buf_clear(&body->bytes);
    free(body);
    if (LIST_EMPTY(&share->bodies)) {
        LIST_REMOVE(share, link);
        tdelete(share, &pool->tree, by_name);
        free(share);
    }
    if (--pool->n_bodies == 0 && pool->is_closed)
        free(pool);
}

void http_body_charge(struct http_body *body, size_t n_extra, uint64_t now_us)
{
    if (!body->start_us)
        body->start_us = now_us;
    body->last_us = now_us;
    http_body_set_charge(body, OVERHEAD_BYTES + body->bytes.capacity + n_extra);
}

void http_pool_set_bounds(struct http_pool *pool, size_t max_bytes, size_t max_client_bytes)
{
    pool->max_bytes = max_bytes;
    pool->max_client_bytes = max_client_bytes;
}

bool http_body_fits(const struct http_body *body)
{
    const struct http_pool *pool = body->share->pool;
    return body->share->n_bytes <= pool->max_client_bytes && pool->n_bytes <= pool->max_bytes;
}

bool http_body_is_too_large(const struct http_body *body, size_t *most)
{
    const struct http_pool *pool = body->share->pool;
    *most = pool->max_client_bytes < pool->max_bytes ? pool->max_client_bytes : pool->max_bytes;
    return body->n_charged > *most;
}

void http_body_complete(struct http_body *body)
{
    body->user = NULL;
    http_body_set_charge(body, OVERHEAD_BYTES + body->bytes.capacity);
}

bool http_body_has_stalled(const struct http_body *body, uint64_t now_us)
{
    return now_us - body->last_us >= STALL_US;
}

/* Order of eviction; the older one of equals. */
static bool goes_before(const struct http_body *a, const struct http_body *b, uint64_t now_us)
{
    bool a_stalled = http_body_has_stalled(a, now_us), b_stalled = http_body_has_stalled(b, now_us);
    if (a_stalled != b_stalled)
        return a_stalled;
    return a->n_charged != b->n_charged ? a->n_charged > b->n_charged : a->start_us <= b->start_us;
}

/* A client's unfinished body to evict first; NULL: all are complete. */
static struct http_body *first_of(const struct http_share *share, uint64_t now_us)
{
    struct http_body *found = NULL, *body;
    LIST_FOREACH (body, &share->bodies, link)
        if (body->user && (!found || goes_before(body, found, now_us)))
            found = body;
    return found;
}

/* The body to evict first: a stalled body of the client that holds most among those that have one,
 * else any body. An eviction frees at least about as many bytes as the search has looked at, so the
 * search is paid for. */
static struct http_body *first_of_all(struct http_pool *pool, uint64_t now_us)
{
    struct http_body *found = NULL;
    const struct http_share *share;
    LIST_FOREACH (share, &pool->shares, link) {
        struct http_body *body = first_of(share, now_us);
        if (!body)
            continue;
        bool stalled = http_body_has_stalled(body, now_us);
        bool found_stalled = found && http_body_has_stalled(found, now_us);
        if (!found || (stalled != found_stalled ? stalled : share->n_bytes > found->share->n_bytes))
            found = body;
    }
    return found;
}

struct http_body *http_pool_victim(struct http_pool *pool, const struct http_body *grown, uint64_t now_us)
{
    if (grown->share->n_bytes > pool->max_client_bytes)
        return first_of(grown->share, now_us);
    return pool->n_bytes > pool->max_bytes ? first_of_all(pool, now_us) : NULL;
}

size_t http_pool_bytes(const struct http_pool *pool)
{
    return pool->n_bytes;
}
