/* Writes replies: status line, headers, whole bodies and chunked ones. */
#include "server/http/http_conn.h"
#include "server/json.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>

enum { HEAD_BYTES = 320 }; /* lines of a usual reply, so that the buffer does not grow */

static const char *reason_of(int status)
{
    static const struct {
        int status;
        const char *reason;
    } REASONS[] = {
        { 200, "OK" },
        { 204, "No Content" },
        { 304, "Not Modified" },
        { 400, "Bad Request" },
        { 401, "Unauthorized" },
        { 403, "Forbidden" },
        { 404, "Not Found" },
        { 405, "Method Not Allowed" },
        { 408, "Request Timeout" },
        { 409, "Conflict" },
        { 413, "Content Too Large" },
        { 415, "Unsupported Media Type" },
        { 417, "Expectation Failed" },
        { 422, "Unprocessable Content" },
        { 424, "Failed Dependency" },
        { 429, "Too Many Requests" },
        { 431, "Request Header Fields Too Large" },
        { 500, "Internal Server Error" },
        { 501, "Not Implemented" },
        { 503, "Service Unavailable" },
        { 505, "HTTP Version Not Supported" },
        { 529, "Overloaded" },
    };
    for (size_t i = 0; i < sizeof REASONS / sizeof *REASONS; i++)
        if (REASONS[i].status == status)
            return REASONS[i].reason;
    return "Unknown";
}

void request_id_make(char *out, size_t n_bytes)
{
    /* Ids are unique, not secret: without random bytes from the system the clock is used. */
    uint64_t random[2] = { 0 };
    if (getentropy(random, sizeof random) != 0) {
        static uint64_t count;
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        random[0] = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
        random[1] = ++count;
    }
    snprintf(out, n_bytes, "req_%016llx%08x", (unsigned long long)random[0], (unsigned)random[1]);
}

const struct http_request *http_request(const struct http_conn *conn)
{
    return &conn->request;
}

struct http_body *http_take_body(struct http_conn *conn)
{
    struct http_body *body = conn->body;
    conn->body = NULL;
    return body;
}

enum tutti_status http_check_reply_memory(const struct http_body *memory, struct tutti_error *err)
{
    size_t most;
    if (http_body_fits(memory))
        return TUTTI_OK;
    (void)http_body_is_too_large(memory, &most);
    return error_set(err, TUTTI_E_BUSY,
                     "the replies to your requests take more memory than the %zu MiB that one client may "
                     "use at the same time (a larger --max-body gives more): ask for fewer answers, tokens "
                     "or log-probabilities at once, or try again later",
                     most / (1024 * 1024));
}

void conn_release_reply(struct http_conn *conn)
{
    http_body_free(conn->unsent);
    conn->unsent = NULL;
}

enum tutti_status http_hold_reply(struct http_conn *conn, size_t n_bytes, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    if (n_bytes <= HTTP_SMALL_REPLY_BYTES)
        return TUTTI_OK;
    conn_release_reply(conn); /* of a reply of which at most 64 KiB wait */
    conn->unsent = http_reply_memory(conn);
    if (!conn->unsent) {
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for the reply");
    } else {
        http_body_set_charge(conn->unsent, n_bytes);
        st = http_check_reply_memory(conn->unsent, err);
    }
    if (st != TUTTI_OK) {
        conn_release_reply(conn);
        buf_clear(&conn->extra);
    }
    return st;
}

void http_set_caller(struct http_conn *conn, const char *name, uint64_t tenant)
{
    snprintf(conn->request.caller, sizeof conn->request.caller, "%s", name);
    conn->request.tenant = tenant;
}

void http_set_data(struct http_conn *conn, void *data)
{
    conn->request.data = data;
}

void http_on_abort(struct http_conn *conn, void (*aborted)(void *user), void *user)
{
    conn->aborted = aborted;
    conn->aborted_user = user;
}

