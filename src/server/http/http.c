/* HTTP connections: creation, reading, timeouts, closing. Replies are in http_reply.c. */
#include "base/system/os.h"
#include "server/http/http_conn.h"

#include "base/log.h"
#include "base/system/clock.h"
#include "server/http/clients.h"
#include "server/http/tls.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/util.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LINGER_S = 2, /* a refused client has this long to read the error */
    BODY_BYTES_PER_S = 16 *
                       1024, /* a body that arrives slower, in any window of header_timeout_s, is too slow */
    PIPELINE_BYTES = 64 * 1024, /* bytes read ahead while a request is answered, then no more are read */
    POOL_BODIES = 16,           /* memory for all requests: this many bodies of the largest size ... */
    POOL_LEAST_BYTES = 64 * 1024 * 1024, /* ... and at least this */
    CHAIN_FACTOR = 4,       /* libevent's buffers allocate up to this many times their contents */
    POOL_REPLIES = 4,       /* memory for all replies: this many times that for all requests */
    POOL_CLIENTS = 4,       /* one client may hold 1 / POOL_CLIENTS of that memory */
    SKIP_BYTES = 64 * 1024, /* unread bodies up to this are skipped; a longer one ends the connection */
    MAX_HANDSHAKES = 1024,  /* under way at the same time; each takes some 50 KiB */
    LOOK_MS = 100,          /* between checks whether a client that is not read has disconnected */
    PROBE_S = 10,           /* between attempts to find that out by writing to it */
    KEEPALIVE_IDLE_S = 30,
    KEEPALIVE_INTERVAL_S = 10,
    KEEPALIVE_PROBES = 3, /* detect clients that vanish silently */
};

static void conn_process(struct http_conn *conn);
static void conn_begin_answer(struct http_conn *conn);
static void conn_reap_all(evutil_socket_t fd, short what, void *http);

/* ---- creating and closing ---- */

static size_t pool_bytes_of(size_t max_body_bytes)
{
    size_t n_bytes = max_body_bytes * POOL_BODIES;
    return n_bytes > POOL_LEAST_BYTES ? n_bytes : POOL_LEAST_BYTES;
}

void http_set_max_body(struct http *http, size_t n_bytes)
{
    size_t pool_bytes = pool_bytes_of(n_bytes), reply_bytes = pool_bytes * POOL_REPLIES;
    http->options.max_body_bytes = n_bytes;
    http_pool_set_bounds(http->pool, pool_bytes, pool_bytes / POOL_CLIENTS);
    http_pool_set_bounds(http->replies, reply_bytes, reply_bytes / POOL_CLIENTS);
}

enum tutti_status http_new(struct http **out, struct event_base *base, const struct http_options *options,
                           struct tutti_error *err)
{
    struct http *http = calloc(1, sizeof *http);
    if (!http)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the HTTP server");
    http->base = base;
    http->options = *options;
    enum tutti_status st = http_pool_new(&http->pool, 0, 0, err);
    if (st == TUTTI_OK)
        st = http_pool_new(&http->replies, 0, 0, err);
    if (st == TUTTI_OK)
        http_set_max_body(http, options->max_body_bytes);
    if (st == TUTTI_OK)
        st = http_sources_new(&http->sources, err);
    if (st == TUTTI_OK && !(http->reap = event_new(base, -1, 0, conn_reap_all, http)))
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for the HTTP server");
    if (st != TUTTI_OK) {
        http_free(http);
        return st;
    }
    *out = http;
    return TUTTI_OK;
}

/* Frees the connection and its memory; calls no callback. */
static void conn_free(struct http_conn *conn)
{
    struct http *http = conn->http;
    LIST_REMOVE(conn, link);
    http->counts.n_open--;
    http_seat_leave(&conn->seat);
    http->n_handshakes -= conn->is_handshaking;
    event_free(conn->timer);
    tls_say_end(conn->bev);
    bufferevent_free(conn->bev);
    http_head_clear(&conn->request.head);
    http_body_free(conn->body);
    http_body_free(conn->unsent);
    buf_clear(&conn->extra);
    free(conn);
}

