/* Connections: life, reading, deadlines. Replies are in http_reply.c. */
#include "server/http_conn.h"

#include "base/clock.h"
#include "base/log.h"
#include "server/tls.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/util.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LINGER_S = 2,                 /* a refused client may read its refusal that long */
    BODY_BYTES_PER_S = 64 * 1024, /* a body that comes slower is too slow */
    PIPELINE_BYTES = 64 * 1024,   /* read ahead at most, while a request is answered */
    READ_BYTES = 256 * 1024,      /* read at most before they are looked at */
    BODIES_AT_ONCE = 16,          /* all bodies together: as many full ones */
    SKIP_BYTES = 64 * 1024,       /* a longer body that nobody reads is not waited for: the connection ends */
    MAX_HANDSHAKES = 1024,        /* begun and not done; each holds some 50 KiB */
};

static void conn_process(struct http_conn *conn);

/* ---- life -------------------------------------------------------------------------------------------------------- */

enum tutti_status http_new(struct http **out, struct event_base *base, const struct http_options *options,
                           struct tutti_error *err)
{
    struct http *http = calloc(1, sizeof *http);
    if (!http)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the HTTP server");
    http->base = base;
    http->options = *options;
    http->reap = event_new(base, -1, 0, conn_reap_all, http);
    if (!http->reap) {
        free(http);
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the HTTP server");
    }
    *out = http;
    return TUTTI_OK;
}

/* Frees the connection and what it holds; tells nobody. */
static void conn_free(struct http_conn *conn)
{
    struct http *http = conn->http;
    *conn->link = conn->next;
    if (conn->next)
        conn->next->link = conn->link;
    http->n_body_bytes -= conn->body.n_bytes;
    http->counts.n_open--;
    http->n_handshakes -= conn->is_handshaking;
    event_free(conn->timer);
    tls_say_end(conn->bev);
    bufferevent_free(conn->bev);
    http_head_clear(&conn->head);
    buf_clear(&conn->body);
    buf_clear(&conn->extra);
    free(conn);
}

void http_free(struct http *http)
{
    if (!http)
        return;
    struct http_conn *next;
    for (struct http_conn *conn = http->conns; conn; conn = next) {
        next = conn->next;
        conn_free(conn);
    }
    event_free(http->reap);
    free(http);
}

/* Ends an exchange whose client is gone: the handler hears of it here and only here. */
static void conn_abort(struct http_conn *conn)
{
    struct http *http = conn->http;
    if (conn->state != CONN_ANSWER)
        return;
    if (!conn->is_doomed)
        http->counts.n_disconnects++;
    void (*aborted)(void *) = conn->aborted;
    conn->aborted = NULL;
    if (http->options.done)
        http->options.done(http->options.user, conn, conn->status, false);
    if (aborted)
        aborted(conn->aborted_user);
}

/* From callbacks of the loop only: handlers that are on the stack would be left with a dangling pointer. */
static void conn_close(struct http_conn *conn)
{
    conn_abort(conn);
    conn_free(conn);
}

void conn_doom(struct http_conn *conn)
{
    conn->is_doomed = true;
    event_active(conn->http->reap, EV_TIMEOUT, 0);
}

void conn_reap_all(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct http *http = arg;
    for (struct http_conn *conn = http->conns, *next; conn; conn = next) {
        next = conn->next; /* an abort cancels requests, it closes no other connection */
        if (conn->is_doomed)
            conn_close(conn);
    }
}

static void set_timer(struct http_conn *conn, int seconds)
{
    struct timeval tv = { .tv_sec = seconds };
    if (seconds > 0)
        evtimer_add(conn->timer, &tv);
    else
        evtimer_del(conn->timer);
}

/* ---- between requests -------------------------------------------------------------------------------------------- */

void conn_linger(struct http_conn *conn)
{
    /* Closing with unread input would reset the connection and could take the reply along. */
    conn->state = CONN_LINGER;
    bufferevent_setwatermark(conn->bev, EV_READ, 0, READ_BYTES);
    tls_say_end(conn->bev);
    shutdown(bufferevent_getfd(conn->bev), SHUT_WR);
    set_timer(conn, LINGER_S);
    if (conn->saw_end)
        conn_doom(conn);
}

/* Nothing of the last request is left but what of its body nobody reads. */
static void rest(struct http_conn *conn)
{
    if (conn->closes) {
        conn->state = CONN_FLUSH;
        set_timer(conn, 0);
        bufferevent_trigger(conn->bev, EV_WRITE, BEV_TRIG_DEFER_CALLBACKS);
        return;
    }
    conn->state = conn->n_unread ? CONN_SKIP : CONN_IDLE;
    set_timer(conn,
              conn->n_unread ? conn->http->options.header_timeout_s : conn->http->options.idle_timeout_s);
    bufferevent_setwatermark(conn->bev, EV_READ, 0, READ_BYTES);
    conn_process(conn);
}

