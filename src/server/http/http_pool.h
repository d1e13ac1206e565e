/* Memory for unparsed requests, their bodies and unfinished heads, shared fairly between clients; and
 * that for replies, whose memory is charged as that of complete bodies.
 *
 * There are two limits: for all clients together, and for each client. When a body would exceed a
 * limit, an unfinished body is evicted: the largest one of the client that exceeds its share, or
 * else of the client that holds most; stalled bodies go first. So a client that fills the memory
 * loses its own requests, and those of other clients are received.
 *
 * Thread of the event loop only. */
#ifndef TUTTI_SERVER_HTTP_HTTP_POOL_H
#define TUTTI_SERVER_HTTP_HTTP_POOL_H

#include "base/buf.h"
#include "base/error.h"

#include <sys/queue.h>

struct http_pool;

/* The bytes of one request. It counts against its client's share until http_body_free(). */
struct http_body {
    struct buf bytes;
    struct http_share *share;   /* of its client */
    LIST_ENTRY(http_body) link; /* in the list of that client's bodies */
    void *user;                 /* its receiver; NULL: it is complete and cannot be evicted */
    size_t n_charged;
    uint64_t start_us, last_us; /* its first byte, its latest */
};

MUST_CHECK enum tutti_status http_pool_new(struct http_pool **out, size_t max_bytes, size_t max_client_bytes,
                                           struct tutti_error *err);
/* Changes the limits. */
void http_pool_set_bounds(struct http_pool *pool, size_t max_bytes, size_t max_client_bytes);
/* Bodies that still exist keep the pool's memory until they are freed. NULL is allowed. */
void http_pool_free(struct http_pool *pool);

/* Creates a body of the client of that name. user: its receiver. NULL: out of memory. */
struct http_body *http_body_new(struct http_pool *pool, const char *client, void *user);
void http_body_free(struct http_body *body); /* NULL is allowed */

/* Charges the current size of body->bytes, plus n_extra bytes elsewhere. now_us: when the latest
 * byte arrived. */
void http_body_charge(struct http_body *body, size_t n_extra, uint64_t now_us);
/* Charges n_bytes instead of what was charged before. */
void http_body_set_charge(struct http_body *body, size_t n_bytes);
/* True: both limits hold, its client's and the total one. */
bool http_body_fits(const struct http_body *body);
/* Whether it takes more than its client may ever have. most: bytes of that. */
bool http_body_is_too_large(const struct http_body *body, size_t *most);
/* Marks the body as complete: it cannot be evicted before it is parsed and freed. */
void http_body_complete(struct http_body *body);

/* The unfinished body to evict so that the limits hold again; grown: the one that has just grown.
 * NULL: the limits hold, or nothing can be evicted. */
struct http_body *http_pool_victim(struct http_pool *pool, const struct http_body *grown, uint64_t now_us);
/* True: no byte of it has arrived for a second. */
bool http_body_has_stalled(const struct http_body *body, uint64_t now_us);

size_t http_pool_bytes(const struct http_pool *pool); /* charged now */

#endif
