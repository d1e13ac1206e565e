/* Internals of a connection, shared by http.c and http_reply.c only. */
#ifndef TUTTI_SERVER_HTTP_HTTP_CONN_H
#define TUTTI_SERVER_HTTP_HTTP_CONN_H

#include "server/http/http.h"
#include "server/http/http_source.h"

#include <event2/util.h>
#include <sys/queue.h>
#include <time.h>

struct bufferevent;
struct event;

struct http {
    struct event_base *base;
    struct http_options options;
    LIST_HEAD(, http_conn) conns; /* the newest is first */
    struct event *reap;           /* closes doomed connections when no handler is on the stack */
    struct http_counts counts;
    struct http_pool *pool;       /* memory of bodies and unfinished heads */
    struct http_pool *replies;    /* memory of replies */
    struct http_sources *sources; /* of the connections */
    int n_handshakes;             /* TLS handshakes under way */
    bool is_leaving;
    char date[64]; /* the header Date, for date_time */
    time_t date_time;
};

struct http_conn {
    struct http *http;
    LIST_ENTRY(http_conn) link; /* in http->conns */
    struct bufferevent *bev;
    struct event *timer;
    enum {
        CONN_IDLE,   /* no byte of the next request yet */
        CONN_HEAD,   /* receiving its head */
        CONN_BODY,   /* receiving its body */
        CONN_ANSWER, /* the handler works on it */
        CONN_SKIP,   /* answered; the rest of its body is discarded */
        CONN_FLUSH,  /* sending the last reply */
        CONN_LINGER, /* all sent, waiting for the client to close */
    } state;
    bool closes;        /* close after this reply */
    bool is_processing; /* conn_process() is on the stack */
    bool is_doomed;     /* to be closed by the reaper */
    bool saw_end;       /* the client has shut down its side; it may still read */
    bool is_handshaking;
    struct http_seat seat;
    struct http_request request;
    struct http_body *body; /* or the memory charged for the unfinished head; NULL: none */
    size_t n_window;        /* size of the body at the start of the current timeout */
    uint64_t probe_us; /* when the server last wrote to a client to find out whether it has disconnected */
    struct http_chunks chunks;
    size_t n_scanned; /* bytes of the input without the end of a head */
    size_t n_unread;  /* bytes of a body to discard before the next request */

    struct http_body *unsent; /* memory of a whole reply that the client has not read yet; NULL: none */
    struct buf extra;         /* added header lines of the reply */
    int status;               /* of the reply; 0: not begun */
    bool has_begun, is_chunked;
    void (*aborted)(void *user);
    void *aborted_user;
};

void conn_next(struct http_conn *conn);          /* after a complete reply */
void conn_doom(struct http_conn *conn);          /* closes it soon, from the loop */
void conn_release_reply(struct http_conn *conn); /* its client has read the reply */
void conn_reply_error(struct http_conn *conn, int status, const char *why);
void request_id_make(char *out, size_t n_bytes);

#endif
