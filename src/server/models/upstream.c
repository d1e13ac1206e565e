#include "server/models/upstream.h"

#include "base/text.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>

struct upstream {
    struct bufferevent *bev;
    struct http_conn *conn; /* NULL: a path is got */
    struct upstream_handler handler;
    upstream_got_fn *got; /* handler.user */
    bool has_head, is_chunked, has_length, has_no_body;
    int status;
    uint64_t n_left; /* of a body with a length */
    struct http_chunks chunks;
    struct buf type, body;
    size_t n_total; /* the header X-Total-Count of a path that is got */
};

void upstream_free(struct upstream *up)
{
    if (!up)
        return;
    bufferevent_free(up->bev);
    buf_clear(&up->type);
    buf_clear(&up->body);
    free(up);
}

/* ---- the end ---- */

static void end(struct upstream *up)
{
    const struct upstream_handler handler = up->handler;
    upstream_free(up);
    if (handler.ended)
        handler.ended(handler.user);
}

static void lose(struct upstream *up, const struct tutti_error *err)
{
    const struct upstream_handler handler = up->handler;
    upstream_free(up);
    handler.lost(handler.user, err);
}

/* The reply has begun. */
static void refuse(struct upstream *up, const struct tutti_error *err)
{
    if (up->conn)
        http_on_abort(up->conn, NULL, NULL);
    if (up->conn)
        up->handler.failed(up->handler.user, up->conn, err);
    else
        up->got(up->handler.user, NULL, 0);
    end(up);
}

static void fail(struct upstream *up, const char *why)
{
    struct tutti_error err;
    error_set(&err, TUTTI_E_CLOSED, "the process of the model %s", why);
    if (!up->conn || up->has_head) {
        refuse(up, &err);
        return;
    }
    http_on_abort(up->conn, NULL, NULL);
    lose(up, &err);
}

static void on_abort(void *user)
{
    struct upstream *up = user;
    up->conn = NULL;
    end(up);
}

static void complete(struct upstream *up)
{
    if (up->conn)
        http_on_abort(up->conn, NULL, NULL);
    if (!up->conn)
        up->got(up->handler.user, &up->body, up->n_total);
    else if (http_stream_has_begun(up->conn))
        http_stream_end(up->conn);
    else
        http_reply(up->conn, up->status, up->type.n_bytes > 0 ? up->type.bytes : NULL, up->body.bytes,
                   up->has_no_body ? (size_t)up->n_left : up->body.n_bytes);
    end(up);
}

/* ---- the reply's head ---- */

/* The server's own replies set these, or they are about the connection. */
static bool is_own_header(const char *name)
{
    static const char *const OWN[] = { "Connection",     "Keep-Alive",
                                       "Date",           "Server",
                                       "x-request-id",   "request-id",
                                       "traceparent",    "X-Content-Type-Options",
                                       "Content-Length", "Transfer-Encoding" };
    for (size_t i = 0; i < sizeof OWN / sizeof *OWN; i++)
        if (!strcasecmp(name, OWN[i]))
            return true;
    return false;
}

static bool read_length(const char *text, uint64_t *out)
{
    *out = 0;
    for (; text_is_digit(*text); text++)
        if (*out > UINT64_MAX / 10 - 1)
            return false;
        else
            *out = 10 * *out + (uint64_t)(*text - '0');
    return *text == '\0';
}

static bool take_header(struct upstream *up, const char *name, const char *value)
{
    if (!strcasecmp(name, "Content-Length")) {
        up->has_length = true;
        return read_length(value, &up->n_left);
    }
    if (!strcasecmp(name, "Transfer-Encoding"))
        up->is_chunked = !strcasecmp(value, "chunked");
    else if (!strcasecmp(name, "Content-Type"))
        return buf_add_string(&up->type, value);
    else if (!up->conn && !strcasecmp(name, "X-Total-Count"))
        up->n_total = strtoul(value, NULL, 10); /* digits of our own server */
    else if (up->conn && !is_own_header(name))
        http_header(up->conn, name, value);
    return true;
}

