/* HTTP connections on libevent's buffered sockets: requests in, replies and streams out, limits kept.
 *
 * libevent's evhttp is not used: in 2.1 it answers its own errors (413, 400, 501) in HTML, has no deadline for a head
 * that trickles in, no moment between head and body, and takes framing that could be understood in two ways.
 *
 * One connection carries one request at a time; what a client sends ahead waits unread. A request's handler may reply
 * at once or later. Everything runs on the thread of the event loop. */
#ifndef TUTTI_SERVER_HTTP_HTTP_H
#define TUTTI_SERVER_HTTP_HTTP_H

#include "server/http/http_parse.h"
#include "server/http/http_pool.h"

struct event_base;
struct tls;
struct http;      /* all connections */
struct http_conn; /* one of them, and the request that it carries now */

/* Which listener a connection came through. */
enum http_door {
    HTTP_DOOR_API,     /* everything */
    HTTP_DOOR_METRICS, /* --metrics-listen: figures and health only */
};

struct http_options {
    size_t max_body_bytes, max_output_bytes;
    /* Of all connections, of one address (of IPv6: of a network of 64 bits), and of one loopback address or Unix socket;
     * 0: no bound. Where a bound is reached, the connection that has completed no request for longest makes room. */
    uint32_t max_connections, max_per_address, max_per_loopback;
    int header_timeout_s, idle_timeout_s;
    struct tls *tls; /* NULL: plain HTTP */
    void *user;
    /* The head has arrived, the body has not. May reply: then the body is not waited for. May be NULL. */
    void (*head)(void *user, struct http_conn *conn);
    /* The request is complete. Must reply, now or later. */
    void (*request)(void *user, struct http_conn *conn);
    /* Every reply passes here before its head is written, to add headers. May be NULL. */
    void (*reply)(void *user, struct http_conn *conn, int status);
    /* The reply's last byte was handed to the socket buffer, or the client is gone (is_complete false). May be NULL.
     * status 0: no reply had begun. */
    void (*done)(void *user, struct http_conn *conn, int status, bool is_complete);
};

struct http_counts {
    uint64_t n_open;            /* connections now */
    uint64_t n_accepted;        /* connections ever */
    uint64_t n_disconnects;     /* clients that left before their reply was complete */
    uint64_t n_slow_readers;    /* connections dropped since their client read too slowly */
    uint64_t n_timeouts;        /* requests that did not arrive in time */
    uint64_t n_evicted;         /* unfinished requests that made room in memory for others */
    uint64_t n_closed_for_room; /* connections closed to make room for others */
    uint64_t n_refused;         /* connections refused since all others had work */
    uint64_t n_body_bytes;      /* memory of requests that are unfinished or not yet parsed */
    uint64_t n_tls_failures;    /* TLS handshakes that failed or were not done in time */
};

MUST_CHECK enum tutti_status http_new(struct http **out, struct event_base *base,
                                      const struct http_options *options, struct tutti_error *err);
void http_free(struct http *http); /* closes every connection without further callbacks; NULL is allowed */

/* Bodies may be so large from now on, and the memory of all of them follows. */
void http_set_max_body(struct http *http, size_t n_bytes);

/* Takes the accepted socket over. peer is copied: "192.0.2.1:80", "[2001:db8::1]:80", or "unix". */
void http_accept(struct http *http, int fd, const char *peer, enum http_door door);

/* The system is out of descriptors: closes the connection that can be spared best. False: all have work. */
bool http_make_room(struct http *http);

/* No connection is kept alive from now on: the next reply on each is its last. */
void http_leave(struct http *http);
/* The same, and those that wait for a request are closed. */
void http_drain(struct http *http);
/* True while a request is being answered or its reply is not yet wholly in the kernel's hands. */
bool http_is_busy(const struct http *http);
void http_counts(const struct http *http, struct http_counts *out);

/* ---- the request, valid until the reply is complete ---- */
const struct http_head *http_request_head(const struct http_conn *conn);
/* Never NULL. Valid until the body is taken or released, or the reply is complete. */
const char *http_request_body(const struct http_conn *conn, size_t *n_bytes);
/* Frees the body, which has been parsed: until then it counts against what its client may hold. */
void http_release_body(struct http_conn *conn);
/* The same for a body that outlives the connection: the caller frees it with http_body_free(), on the loop's thread, as
 * soon as it is parsed. Its bytes may be read on any thread. NULL: the request has none. */
struct http_body *http_take_body(struct http_conn *conn);
const char *http_request_peer(const struct http_conn *conn);
enum http_door http_request_door(const struct http_conn *conn);
bool http_request_is_unix(const struct http_conn *conn);   /* came through a Unix socket */
const char *http_request_id(const struct http_conn *conn); /* "req_" and 24 hexadecimal digits */
uint64_t http_request_start_us(const struct http_conn *conn);

/* The client of the request, once its key is known. The name is for logs and limits: cut after 63 bytes, "" until it is set. The
 * tenant owns what the server keeps for the request (keys.h); 0 until it is set. */
void http_set_caller(struct http_conn *conn, const char *name, uint64_t tenant);
const char *http_caller(const struct http_conn *conn);
uint64_t http_tenant(const struct http_conn *conn);

/* Anything the handler wants to find again in the callback done. */
void http_set_data(struct http_conn *conn, void *data);
void *http_data(const struct http_conn *conn);

/* Called at most once, if the client goes (or is dropped) before the reply is complete; never from within a call
 * below. The connection must not be used from then on. NULL: nobody. */
void http_on_abort(struct http_conn *conn, void (*abort)(void *user), void *user);

/* ---- the reply ---- */

/* Adds a header to the reply that has not begun. value must hold no control characters. */
void http_header(struct http_conn *conn, const char *name, const char *value);

/* In the callback head: where the request has a body, nothing of it is read, and the reply is the connection's last. */
void http_close_after_body(struct http_conn *conn);

/* The whole reply. type: its Content-Type; NULL: no body. Afterwards the connection belongs to its next request. */
void http_reply(struct http_conn *conn, int status, const char *type, const void *body, size_t n_bytes);

/* A reply of unknown length, in pieces. Each piece goes out at once. A reader that leaves more than max_output_bytes
 * unread, or takes no byte for idle_timeout_s, is dropped: later pieces then vanish and the abort follows. */
void http_stream_begin(struct http_conn *conn, int status, const char *type);
void http_stream_write(struct http_conn *conn, const void *bytes, size_t n_bytes);
void http_stream_end(struct http_conn *conn);
bool http_stream_has_begun(const struct http_conn *conn);

#endif