void http_close_after_body(struct http_conn *conn)
{
    conn->closes = conn->closes || conn->request.head.chunked || conn->request.head.n_body_bytes > 0;
    conn->n_unread = 0;
}

static bool add_line(struct buf *out, const char *name, const char *value)
{
    return buf_add_string(out, name) && buf_add_string(out, ": ") && buf_add_string(out, value) &&
           buf_add_string(out, "\r\n");
}

void http_header(struct http_conn *conn, const char *name, const char *value)
{
    if (!add_line(&conn->extra, name, value))
        conn_doom(conn);
}

bool http_stream_has_begun(const struct http_conn *conn)
{
    return conn->has_begun;
}

/* Writes directly to the socket if nothing is queued: libevent would add the socket to epoll,
 * and then remove it. An error occurs again in the bufferevent, which reports it. */
static size_t put_now(struct http_conn *conn, struct iovec *parts, int n_parts)
{
    struct msghdr message = { .msg_iov = parts };
    message.msg_iovlen = (__typeof__(message.msg_iovlen))n_parts; /* the systems differ in its type */
    if (conn->http->options.tls || evbuffer_get_length(bufferevent_get_output(conn->bev)) > 0)
        return 0;
    ssize_t n = sendmsg(bufferevent_getfd(conn->bev), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    return n > 0 ? (size_t)n : 0;
}

/* Sends bytes; drops a client that does not read. */
static void conn_put(struct http_conn *conn, struct iovec *parts, size_t n_parts)
{
    struct evbuffer *out = bufferevent_get_output(conn->bev);
    if (conn->is_doomed)
        return;
    size_t n_done = put_now(conn, parts, (int)n_parts);
    for (size_t i = 0; i < n_parts; i++) {
        size_t n = parts[i].iov_len < n_done ? parts[i].iov_len : n_done;
        n_done -= n;
        if (n < parts[i].iov_len && evbuffer_add(out, (char *)parts[i].iov_base + n, parts[i].iov_len - n))
            conn_doom(conn);
    }
}

static struct iovec iovec_of(const void *bytes, size_t n_bytes)
{
    return (struct iovec){ (void *)(uintptr_t)bytes, n_bytes };
}

/* The header "Date: ..." of the current second. */
static const char *date_of(struct http *http)
{
    time_t now = time(NULL);
    struct tm tm;
    if (now != http->date_time) {
        http->date_time = now;
        gmtime_r(&now, &tm);
        strftime(http->date, sizeof http->date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    }
    return http->date;
}

/* Makes the reply's head. False: out of memory. */
static bool make_head(struct http_conn *conn, int status, const char *type, const char *length_line,
                      struct buf *head)
{
    struct http *http = conn->http;
    conn->status = status;
    conn->has_begun = true;
    if (http->options.reply)
        http->options.reply(http->options.user, conn, status);
    bool ok = buf_reserve(head, HEAD_BYTES + conn->extra.n_bytes) &&
              buf_printf(head, "HTTP/1.1 %d %s\r\n", status, reason_of(status)) &&
              add_line(head, "Date", date_of(http)) && add_line(head, "Server", "tutti") &&
              (!type || add_line(head, "Content-Type", type)) && buf_add_string(head, length_line) &&
              add_line(head, "Connection", conn->closes ? "close" : "keep-alive") &&
              (!conn->request.id[0] || add_line(head, "x-request-id", conn->request.id)) &&
              (!conn->request.id[0] || !http_is_anthropic(conn) ||
               add_line(head, "request-id", conn->request.id)) &&
              (!conn->extra.n_bytes || buf_add(head, conn->extra.bytes, conn->extra.n_bytes)) &&
              buf_add_string(head, "\r\n");
    if (!ok)
        conn_doom(conn);
    return ok;
}

static void conn_finish_reply(struct http_conn *conn)
{
    struct http *http = conn->http;
    if (evbuffer_get_length(bufferevent_get_output(conn->bev)) == 0)
        conn_release_reply(conn);
    conn->aborted = NULL;
    if (http->options.done)
        http->options.done(http->options.user, conn, conn->status, true);
    conn_next(conn);
}

void http_reply(struct http_conn *conn, int status, const char *type, const void *body, size_t n_bytes)
{
    char length_line[64] = "";
    if (status != 204 && status != 304)
        snprintf(length_line, sizeof length_line, "Content-Length: %zu\r\n", type ? n_bytes : 0);
    bool has_body = type && n_bytes > 0 &&
                    !(conn->request.head.method && !strcmp(conn->request.head.method, "HEAD"));
    struct buf head = { 0 };
    struct tutti_error err;
    if (has_body && http_hold_reply(conn, n_bytes, &err) != TUTTI_OK) {
        conn->http->options.fail(conn->http->options.user, conn, &err);
        return;
    }
    if (make_head(conn, status, type, length_line, &head))
        conn_put(conn, (struct iovec[]){ iovec_of(head.bytes, head.n_bytes), iovec_of(body, n_bytes) },
                 has_body ? 2 : 1);
    buf_clear(&head);
    conn_finish_reply(conn);
}

bool http_is_anthropic(const struct http_conn *conn)
{
    static const char PATH[] = "/v1/messages";
    enum { N_PATH = sizeof PATH - 1 };
    const struct http_head *head = &conn->request.head;
    bool is_path = head->path && !strncmp(head->path, PATH, N_PATH) &&
                   (head->path[N_PATH] == '/' || head->path[N_PATH] == '\0');
    return is_path || http_head_find(head, "anthropic-version");
}

json_t *http_error_value(const struct http_conn *conn, int status, const struct tutti_error *err)
{
    return http_is_anthropic(conn) ? json_anthropic_error(status, err, conn->request.id)
                                   : json_error_value(status, err);
}

void conn_reply_error(struct http_conn *conn, int status, const char *why)
{
    struct buf body = { 0 };
    struct tutti_error err;
    error_set(&err, TUTTI_E_ARGUMENT, "%s", why);
    if (status == 503)
        http_header(conn, "Retry-After", "1");
    json_t *value = http_error_value(conn, status, &err);
    bool ok = json_write(&body, value);
    json_decref(value);
    if (ok)
        http_reply(conn, status, "application/json", body.bytes, body.n_bytes);
    else
        http_reply(conn, status, NULL, NULL, 0);
    buf_clear(&body);
}

void http_stream_begin(struct http_conn *conn, int status, const char *type)
{
    conn->is_chunked = conn->request.head.minor >= 1;
    if (!conn->is_chunked)
        conn->closes = true; /* in HTTP/1.0 closing marks the end */
    struct buf head = { 0 };
    if (make_head(conn, status, type, conn->is_chunked ? "Transfer-Encoding: chunked\r\n" : "", &head))
        conn_put(conn, (struct iovec[]){ iovec_of(head.bytes, head.n_bytes) }, 1);
    buf_clear(&head);
}

void http_stream_write(struct http_conn *conn, const void *bytes, size_t n_bytes)
{
    if (n_bytes == 0 || conn->is_doomed)
        return; /* an empty chunk would mark the end */
    if (evbuffer_get_length(bufferevent_get_output(conn->bev)) > conn->http->options.max_output_bytes) {
        conn->http->counts.n_slow_readers++;
        conn_doom(conn);
        return;
    }
    char size[32];
    int n_size = snprintf(size, sizeof size, "%zx\r\n", n_bytes);
    if (conn->is_chunked)
        conn_put(
            conn,
            (struct iovec[]){ iovec_of(size, (size_t)n_size), iovec_of(bytes, n_bytes), iovec_of("\r\n", 2) },
            3);
    else
        conn_put(conn, (struct iovec[]){ iovec_of(bytes, n_bytes) }, 1);
}

void http_stream_end(struct http_conn *conn)
{
    if (conn->is_chunked)
        conn_put(conn, (struct iovec[]){ iovec_of("0\r\n\r\n", 5) }, 1);
    conn_finish_reply(conn);
}