/* text: the head with its empty line, changed. */
static bool read_head(struct upstream *up, char *text)
{
    char *line = strstr(text, "\r\n");
    if (strncmp(text, "HTTP/1.1 ", 9) || !line)
        return false;
    up->status = atoi(text + 9); /* three digits of our own server */
    for (line += 2; *line && strncmp(line, "\r\n", 2);) {
        char *after = strstr(line, "\r\n"), *colon = strchr(line, ':');
        if (!after || !colon || colon > after)
            return false;
        *after = *colon = '\0';
        if (!take_header(up, line, colon + 1 + strspn(colon + 1, " ")))
            return false;
        line = after + 2;
    }
    bool is_head = up->conn && !strcmp(http_request(up->conn)->head.method, "HEAD");
    up->has_no_body = is_head || up->status == 204 || up->status == 304;
    return up->status >= 200 && up->status <= 599 && (up->is_chunked || up->has_length || up->has_no_body);
}

/* Counts a whole reply, which is collected, against the memory of its client. False: the client was refused. */
static bool hold_body(struct upstream *up)
{
    struct tutti_error err;
    if (!up->conn || up->is_chunked || up->has_no_body)
        return true;
    enum tutti_status st = http_hold_reply(up->conn, (size_t)up->n_left, &err);
    if (st == TUTTI_OK && !buf_reserve_exact(&up->body, (size_t)up->n_left))
        st = error_set(&err, TUTTI_E_MEMORY, "out of memory for the reply");
    if (st != TUTTI_OK)
        refuse(up, &err);
    return st == TUTTI_OK;
}

/* False: it is not complete yet, or the request has failed. */
static bool take_head(struct upstream *up, struct evbuffer *in)
{
    struct evbuffer_ptr found = evbuffer_search(in, "\r\n\r\n", 4, NULL);
    if (found.pos < 0) {
        if (evbuffer_get_length(in) > HTTP_MAX_HEAD_BYTES)
            fail(up, "sent a reply whose head is too long");
        return false;
    }
    size_t n = (size_t)found.pos + 4;
    char *text = malloc(n + 1);
    bool ok = text && evbuffer_remove(in, text, n) == (int)n;
    if (ok) {
        text[n] = '\0';
        ok = read_head(up, text);
    }
    free(text);
    up->has_head = true;
    if (!ok) {
        fail(up, "sent a reply that is no HTTP");
        return false;
    }
    if (up->handler.begun)
        up->handler.begun(up->handler.user);
    if (!hold_body(up))
        return false;
    if (up->is_chunked && up->conn && !up->has_no_body)
        http_stream_begin(up->conn, up->status, up->type.n_bytes > 0 ? up->type.bytes : NULL);
    return true;
}

/* ---- the reply's body ---- */

enum { MOST_BYTES = 1 << 30 }; /* of a whole reply */

/* Takes what has come. Returns 1: complete; 0: more must come; -1: failed. */
static int take_body(struct upstream *up, struct evbuffer *in)
{
    const char *why;
    size_t n = evbuffer_get_length(in), n_used = 0;
    const char *bytes = n > 0 ? (const char *)evbuffer_pullup(in, -1) : "";
    if (!bytes)
        return -1;
    if (!up->is_chunked) {
        n = n < up->n_left ? n : (size_t)up->n_left;
        if (up->body.n_bytes + n > MOST_BYTES || !buf_add(&up->body, bytes, n))
            return -1;
        up->n_left -= n;
        evbuffer_drain(in, n);
        return up->n_left == 0;
    }
    if (http_chunks_read(&up->chunks, bytes, n, &n_used, &up->body, MOST_BYTES, &why) != 0)
        return -1;
    evbuffer_drain(in, n_used);
    if (up->conn && up->body.n_bytes > 0) {
        http_stream_write(up->conn, up->body.bytes, up->body.n_bytes);
        buf_truncate(&up->body, 0);
    }
    return up->chunks.state == CHUNK_DONE;
}

