/* HTTP connections on libevent's buffered sockets: requests in, replies and streams out, with
 * limits.
 *
 * libevent's evhttp is not used: in 2.1 it answers its own errors (413, 400, 501) in HTML, has no
 * deadline for a slowly arriving head, has no callback between head and body, and accepts ambiguous
 * framing.
 *
 * One connection has one request at a time; pipelined requests stay unread meanwhile. A request's
 * handler may reply at once or later. Everything runs on the thread of the event loop. */
#ifndef TUTTI_SERVER_HTTP_HTTP_H
#define TUTTI_SERVER_HTTP_HTTP_H

#include "server/http/http_parse.h"
#include "server/http/http_pool.h"

#include <jansson.h>

struct event_base;
struct tls;
struct http;      /* all connections */
struct http_conn; /* one connection, with its current request */

/* The listener that accepted a connection. */
enum http_service {
    HTTP_SERVICE_API,     /* everything */
    HTTP_SERVICE_METRICS, /* --metrics-listen: only metrics and health */
};

struct http_options {
    size_t max_body_bytes, max_output_bytes;
    /* Connections in total, per address (IPv6: per /64 network), and per loopback address or Unix
     * socket; 0: no limit. At a limit, the idle connection whose last complete request is oldest is
     * closed. */
    uint32_t max_connections, max_per_address, max_per_loopback;
    int header_timeout_s, idle_timeout_s;
    struct tls *tls; /* NULL: plain HTTP */
    /* Requests come from the process of several models only, which names their clients and ids in
     * X-Forwarded-For and X-Request-Id. */
    bool is_behind;
    void *user;
    /* The head has arrived, the body has not. May reply; the body is then not awaited. May be NULL. */
    void (*head)(void *user, struct http_conn *conn);
    /* The request is complete. Must reply, now or later. */
    void (*request)(void *user, struct http_conn *conn);
    /* Called before the head of every reply is written, to add headers. May be NULL. */
    void (*reply)(void *user, struct http_conn *conn, int status);
    /* A whole reply was not sent, because the client's replies take too much memory. Must reply with this
     * error. */
    void (*fail)(void *user, struct http_conn *conn, const struct tutti_error *err);
    /* The reply's last byte is in the socket buffer, or the client has disconnected (is_complete
     * false). May be NULL. status 0: no reply had begun. */
    void (*done)(void *user, struct http_conn *conn, int status, bool is_complete);
};

struct http_counts {
    uint64_t n_open;            /* connections now */
    uint64_t n_accepted;        /* connections since the start */
    uint64_t n_disconnects;     /* clients that disconnected before their reply was complete */
    uint64_t n_slow_readers;    /* connections dropped because the client read too slowly */
    uint64_t n_timeouts;        /* requests that did not arrive in time */
    uint64_t n_evicted;         /* unfinished requests dropped to free memory for others */
    uint64_t n_closed_for_room; /* idle connections closed for new ones */
    uint64_t n_refused;         /* connections refused because all others were busy */
    uint64_t n_body_bytes;      /* memory of requests that are unfinished or not yet parsed */
    uint64_t n_reply_bytes;     /* memory of replies */
    uint64_t n_tls_failures;    /* TLS handshakes that failed or timed out */
};

MUST_CHECK enum tutti_status http_new(struct http **out, struct event_base *base,
                                      const struct http_options *options, struct tutti_error *err);
void http_free(struct http *http); /* closes every connection without further callbacks; NULL is allowed */

/* Sets the limit of a body from now on; the memory for all bodies and replies is scaled with it. */
void http_set_max_body(struct http *http, size_t n_bytes);

/* Takes ownership of an accepted socket. peer is copied: as in struct http_request. */
void http_accept(struct http *http, int fd, const char *peer, enum http_service service);

/* For a process out of file descriptors: closes the idle connection of http_sources_victim(). False: all
 * are busy. */
bool http_make_room(struct http *http);