void http_free(struct http *http)
{
    if (!http)
        return;
    while (!LIST_EMPTY(&http->conns))
        conn_free(LIST_FIRST(&http->conns));
    if (http->reap)
        event_free(http->reap);
    http_pool_free(http->pool);
    http_pool_free(http->replies);
    http_sources_free(http->sources);
    free(http);
}

/* Ends a request whose client has disconnected: the only place that calls the handler's abort
 * callback. */
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

/* Only from callbacks of the loop: a handler on the stack would be left with a dangling pointer. */
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

static void conn_reap_all(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct http *http = arg;
    for (struct http_conn *conn = LIST_FIRST(&http->conns), *next; conn; conn = next) {
        next = LIST_NEXT(conn, link); /* an abort callback cancels requests, but closes no other connection */
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

static bool has_output(const struct http_conn *conn)
{
    return evbuffer_get_length(bufferevent_get_output(conn->bev)) > 0;
}

/* ---- connections that are not read while they are answered ---- */

/* A client that has shut down its sending side, or has sent so much ahead that it is not read any more, may
 * wait for the reply. One that has disconnected looks the same until the server writes to it, and then resets
 * the connection. "100 Continue" may be sent to any HTTP/1.1 client, and has no effect. */
static void probe(struct http_conn *conn)
{
    conn->probe_us = clock_now_us();
    if (conn->request.head.minor >= 1 && !conn->has_begun && !has_output(conn))
        bufferevent_write(conn->bev, "HTTP/1.1 100 Continue\r\n\r\n", 25);
}

static void watch_end(struct http_conn *conn)
{
    struct timeval look = { .tv_usec = LOOK_MS * 1000 };
    evtimer_add(conn->timer, &look);
}

/* True: the kernel knows that nothing can be sent any more. */
static bool is_gone(struct http_conn *conn)
{
    struct pollfd fd = { .fd = bufferevent_getfd(conn->bev), .events = 0 };
    return poll(&fd, 1, 0) > 0 && fd.revents & (POLLERR | POLLHUP | POLLNVAL);
}

/* Reads no more from a client that has sent enough ahead. libevent's high watermark is not used, because it
 * calls on_read() again and again while so many bytes wait. */
static void pace_reading(struct http_conn *conn)
{
    bool is_enough = evbuffer_get_length(bufferevent_get_input(conn->bev)) >= PIPELINE_BYTES;
    if (conn->saw_end)
        return;
    if (!is_enough) {
        bufferevent_enable(conn->bev, EV_READ);
        return;
    }
    bufferevent_disable(conn->bev, EV_READ);
    if (conn->state == CONN_ANSWER) /* the end of an unread connection is not reported */
        watch_end(conn);
}

static void drop_input(struct http_conn *conn)
{
    struct evbuffer *in = bufferevent_get_input(conn->bev);
    evbuffer_drain(in, evbuffer_get_length(in));
}

/* ---- between requests ---- */

/* After the last reply. */
static void conn_linger(struct http_conn *conn)
{
    /* Closing with unread input would reset the connection, and the client could lose the reply. */
    conn->state = CONN_LINGER;
    http_seat_rest(&conn->seat, true);
    tls_say_end(conn->bev);
    shutdown(bufferevent_getfd(conn->bev), SHUT_WR);
    set_timer(conn, LINGER_S);
    if (conn->saw_end)
        conn_doom(conn);
}

/* Allows closing the connection for a new one, unless a reply is still being sent; then on_write() calls this
 * again. */
static void leave_work(struct http_conn *conn)
{
    if (!has_output(conn))
        http_seat_rest(&conn->seat, false);
}

/* Resets the connection to idle; only an unread body remains. */
static void rest(struct http_conn *conn)
{
    if (conn->closes) {
        conn->state = CONN_FLUSH;
        set_timer(conn, 0);
        drop_input(conn);
        pace_reading(conn);
        bufferevent_trigger(conn->bev, EV_WRITE, BEV_TRIG_DEFER_CALLBACKS);
        return;
    }
    conn->state = conn->n_unread ? CONN_SKIP : CONN_IDLE;
    conn->probe_us = 0;
    if (conn->n_unread)
        set_timer(conn, conn->http->options.header_timeout_s);
    else /* while the reply is being sent, the timeout of each write holds */
        set_timer(conn, has_output(conn) ? 0 : conn->http->options.idle_timeout_s);
    conn_process(conn);
}

/* The reply is complete: goes on to the next request, or ends. */
void conn_next(struct http_conn *conn)
{
    http_head_clear(&conn->request.head);
    http_body_free(http_take_body(conn));
    leave_work(conn);
    buf_clear(&conn->extra);
    conn->chunks = (struct http_chunks){ 0 };
    conn->n_scanned = 0;
    conn->aborted = NULL;
    conn->request.data = NULL;
    conn->status = 0;
    conn->request.caller[0] = '\0';
    conn->request.tenant = 0;
    conn->has_begun = false;
    rest(conn);
}

/* Refuses input that is not a valid request, and closes the connection afterwards. */
static void conn_refuse(struct http_conn *conn, int status, const char *why)
{
    conn->closes = true;
    conn->state = CONN_ANSWER;
    conn_begin_answer(conn);
    conn_reply_error(conn, status, why);
}

static void conn_begin_answer(struct http_conn *conn)
{
    conn->state = CONN_ANSWER;
    http_seat_work(&conn->seat);
    set_timer(conn, 0);
    if (conn->saw_end)
        watch_end(conn);
}

/* ---- memory ---- */

/* Refuses an unfinished request to free its memory for others. */
static void evict(struct http_conn *conn, uint64_t now_us)
{
    conn->http->counts.n_evicted++;
    if (http_body_has_stalled(conn->body, now_us))
        conn_refuse(conn, 408, "the request stopped arriving while other requests needed its memory");
    else
        conn_refuse(conn, 503,
                    "the memory for unfinished requests is full, and this was the largest one of its "
                    "client; send fewer large requests at once, or try again later");
}

/* Memory that is charged to the client of the connection: its key, else its address. */
static struct http_body *memory_of(const struct http_conn *conn, struct http_pool *pool, void *user)
{
    char name[96], address[HTTP_SOURCE_NAME_BYTES];
    client_name_address(address, sizeof address, conn->request.client);
    snprintf(name, sizeof name, "%s%s", conn->request.caller[0] ? "key " : "",
             conn->request.caller[0] ? conn->request.caller : address);
    return http_body_new(pool, name, user);
}

struct http_body *http_reply_memory(const struct http_conn *conn)
{
    return memory_of(conn, conn->http->replies, NULL);
}

/* Charges the received bytes of a request to its client. False: the request was evicted itself, or out of
 * memory; it has been refused. */
static bool conn_charge(struct http_conn *conn, size_t n_extra)
{
    struct http *http = conn->http;
    if (!conn->body)
        conn->body = memory_of(conn, http->pool, conn);
    if (!conn->body) {
        conn_refuse(conn, 503, "out of memory");
        return false;
    }
    uint64_t now_us = clock_now_us();
    http_body_charge(conn->body, n_extra, now_us);
    const struct http_body *victim;
    while (conn->body && (victim = http_pool_victim(http->pool, conn->body, now_us)))
        evict(victim->user, now_us);
    return conn->body != NULL;
}

/* ---- reading ---- */

/* The names that the process in front gives to a client and its request. */
static void take_names(struct http_request *request)
{
    const char *client = http_head_find(&request->head, "X-Forwarded-For");
    const char *id = http_head_find(&request->head, "X-Request-Id");
    if (client)
        snprintf(request->client, sizeof request->client, "%s", client);
    if (id)
        snprintf(request->id, sizeof request->id, "%s", id);
}

/* True: the head is complete and valid; the state says what follows. */
static bool conn_read_head(struct http_conn *conn)
{
    struct evbuffer *in = bufferevent_get_input(conn->bev);
    if (conn->state == CONN_IDLE) {
        /* Skips empty lines before a request, RFC 9112 section 2.2; one may arrive in two parts. */
        char two[2];
        ev_ssize_t n_two;
        while ((n_two = evbuffer_copyout(in, two, 2)) == 2 && two[0] == '\r' && two[1] == '\n')
            evbuffer_drain(in, 2);
        if (n_two <= 0 || (n_two == 1 && two[0] == '\r'))
            return false;
        conn->state = CONN_HEAD;
        conn->request.start_us = clock_now_us();
        request_id_make(conn->request.id, sizeof conn->request.id);
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
        else
            conn_charge(conn, n * CHAIN_FACTOR);
        return false;
    }
    http_body_free(
        http_take_body(conn)); /* the head is complete; its body is charged to the key that the head names */
    const char *why = "";
    size_t n_head = (size_t)(end - bytes) + 4;
    int status = http_head_parse(&conn->request.head, bytes, n_head, &why);
    evbuffer_drain(in, n_head);
    if (status) {
        conn_refuse(conn, status, why);
        return false;
    }
    conn->closes = conn->closes || !conn->request.head.keep_alive || conn->http->is_leaving;
    if (conn->http->options.is_behind)
        take_names(&conn->request);
    return true;
}

/* The head is complete: decides whether to receive the body, and sets the state. */
static void begin_body(struct http_conn *conn)
{
    struct http *http = conn->http;
    bool has_body = conn->request.head.chunked || conn->request.head.n_body_bytes > 0;
    if (conn->request.head.n_body_bytes > http->options.max_body_bytes) {
        char why[160];
        snprintf(
            why, sizeof why,
            "the request's body of %llu bytes is larger than the limit of %zu bytes, which --max-body sets",
            (unsigned long long)conn->request.head.n_body_bytes, http->options.max_body_bytes);
        conn_refuse(conn, 413, why);
        return;
    }
    conn->state = CONN_BODY;
    if (http->options.head) {
        /* A reply now leaves the body unread. A short one is on its way or here, and is skipped, so
         * a refused client keeps its connection. A client that waits for "100 Continue" may send
         * the body or not, so the start of its next request is not known. */
        bool closes = conn->closes, is_short = !conn->request.head.chunked &&
                                               conn->request.head.n_body_bytes <= SKIP_BYTES &&
                                               !conn->request.head.expects_continue;
        conn_begin_answer(conn);
        conn->n_unread = is_short ? (size_t)conn->request.head.n_body_bytes : 0;
        conn->closes = closes || (has_body && !is_short);
        http->options.head(http->options.user, conn);
        if (conn->state != CONN_ANSWER || conn->has_begun)
            return;
        conn->n_unread = 0;
        conn->closes = closes;
        conn->state = CONN_BODY;
        leave_work(conn);
    }
    if (!has_body)
        return;
    conn->n_window = 0;
    set_timer(conn, http->options.header_timeout_s);
    if (conn->request.head.expects_continue && !evbuffer_get_length(bufferevent_get_input(conn->bev)))
        bufferevent_write(conn->bev, "HTTP/1.1 100 Continue\r\n\r\n", 25);
}

/* Makes room for n more bytes of a body of known length: never for more than that length. */
static bool body_reserve(struct buf *body, size_t n, uint64_t n_whole)
{
    if (body->n_bytes + n < body->capacity)
        return true;
    size_t more = body->n_bytes / 2 > n ? body->n_bytes / 2 : n, n_left = (size_t)n_whole - body->n_bytes;
    return buf_reserve_exact(body, more < n_left ? more : n_left);
}

/* True: the body is complete. */
static bool read_body(struct http_conn *conn)
{
    struct http *http = conn->http;
    struct evbuffer *in = bufferevent_get_input(conn->bev);
    size_t n = evbuffer_get_length(in);
    if (!conn->body && !conn_charge(conn, 0))
        return false;
    struct buf *body = &conn->body->bytes;
    if (conn->request.head.chunked) {
        const char *why = "", *bytes = (const char *)evbuffer_pullup(in, -1);
        size_t n_used = 0;
        int status = 0;
        if (n > 0 && bytes)
            status = http_chunks_read(&conn->chunks, bytes, n, &n_used, body, http->options.max_body_bytes,
                                      &why);
        evbuffer_drain(in, n_used);
        if (status) {
            conn_refuse(conn, status, why);
            return false;
        }
    } else {
        if (n > conn->request.head.n_body_bytes - body->n_bytes)
            n = (size_t)(conn->request.head.n_body_bytes - body->n_bytes);
        if (!body_reserve(body, n, conn->request.head.n_body_bytes)) {
            conn_refuse(conn, 503, "out of memory");
            return false;
        }
        evbuffer_remove(in, body->bytes + body->n_bytes, n);
        body->n_bytes += n;
        body->bytes[body->n_bytes] = '\0';
    }
    if (conn->request.head.chunked ? conn->chunks.state == CHUNK_DONE
                                   : body->n_bytes == conn->request.head.n_body_bytes) {
        http_body_complete(conn->body);
        return true;
    }
    conn_charge(conn, evbuffer_get_length(in));
    return false;
}

/* True: the body was skipped completely. */
static bool skip_body(struct http_conn *conn)
{
    struct evbuffer *in = bufferevent_get_input(conn->bev);
    size_t n = evbuffer_get_length(in);
    n = n < conn->n_unread ? n : conn->n_unread;
    evbuffer_drain(in, n);
    conn->n_unread -= n;
    return conn->n_unread == 0;
}

/* Processes as much input as there is. Handlers that reply at once re-enter through conn_next(). */
static void conn_process(struct http_conn *conn)
{
    if (conn->is_processing)
        return; /* the loop below continues */
    conn->is_processing = true;
    while (!conn->is_doomed) {
        /* A client that sends requests without reading replies must read first. */
        if (conn->state == CONN_IDLE &&
            evbuffer_get_length(bufferevent_get_output(conn->bev)) > PIPELINE_BYTES)
            break;
        if (conn->state == CONN_IDLE || conn->state == CONN_HEAD) {
            if (conn_read_head(conn))
                begin_body(conn);
            else if (conn->state == CONN_IDLE || conn->state == CONN_HEAD)
                break;
        } else if (conn->state == CONN_BODY) {
            if ((conn->request.head.chunked || conn->request.head.n_body_bytes) && !read_body(conn)) {
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
    pace_reading(conn);
    bool is_between = conn->state == CONN_IDLE || conn->state == CONN_HEAD || conn->state == CONN_BODY ||
                      conn->state == CONN_SKIP;
    if (!conn->saw_end || !is_between || conn->is_doomed ||
        (conn->state == CONN_IDLE && has_output(conn) &&
         evbuffer_get_length(bufferevent_get_input(conn->bev)) > 0))
        return;
    /* No further request can be completed. */
    conn->state = CONN_FLUSH;
    set_timer(conn, 0);
    bufferevent_trigger(conn->bev, EV_WRITE, BEV_TRIG_DEFER_CALLBACKS);
}

/* ---- callbacks of the event loop ---- */

static void on_read(struct bufferevent *bev, void *arg)
{
    struct http_conn *conn = arg;
    (void)bev;
    if (conn->state == CONN_LINGER || conn->state == CONN_FLUSH)
        drop_input(conn);
    else
        conn_process(conn);
}

/* The output is empty. */
static void on_write(struct bufferevent *bev, void *arg)
{
    struct http_conn *conn = arg;
    (void)bev;
    if (has_output(conn))
        return;
    conn_release_reply(conn);
    if (conn->state != CONN_ANSWER && !conn->seat.is_idle)
        leave_work(conn);
    if (conn->state == CONN_FLUSH) {
        conn_linger(conn);
    } else if (conn->state == CONN_IDLE) {
        set_timer(conn, conn->http->options.idle_timeout_s);
        conn_process(conn);
    }
}

static void drop_handshake(struct http_conn *conn, const char *why)
{
    conn->http->counts.n_tls_failures++;
    log_debug("%s: TLS handshake: %s", conn->request.peer, why);
    conn_close(conn);
}

static void bev_on_event(struct bufferevent *bev, short what, void *arg)
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
    if (!(what & BEV_EVENT_EOF) || !(what & BEV_EVENT_READING) || conn->state == CONN_LINGER ||
        is_gone(conn)) {
        conn_close(conn);
        return;
    }
    /* The client has shut down its side: it sends nothing more, but may still read. */
    conn->saw_end = true;
    bufferevent_enable(bev, EV_WRITE); /* at the end of input libevent's TLS stops writing too */
    if (conn->state == CONN_ANSWER)
        watch_end(conn);
    else
        conn_process(conn);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct http_conn *conn = arg;
    size_t n_window = (size_t)conn->http->options.header_timeout_s * BODY_BYTES_PER_S;
    size_t n_body = conn->state == CONN_BODY && conn->body ? conn->body->bytes.n_bytes : 0;
    if (conn->state == CONN_BODY && n_body - conn->n_window >= n_window) {
        conn->n_window = n_body;
        set_timer(conn, conn->http->options.header_timeout_s);
    } else if (conn->state == CONN_HEAD || conn->state == CONN_BODY) {
        conn->http->counts.n_timeouts++;
        conn_refuse(conn, 408, "the request did not arrive in time");
    } else if (conn->state == CONN_ANSWER && !is_gone(conn)) {
        if (clock_now_us() - conn->probe_us >= PROBE_S * 1000000u)
            probe(conn);
        watch_end(conn);
    } else if (conn->is_handshaking) {
        drop_handshake(conn, "timed out");
    } else {
        conn_close(conn);
    }
}

static struct bufferevent *open_socket(struct http *http, int fd)
{
    return http->options.tls ? tls_accept(http->options.tls, http->base, fd)
                             : bufferevent_socket_new(http->base, fd, BEV_OPT_CLOSE_ON_FREE);
}

/* Handshakes that do not proceed must not block new clients: drops the oldest one. */
static void drop_oldest_handshake(struct http *http)
{
    struct http_conn *oldest = NULL, *conn;
    LIST_FOREACH (conn, &http->conns, link)
        oldest = conn->is_handshaking ? conn : oldest;
    if (oldest)
        drop_handshake(oldest, "too many at once");
}

/* ---- connection limits ---- */

/* Closes a connection to make room for another one. A client in the middle of a request gets an
 * error first, if it can be written at once. */
static void spare(struct http_conn *conn)
{
    conn->http->counts.n_closed_for_room++;
    if (conn->state == CONN_HEAD || conn->state == CONN_BODY)
        conn_refuse(conn, 503, "the request did not arrive while other connections needed its place");
    conn_close(conn);
}

bool http_make_room(struct http *http)
{
    struct http_conn *conn = http_sources_victim(http->sources);
    if (conn)
        spare(conn);
    return conn != NULL;
}

static bool is_loopback(const char *source)
{
    return !strncmp(source, "127.", 4) || !strcmp(source, "::/64") || !strcmp(source, "unix");
}

/* True: one more connection of this address fits, possibly after closing another one. */
static bool http_has_room(struct http *http, const char *name)
{
    const struct http_options *options = &http->options;
    uint32_t max = is_loopback(name) ? options->max_per_loopback : options->max_per_address;
    const struct http_source *source = http_sources_find(http->sources, name);
    if (max && source && source->n_open >= max) {
        struct http_conn *conn = http_source_victim(source);
        if (!conn)
            return false;
        spare(conn);
    }
    return !options->max_connections || http->counts.n_open < options->max_connections ||
           http_make_room(http);
}

/* Only in clear text: a client whose TLS handshake is not complete cannot read a reply. */
static void refuse_connection(struct http *http, int fd)
{
    static const char BODY[] =
        "{\"error\":{\"message\":\"too many connections are open, and all of them are busy; try again "
        "later\","
        "\"type\":\"rate_limit_error\",\"param\":null,\"code\":\"rate_limit_exceeded\"}}";
    char reply[sizeof BODY + 256];
    int n = snprintf(reply, sizeof reply,
                     "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\n"
                     "Content-Length: %zu\r\nRetry-After: 1\r\nConnection: close\r\n\r\n%s",
                     sizeof BODY - 1, BODY);
    http->counts.n_refused++;
    if (!http->options.tls && send(fd, reply, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
        shutdown(fd, SHUT_WR);
    close(fd);
}

static void set_socket_options(int fd)
{
    /* These fail on Unix sockets, which do not need them. */
    const struct {
        int level, name, value;
    } options[] = { { IPPROTO_TCP, TCP_NODELAY, 1 },
                    { SOL_SOCKET, SO_KEEPALIVE, 1 },
                    { IPPROTO_TCP, os_tcp_idle_option(), KEEPALIVE_IDLE_S },
                    { IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S },
                    { IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES } };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof options[i].value);
}

void http_accept(struct http *http, int fd, const char *peer, enum http_service service)
{
    char name[HTTP_SOURCE_NAME_BYTES];
    client_name_address(name, sizeof name, peer);
    if (!http_has_room(http, name)) {
        refuse_connection(http, fd);
        return;
    }
    if (http->n_handshakes >= MAX_HANDSHAKES)
        drop_oldest_handshake(http);
    struct http_conn *conn = calloc(1, sizeof *conn);
    struct bufferevent *bev = conn ? open_socket(http, fd) : NULL;
    struct event *timer = bev ? evtimer_new(http->base, on_timer, conn) : NULL;
    if (!timer || !http_seat_enter(http->sources, &conn->seat, name, conn)) {
        log_error("%s: out of memory for a connection", peer);
        if (timer)
            event_free(timer);
        if (bev)
            bufferevent_free(bev);
        else
            close(fd);
        free(conn);
        return;
    }
    set_socket_options(fd);
    conn->http = http;
    conn->bev = bev;
    conn->timer = timer;
    conn->request.service = service;
    conn->closes = http->is_leaving;
    conn->is_handshaking = http->options.tls != NULL;
    http->n_handshakes += conn->is_handshaking;
    snprintf(conn->request.peer, sizeof conn->request.peer, "%s", peer);
    snprintf(conn->request.client, sizeof conn->request.client, "%s", peer);
    LIST_INSERT_HEAD(&http->conns, conn, link);
    http->counts.n_open++;
    http->counts.n_accepted++;
    struct timeval write_timeout = { .tv_sec = http->options.idle_timeout_s };
    bufferevent_set_timeouts(bev, NULL, &write_timeout);
    bufferevent_setcb(bev, on_read, on_write, bev_on_event, conn);
    bufferevent_enable(bev, EV_READ | EV_WRITE);
    set_timer(conn, conn->is_handshaking ? http->options.header_timeout_s : http->options.idle_timeout_s);
}

void http_leave(struct http *http)
{
    http->is_leaving = true;
}

/* Whether a request has arrived that was not read yet: to close its connection would reset it. */
static bool has_input(const struct http_conn *conn)
{
    char byte;
    return evbuffer_get_length(bufferevent_get_input(conn->bev)) > 0 ||
           recv(bufferevent_getfd(conn->bev), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

void http_drain(struct http *http)
{
    struct http_conn *conn;
    http_leave(http);
    LIST_FOREACH (conn, &http->conns, link) {
        conn->closes = true;
        if (conn->state == CONN_IDLE && !has_output(conn) && !has_input(conn))
            conn_doom(conn);
    }
}

bool http_is_busy(const struct http *http)
{
    const struct http_conn *conn;
    LIST_FOREACH (conn, &http->conns, link)
        if (conn->state == CONN_ANSWER || has_output(conn))
            return true;
    return false;
}

void http_counts(const struct http *http, struct http_counts *out)
{
    *out = http->counts;
    out->n_body_bytes = http_pool_bytes(http->pool);
    out->n_reply_bytes = http_pool_bytes(http->replies);
}
