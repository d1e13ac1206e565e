/* Requests to the process of a model, by its Unix socket: HTTP/1.1, one request a connection. */
#ifndef TUTTI_SERVER_MODELS_UPSTREAM_H
#define TUTTI_SERVER_MODELS_UPSTREAM_H

#include "server/http/http.h"

struct upstream;

/* What happens to a request that is sent on. None is called during upstream_forward(). */
struct upstream_handler {
    void (*begun)(void *user); /* the reply has begun */
    /* Must reply to conn, or end its stream, with an error. */
    void (*failed)(void *user, struct http_conn *conn, const struct tutti_error *err);
    /* No reply came, conn is as before: it may be sent again. */
    void (*lost)(void *user, const struct tutti_error *err);
    /* Called last, after failed too but not after lost: the reply is complete, or the client has
     * disconnected. */
    void (*ended)(void *user);
    void *user;
};

/* Sends the request of conn with this body (NULL: none; borrowed during the call) to the socket, and the
 * reply to conn as it comes. The client's address goes along as X-Forwarded-For, the request's id as
 * X-Request-Id. NULL: out of memory; nothing was replied. */
struct upstream *upstream_forward(struct event_base *base, const char *socket, struct http_conn *conn,
                                  const struct buf *body, const struct upstream_handler *handler);

/* n_total: the reply's header X-Total-Count; 0: it has none. */
typedef void upstream_got_fn(void *user, const struct buf *body, size_t n_total);

/* Gets a path. got: called once, not during the call; body NULL: it failed. NULL: out of memory. */
struct upstream *upstream_get(struct event_base *base, const char *socket, const char *path,
                              upstream_got_fn *got, void *user);

/* Closes the connection without further callbacks. */
void upstream_free(struct upstream *upstream);

#endif