/* Ends keep-alive: from now on the next reply on each connection is its last. */
void http_leave(struct http *http);
/* The same, and closes idle connections. */
void http_drain(struct http *http);
/* True while a request is being answered or its reply is not completely in the kernel. */
bool http_is_busy(const struct http *http);
void http_counts(const struct http *http, struct http_counts *out);

/* ---- the request, valid until the reply is complete ---- */

struct http_request {
    struct http_head head;
    char id[32];     /* "req_" and 24 hexadecimal digits */
    char peer[64];   /* of the connection: "192.0.2.1:80", "[2001:db8::1]:80", or "unix" for a Unix socket */
    char client[64]; /* whose request it is: peer, or as the process in front has named it */
    enum http_service service;
    uint64_t start_us;
    /* Its client, see http_set_caller(). The name is for logs and limits. The tenant owns what the server
     * keeps for the request (keys.h). */
    char caller[64];
    uint64_t tenant;
    void *data; /* see http_set_data() */
};
const struct http_request *http_request(const struct http_conn *conn);

/* Takes ownership of the body, which may outlive the connection: call http_body_free() on the loop's
 * thread as soon as it is parsed; until then it counts against its client's memory. Its bytes may be
 * read on any thread. NULL: the request has no body. */
struct http_body *http_take_body(struct http_conn *conn);

/* Smaller replies are limited by their number. */
enum { HTTP_SMALL_REPLY_BYTES = 64 * 1024 };

/* Memory of a reply to this request, which the caller sets with http_body_set_charge(). It may outlive the
 * connection, and is freed as a body. NULL: out of memory. */
struct http_body *http_reply_memory(const struct http_conn *conn);
/* TUTTI_E_BUSY: the replies to the client's requests, with that one, take too much memory. */
MUST_CHECK enum tutti_status http_check_reply_memory(const struct http_body *memory, struct tutti_error *err);

/* Sets the client of the request after its key was checked; the name is cut after 63 bytes. "" and 0
 * until it is set. */
void http_set_caller(struct http_conn *conn, const char *name, uint64_t tenant);

/* Data of the handler, for the callback done. */
void http_set_data(struct http_conn *conn, void *data);

/* abort is called at most once, if the client disconnects (or is dropped) before the reply is
 * complete; never from within a call below. The connection must not be used after it. NULL: none. */
void http_on_abort(struct http_conn *conn, void (*abort)(void *user), void *user);

/* True: a request of Anthropic's API, by its path or its header anthropic-version. Its errors have that
 * API's format. */
bool http_is_anthropic(const struct http_conn *conn);
/* An error in the format of the request's API. */
json_t *http_error_value(const struct http_conn *conn, int status, const struct tutti_error *err);

/* ---- the reply ---- */

/* Adds a header to a reply that has not begun. value must not have control characters. */
void http_header(struct http_conn *conn, const char *name, const char *value);

/* In the callback head: closes the connection after the reply, without reading the request's body. */
void http_close_after_body(struct http_conn *conn);

/* Sends the whole reply. type: its Content-Type; NULL: no body. The connection then goes on to its
 * next request. The reply counts against the client's memory until the client has read it; if it does not
 * fit, the callback fail replies instead. */
void http_reply(struct http_conn *conn, int status, const char *type, const void *body, size_t n_bytes);
/* Counts the bytes of a whole reply before http_reply(), for a caller that collects them. TUTTI_E_BUSY: they
 * do not fit; the reply's headers are dropped. */
MUST_CHECK enum tutti_status http_hold_reply(struct http_conn *conn, size_t n_bytes, struct tutti_error *err);

/* A chunked reply. Each write goes out at once. A client that leaves more than max_output_bytes
 * unread, or reads nothing for idle_timeout_s, is dropped: later writes are ignored and the abort
 * callback follows. */
void http_stream_begin(struct http_conn *conn, int status, const char *type);
void http_stream_write(struct http_conn *conn, const void *bytes, size_t n_bytes);
void http_stream_end(struct http_conn *conn);
bool http_stream_has_begun(const struct http_conn *conn);

#endif