static void on_read(struct bufferevent *bev, void *arg)
{
    struct upstream *up = arg;
    struct evbuffer *in = bufferevent_get_input(bev);
    if (!up->has_head && !take_head(up, in))
        return;
    int done = up->has_no_body ? 1 : take_body(up, in);
    if (done < 0)
        fail(up, "sent a reply that cannot be passed on");
    else if (done > 0)
        complete(up);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    (void)bev;
    if (what & (BEV_EVENT_ERROR | BEV_EVENT_EOF | BEV_EVENT_TIMEOUT))
        fail(arg, "ended before the answer was complete");
}

/* ---- the request ---- */

/* About the connection to the server, or checked by it already. */
static bool is_kept_back(const char *name)
{
    static const char *const BACK[] = {
        "Host",    "Connection",      "Keep-Alive",     "Proxy-Connection",  "TE",
        "Trailer", "Upgrade",         "Content-Length", "Transfer-Encoding", "Expect",
        "Origin",  "X-Forwarded-For", "X-Request-Id"
    };
    for (size_t i = 0; i < sizeof BACK / sizeof *BACK; i++)
        if (!strcasecmp(name, BACK[i]))
            return true;
    return !strncasecmp(name, "Sec-Fetch-", 10);
}

static bool add_headers(struct evbuffer *out, const struct http_request *request)
{
    bool ok = evbuffer_add_printf(out, "X-Forwarded-For: %s\r\nX-Request-Id: %s\r\n", request->peer,
                                  request->id) > 0;
    for (int i = 0; ok && i < request->head.n_headers; i++) {
        const struct http_header *h = &request->head.headers[i];
        if (!is_kept_back(h->name))
            ok = evbuffer_add_printf(out, "%s: %s\r\n", h->name, h->value) > 0;
    }
    return ok;
}

static bool write_request(struct upstream *up, const char *path, const struct buf *body)
{
    struct evbuffer *out = bufferevent_get_output(up->bev);
    const struct http_request *request = up->conn ? http_request(up->conn) : NULL;
    const char *query = request ? request->head.query : "";
    bool ok = evbuffer_add_printf(out, "%s %s%s%s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n",
                                  request ? request->head.method : "GET", path, *query ? "?" : "", query) > 0;
    if (request)
        ok = ok && add_headers(out, request);
    if (body)
        ok = ok && evbuffer_add_printf(out, "Content-Length: %zu\r\n", body->n_bytes) > 0;
    return ok && evbuffer_add(out, "\r\n", 2) == 0 &&
           (!body || evbuffer_add(out, body->bytes, body->n_bytes) == 0);
}

static struct upstream *upstream_new(struct event_base *base)
{
    struct upstream *up = calloc(1, sizeof *up);
    if (!up)
        return NULL;
    /* Deferred: a refused connection must not call back before the caller has what it needs. */
    up->bev = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    if (!up->bev) {
        free(up);
        return NULL;
    }
    bufferevent_setcb(up->bev, on_read, NULL, on_event, up);
    return up;
}

static bool begin(struct upstream *up, const char *socket, const char *path, const struct buf *body)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    if (strlen(socket) >= sizeof address.sun_path)
        return false;
    strcpy(address.sun_path, socket);
    return write_request(up, path, body) && bufferevent_enable(up->bev, EV_READ | EV_WRITE) == 0 &&
           bufferevent_socket_connect(up->bev, (struct sockaddr *)&address, sizeof address) == 0;
}

struct upstream *upstream_forward(struct event_base *base, const char *socket, struct http_conn *conn,
                                  const struct buf *body, const struct upstream_handler *handler)
{
    struct upstream *up = upstream_new(base);
    if (!up)
        return NULL;
    up->conn = conn;
    if (!begin(up, socket, http_request(conn)->head.raw_path, body)) {
        upstream_free(up);
        return NULL;
    }
    up->handler = *handler;
    http_on_abort(conn, on_abort, up);
    return up;
}

struct upstream *upstream_get(struct event_base *base, const char *socket, const char *path,
                              upstream_got_fn *got, void *user)
{
    struct upstream *up = upstream_new(base);
    if (!up)
        return NULL;
    up->got = got;
    up->handler.user = user;
    if (begin(up, socket, path, NULL))
        return up;
    upstream_free(up);
    return NULL;
}
