/* Memory for requests that have not been parsed yet: their bodies and unfinished heads, shared fairly between clients.
 *
 * Two bounds hold: one for all clients together, one for each client. Where a body would exceed a bound, an unfinished
 * body must go: the largest one of the client that has exceeded its share, or else of the client that holds most; bodies
 * that have stalled go first. So a client that fills the memory loses its own requests; the next client's is read.
 *
 * Thread of the event loop only. */
#ifndef TUTTI_SERVER_HTTP_HTTP_POOL_H
#define TUTTI_SERVER_HTTP_HTTP_POOL_H

#include "base/buf.h"
#include "base/error.h"

struct http_pool;

/* The bytes of one request. It counts against its client's share until http_body_free(). */
struct http_body {
    struct buf bytes;
    struct http_share *share;       /* of its client */
    struct http_body *next, **link; /* among the bodies of that client */
    void *user;                     /* its receiver; NULL: it is complete and cannot be evicted */
    size_t n_charged;
    uint64_t start_us, last_us; /* its first byte, its latest */
};

MUST_CHECK enum tutti_status http_pool_new(struct http_pool **out, size_t max_bytes, size_t max_client_bytes,
                                           struct tutti_error *err);
/* Others from now on. */
void http_pool_set_bounds(struct http_pool *pool, size_t max_bytes, size_t max_client_bytes);
/* Bodies that are still held keep the pool's memory until they are freed. NULL is allowed. */
void http_pool_free(struct http_pool *pool);

/* A body of the client of that name. user: its receiver. NULL: out of memory. */
struct http_body *http_body_new(struct http_pool *pool, const char *client, void *user);
void http_body_free(struct http_body *body); /* NULL is allowed */

/* Charges what body->bytes holds now, and n_extra bytes that lie elsewhere. now_us: when the latest of them came. */
void http_body_charge(struct http_body *body, size_t n_extra, uint64_t now_us);
/* Neither bound is exceeded, by its client or by all. */
bool http_body_fits(const struct http_body *body);
/* The body is complete: it stays where it is until it is parsed and freed. */
void http_body_complete(struct http_body *body);

/* The unfinished body that must go for the bounds to hold again, grown being the one that has just grown. NULL: the
 * bounds hold, or nothing can go. */
struct http_body *http_pool_victim(struct http_pool *pool, const struct http_body *grown, uint64_t now_us);
/* No byte of it has come for a second. */
bool http_body_has_stalled(const struct http_body *body, uint64_t now_us);

size_t http_pool_bytes(const struct http_pool *pool); /* charged now */

#endif