/* The reply is complete: the next request, or the end. */
void conn_next(struct http_conn *conn)
{
    http_head_clear(&conn->head);
    conn->http->n_body_bytes -= conn->body.n_bytes;
    buf_clear(&conn->body);
    buf_clear(&conn->extra);
    conn->chunks = (struct http_chunks){ 0 };
    conn->n_scanned = 0;
    conn->aborted = NULL;
    conn->data = NULL;
    conn->status = 0;
    conn->caller[0] = '\0';
    conn->tenant = 0;
    conn->has_begun = false;
    rest(conn);
}

/* Refuses what cannot be understood as a request, and ends the connection after that. */
static void conn_refuse(struct http_conn *conn, int status, const char *why)
{
    conn->closes = true;
    conn->state = CONN_ANSWER;
    conn_begin_answer(conn);
    conn_reply_error(conn, status, why);
}

void conn_begin_answer(struct http_conn *conn)
{
    conn->state = CONN_ANSWER;
    set_timer(conn, 0);
    bufferevent_setwatermark(conn->bev, EV_READ, 0, PIPELINE_BYTES);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* True: the head is there and understood; the state says what is next. */
static bool read_head(struct http_conn *conn)
{
    struct evbuffer *in = bufferevent_get_input(conn->bev);
    if (conn->state == CONN_IDLE) {
        /* Empty lines before a request are skipped, RFC 9112 section 2.2. */
        char two[2];
        while (evbuffer_copyout(in, two, 2) == 2 && two[0] == '\r' && two[1] == '\n')
            evbuffer_drain(in, 2);
        if (!evbuffer_get_length(in))
            return false;
        conn->state = CONN_HEAD;
        conn->start_us = clock_now_us();
        request_id_make(conn->id, sizeof conn->id);
        set_timer(conn, conn->http->options.header_timeout_s);
    }
    size_t n = evbuffer_get_length(in);
    if (n > HTTP_MAX_HEAD_BYTES)
        n = HTTP_MAX_HEAD_BYTES;
    const char *bytes = (const char *)evbuffer_pullup(in, (ev_ssize_t)n);
    size_t from = conn->n_scanned > 3 ? conn->n_scanned - 3 : 0;
    const char *end = bytes ? memmem(bytes + from, n - from, "\r\n\r\n", 4) : NULL;
    conn->n_scanned = n;
    if (!end) {
        if (!bytes || n == HTTP_MAX_HEAD_BYTES)
            conn_refuse(conn, 431, "the request's head is larger than 32 KiB");
        else if (memchr(bytes, '\n', n) == bytes || memmem(bytes, n, "\n\n", 2))
            conn_refuse(conn, 400, "a line does not end in CR LF");
        return false;
    }
    const char *why = "";
    size_t n_head = (size_t)(end - bytes) + 4;
    int status = http_head_parse(&conn->head, bytes, n_head, &why);
    evbuffer_drain(in, n_head);
    if (status) {
        conn_refuse(conn, status, why);
        return false;
    }
    conn->closes = conn->closes || !conn->head.keep_alive || conn->http->is_leaving;
    return true;
}

/* The head is known: may this body come? The state says. */
static void begin_body(struct http_conn *conn)
{
    struct http *http = conn->http;
    bool has_body = conn->head.chunked || conn->head.n_body_bytes > 0;
    if (conn->head.n_body_bytes > http->options.max_body_bytes) {
        char why[128];
        snprintf(why, sizeof why, "the request's body of %llu bytes is larger than the limit of %zu bytes",
                 (unsigned long long)conn->head.n_body_bytes, http->options.max_body_bytes);
        conn_refuse(conn, 413, why);
        return;
    }
    conn->state = CONN_BODY;
    if (http->options.head) {
        /* A reply now leaves the body unread. A short one is on its way or here, and is passed over: a client that is refused
         * keeps its connection, and costs no new one. Who waits for "100 Continue" may send it or not: nobody knows where
         * the next request would begin. */
        bool closes = conn->closes, is_short = !conn->head.chunked && conn->head.n_body_bytes <= SKIP_BYTES &&
                                               !conn->head.expects_continue;
        conn_begin_answer(conn);
        conn->n_unread = is_short ? (size_t)conn->head.n_body_bytes : 0;
        conn->closes = closes || (has_body && !is_short);
        http->options.head(http->options.user, conn);
        if (conn->state != CONN_ANSWER || conn->has_begun)
            return;
        conn->n_unread = 0;
        conn->closes = closes;
        conn->state = CONN_BODY;
    }
    if (!has_body)
        return;
    bufferevent_setwatermark(conn->bev, EV_READ, 0, READ_BYTES);
    set_timer(conn, http->options.header_timeout_s +
                        (int)((conn->head.chunked ? http->options.max_body_bytes : conn->head.n_body_bytes) /
                              BODY_BYTES_PER_S));
    if (conn->head.expects_continue && !evbuffer_get_length(bufferevent_get_input(conn->bev)))
        bufferevent_write(conn->bev, "HTTP/1.1 100 Continue\r\n\r\n", 25);
}

/* True: the body is complete. */
static bool read_body(struct http_conn *conn)
{
    struct http *http = conn->http;
    struct evbuffer *in = bufferevent_get_input(conn->bev);
    size_t n = evbuffer_get_length(in), before = conn->body.n_bytes;
    if (conn->head.chunked) {
        const char *why = "", *bytes = (const char *)evbuffer_pullup(in, -1);
        size_t n_used = 0;
        int status = 0;
        if (n > 0 && bytes)
            status = http_chunks_read(&conn->chunks, bytes, n, &n_used, &conn->body,
                                      http->options.max_body_bytes, &why);
        evbuffer_drain(in, n_used);
        http->n_body_bytes += conn->body.n_bytes - before;
        if (status) {
            conn_refuse(conn, status, why);
            return false;
        }
    } else {
        if (n > conn->head.n_body_bytes - before)
            n = (size_t)(conn->head.n_body_bytes - before);
        if (!buf_reserve(&conn->body, n)) {
            conn_refuse(conn, 503, "out of memory");
            return false;
        }
        evbuffer_remove(in, conn->body.bytes + before, n);
        conn->body.n_bytes += n;
        conn->body.bytes[conn->body.n_bytes] = '\0';
        http->n_body_bytes += n;
    }
    if (conn->body.n_bytes > before && http->n_body_bytes / BODIES_AT_ONCE > http->options.max_body_bytes) {
        conn_refuse(conn, 503, "too many large requests at once, try again later");
        return false;
    }
    return conn->head.chunked ? conn->chunks.state == CHUNK_DONE
                              : conn->body.n_bytes == conn->head.n_body_bytes;
}

/* True: nothing of the body is left. */
static bool skip_body(struct http_conn *conn)
{
    struct evbuffer *in = bufferevent_get_input(conn->bev);
    size_t n = evbuffer_get_length(in);
    n = n < conn->n_unread ? n : conn->n_unread;
    evbuffer_drain(in, n);
    conn->n_unread -= n;
    return conn->n_unread == 0;
}

/* Goes on as far as the input reaches. Handlers that reply at once come back here through conn_next(). */
static void conn_process(struct http_conn *conn)
{
    if (conn->is_processing)
        return; /* the loop below goes on */
    conn->is_processing = true;
    while (!conn->is_doomed) {
        /* Who sends requests and reads no replies is not served ahead. */
        if (conn->state == CONN_IDLE &&
            evbuffer_get_length(bufferevent_get_output(conn->bev)) > PIPELINE_BYTES)
            break;
        if (conn->state == CONN_IDLE || conn->state == CONN_HEAD) {
            if (read_head(conn))
                begin_body(conn);
            else if (conn->state == CONN_IDLE || conn->state == CONN_HEAD)
                break;
        } else if (conn->state == CONN_BODY) {
            if ((conn->head.chunked || conn->head.n_body_bytes) && !read_body(conn)) {
                if (conn->state == CONN_BODY)
                    break;
                continue;
            }
            conn_begin_answer(conn);
            conn->http->options.request(conn->http->options.user, conn);
        } else if (conn->state == CONN_SKIP && skip_body(conn)) {
            rest(conn);
        } else {
            break;
        }
    }
    conn->is_processing = false;
}

/* ---- callbacks of the loop --------------------------------------------------------------------------------------- */

static void on_read(struct bufferevent *bev, void *arg)
{
    struct http_conn *conn = arg;
    if (conn->state == CONN_LINGER || conn->state == CONN_FLUSH)
        evbuffer_drain(bufferevent_get_input(bev), evbuffer_get_length(bufferevent_get_input(bev)));
    else
        conn_process(conn);
}

/* The output is empty. */
static void on_write(struct bufferevent *bev, void *arg)
{
    struct http_conn *conn = arg;
    if (evbuffer_get_length(bufferevent_get_output(bev)) > 0)
        return;
    if (conn->state == CONN_FLUSH)
        conn_linger(conn);
    else if (conn->state == CONN_IDLE)
        conn_process(conn);
}

static void drop_handshake(struct http_conn *conn, const char *why)
{
    conn->http->counts.n_tls_failures++;
    log_debug("%s: TLS handshake: %s", conn->peer, why);
    conn_close(conn);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct http_conn *conn = arg;
    if (what & BEV_EVENT_CONNECTED) {
        conn->is_handshaking = false;
        conn->http->n_handshakes--;
        set_timer(conn, conn->http->options.idle_timeout_s);
        return;
    }
    if (conn->is_handshaking) {
        drop_handshake(conn, tls_why(bev));
        return;
    }
    if (what & BEV_EVENT_TIMEOUT)
        conn->http->counts.n_slow_readers++;
    /* A client that has sent all and closed its side may still read a reply that is complete. */
    bool has_output = evbuffer_get_length(bufferevent_get_output(bev)) > 0;
    if (what & BEV_EVENT_EOF && what & BEV_EVENT_READING && has_output &&
        (conn->state == CONN_FLUSH || conn->state == CONN_IDLE || conn->state == CONN_SKIP)) {
        conn->saw_end = true;
        conn->state = CONN_FLUSH;
        set_timer(conn, 0);
        bufferevent_enable(bev, EV_WRITE); /* at the end of its input libevent's TLS stops writing too */
        return;
    }
    conn_close(conn);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct http_conn *conn = arg;
    if (conn->state == CONN_HEAD || conn->state == CONN_BODY) {
        conn->http->counts.n_timeouts++;
        conn_refuse(conn, 408, "the request did not arrive in time");
    } else if (conn->is_handshaking) {
        drop_handshake(conn, "not done in time");
    } else {
        conn_close(conn);
    }
}

static struct bufferevent *open_socket(struct http *http, int fd)
{
    return http->options.tls ? tls_accept(http->options.tls, http->base, fd)
                             : bufferevent_socket_new(http->base, fd, BEV_OPT_CLOSE_ON_FREE);
}

/* Who begins handshakes and does not go on must not keep others out: the oldest one has had its time. */
static void drop_oldest_handshake(struct http *http)
{
    struct http_conn *oldest = NULL;
    for (struct http_conn *conn = http->conns; conn; conn = conn->next)
        oldest = conn->is_handshaking ? conn : oldest; /* new ones stand in front */
    if (oldest)
        drop_handshake(oldest, "too many at once");
}

void http_accept(struct http *http, int fd, const char *peer)
{
    if (http->n_handshakes >= MAX_HANDSHAKES)
        drop_oldest_handshake(http);
    struct http_conn *conn = calloc(1, sizeof *conn);
    struct bufferevent *bev = conn ? open_socket(http, fd) : NULL;
    struct event *timer = bev ? evtimer_new(http->base, on_timer, conn) : NULL;
    if (!timer) {
        log_error("%s: no memory for a connection", peer);
        if (bev)
            bufferevent_free(bev);
        else
            close(fd);
        free(conn);
        return;
    }
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); /* fails on Unix sockets, which need it not */
    conn->http = http;
    conn->bev = bev;
    conn->timer = timer;
    conn->closes = http->is_leaving;
    conn->is_handshaking = http->options.tls != NULL;
    http->n_handshakes += conn->is_handshaking;
    snprintf(conn->peer, sizeof conn->peer, "%s", peer);
    conn->next = http->conns;
    conn->link = &http->conns;
    if (conn->next)
        conn->next->link = &conn->next;
    http->conns = conn;
    http->counts.n_open++;
    http->counts.n_accepted++;
    struct timeval write_timeout = { .tv_sec = http->options.idle_timeout_s };
    bufferevent_set_timeouts(bev, NULL, &write_timeout);
    bufferevent_setcb(bev, on_read, on_write, on_event, conn);
    bufferevent_setwatermark(bev, EV_READ, 0, READ_BYTES);
    bufferevent_enable(bev, EV_READ | EV_WRITE);
    set_timer(conn, conn->is_handshaking ? http->options.header_timeout_s : http->options.idle_timeout_s);
}

void http_leave(struct http *http)
{
    http->is_leaving = true;
}

void http_drain(struct http *http)
{
    http_leave(http);
    for (struct http_conn *conn = http->conns; conn; conn = conn->next) {
        conn->closes = true;
        if (conn->state == CONN_IDLE && !evbuffer_get_length(bufferevent_get_output(conn->bev)))
            conn_doom(conn);
    }
}

bool http_is_busy(const struct http *http)
{
    for (const struct http_conn *conn = http->conns; conn; conn = conn->next)
        if (conn->state == CONN_ANSWER || evbuffer_get_length(bufferevent_get_output(conn->bev)) > 0)
            return true;
    return false;
}

void http_counts(const struct http *http, struct http_counts *out)
{
    *out = http->counts;
}
