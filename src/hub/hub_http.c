#include "hub/hub_http.h"

#include "base/system/clock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    CONNECT_S = 30,
    STALL_S = 60, /* without a byte */
    MAX_REDIRECTS = 10,
    FIRST_DELAY_MS = 250,
    MAX_DELAY_MS = 30000,
    MAX_RETRY_AFTER_S = 600,
};

/* ---- sessions ---- */

/* The loopback interface, where an unencrypted token reaches nobody else. */
static bool is_loopback(const char *hub)
{
    static const char *const HOSTS[] = { "http://127.0.0.1", "http://localhost", "http://[::1]", NULL };
    for (const char *const *h = HOSTS; *h; h++) {
        size_t n = strlen(*h);
        if (strncmp(hub, *h, n) == 0 && (hub[n] == '\0' || hub[n] == ':' || hub[n] == '/'))
            return true;
    }
    return false;
}

static bool is_https(const struct hub_name *name)
{
    return strncmp(name->hub, "https://", 8) == 0;
}

/* A token is one header value. */
static bool is_token(const char *token)
{
    for (const char *c = token; *c; c++)
        if ((unsigned char)*c <= ' ' || (unsigned char)*c >= 127)
            return false;
    return true;
}

enum tutti_status hub_http_open(struct hub_session *out, const struct hub_name *name,
                                const struct hub_pull_options *options, struct tutti_error *err)
{
    const char *variable = hub_name_token_variable(name), *token = getenv(variable);
    *out = (struct hub_session){ .name = name, .options = options };
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return error_set(err, TUTTI_E_MEMORY, "libcurl cannot start");
    out->multi = curl_multi_init();
    if (!out->multi)
        return error_set(err, TUTTI_E_MEMORY, "libcurl cannot start");
    if (!token || !*token)
        return TUTTI_OK;
    if (!is_token(token))
        return error_set(err, TUTTI_E_ARGUMENT,
                         "%s: expected a token without blanks, line ends and letters beyond ASCII", variable);
    out->is_token_withheld = !is_https(name) && !is_loopback(name->hub);
    out->token = out->is_token_withheld ? NULL : token;
    if (!out->token || name->layout != HUB_MODELSCOPE)
        return TUTTI_OK;
    /* ModelScope reads the token from a cookie. Like a bearer token, libcurl sends it to this host only. */
    struct buf cookie = { 0 };
    if (buf_printf(&cookie, "Cookie: m_session_id=%s", token))
        out->headers = curl_slist_append(NULL, cookie.bytes);
    buf_clear(&cookie);
    return out->headers ? TUTTI_OK : error_set(err, TUTTI_E_MEMORY, "out of memory for a header");
}

void hub_http_close(struct hub_session *session)
{
    if (session->multi)
        curl_multi_cleanup(session->multi);
    curl_slist_free_all(session->headers);
    curl_global_cleanup();
}

/* ---- headers ---- */

/* The value of a header "NAME: VALUE\r\n" if it has this name, copied. */
static bool read_header(const char *line, size_t n, const char *name, char *out, size_t size)
{
    size_t n_name = strlen(name);
    if (n <= n_name || line[n_name] != ':' || strncasecmp(line, name, n_name) != 0)
        return false;
    line += n_name + 1;
    n -= n_name + 1;
    while (n > 0 && (*line == ' ' || *line == '\t')) {
        line++;
        n--;
    }
    while (n > 0 && (line[n - 1] == '\r' || line[n - 1] == '\n' || line[n - 1] == ' '))
        n--;
    snprintf(out, size, "%.*s", (int)n, line);
    return true;
}

static int64_t read_length(const char *text)
{
    char *end;
    long long value = strtoll(text, &end, 10);
    return end > text && *end == '\0' && value >= 0 ? value : -1;
}

/* "bytes 100-199/1000", "bytes 100-199/" and a star if the length is unknown. */
static void read_range(struct hub_answer *answer, const char *text)
{
    long long begin, end;
    int n = 0;
    if (sscanf(text, "bytes %lld-%lld/%n", &begin, &end, &n) < 2 || n == 0 || begin < 0)
        return;
    answer->range_begin = begin;
    answer->range_total = read_length(text + n);
}

/* Without quotes, and the mark of a weak one. */
static void read_etag(struct hub_answer *answer, const char *text)
{
    const char *begin = strncmp(text, "W/", 2) == 0 ? text + 2 : text;
    begin += *begin == '"';
    snprintf(answer->linked_etag, sizeof answer->linked_etag, "%.*s", (int)strcspn(begin, "\""), begin);
}

static size_t on_header(char *line, size_t size, size_t n, void *user)
{
    struct hub_answer *answer = user;
    char value[200];
    n *= size;
    if (n > 5 && strncmp(line, "HTTP/", 5) == 0) {
        /* Of redirects, what the hub says of the file stays; the rest is of the last response. */
        const char *space = memchr(line, ' ', n);
        answer->status = 0;
        answer->range_begin = answer->range_total = -1;
        answer->message[0] = answer->reason[0] = '\0';
        if (space && sscanf(space, "%d %39[^\r\n]", &answer->status, answer->reason) < 1)
            answer->status = 0;
    } else if (read_header(line, n, "content-range", value, sizeof value)) {
        read_range(answer, value);
    } else if (read_header(line, n, "x-linked-size", value, sizeof value)) {
        answer->linked_bytes = read_length(value);
    } else if (read_header(line, n, "x-linked-etag", value, sizeof value)) {
        read_etag(answer, value);
    } else if (read_header(line, n, "x-error-message", value, sizeof value)) {
        snprintf(answer->message, sizeof answer->message, "%s", value);
    }
    return n;
}

/* ---- requests ---- */

CURL *hub_http_request(struct hub_session *session, const char *url, struct hub_answer *answer,
                       curl_write_callback write, void *user)
{
    CURL *easy = curl_easy_init();
    const char *ca_file = getenv("SSL_CERT_FILE"), *ca_folder = getenv("SSL_CERT_DIR");
    const char *protocols = is_https(session->name) ? "https" : "http,https"; /* no way back to plain text */
    *answer = (struct hub_answer){ .range_begin = -1, .range_total = -1, .linked_bytes = -1 };
    if (!easy)
        return NULL;
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, protocols);
    curl_easy_setopt(easy, CURLOPT_REDIR_PROTOCOLS_STR, protocols);
    curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(easy, CURLOPT_MAXREDIRS, (long)MAX_REDIRECTS);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)STALL_S);
    curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, 256L << 10);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "tutti/" TUTTI_VERSION);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, answer->curl_text);
    curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(easy, CURLOPT_HEADERDATA, answer);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, write);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, user);
    if (ca_file && *ca_file)
        curl_easy_setopt(easy, CURLOPT_CAINFO, ca_file);
    if (ca_folder && *ca_folder)
        curl_easy_setopt(easy, CURLOPT_CAPATH, ca_folder);
    bool ok = curl_easy_setopt(easy, CURLOPT_URL, url) == CURLE_OK;
    if (session->token) {
        curl_easy_setopt(easy, CURLOPT_HTTPAUTH, (long)CURLAUTH_BEARER);
        ok = ok && curl_easy_setopt(easy, CURLOPT_XOAUTH2_BEARER, session->token) == CURLE_OK;
    }
    if (session->headers)
        curl_easy_setopt(easy, CURLOPT_HTTPHEADER, session->headers);
    if (ok)
        return easy;
    curl_easy_cleanup(easy);
    return NULL;
}

enum tutti_status hub_http_try_again(struct hub_session *session, int64_t retry_after_s, const char *text,
                                     struct tutti_error *err)
{
    int n = ++session->n_failures;
    uint64_t delay_ms = FIRST_DELAY_MS;
    for (int i = 1; i < n && delay_ms < MAX_DELAY_MS; i++)
        delay_ms *= 2;
    if (delay_ms > MAX_DELAY_MS)
        delay_ms = MAX_DELAY_MS;
    if (retry_after_s > MAX_RETRY_AFTER_S)
        return error_set(err, TUTTI_E_IO,
                         "%s; it asks to wait for %" PRId64
                         " s. What was downloaded is kept: run the command "
                         "again then",
                         text, retry_after_s);
    if (retry_after_s > 0)
        delay_ms = 1000 * (uint64_t)retry_after_s;
    if (n > session->options->n_retries)
        return error_set(
            err, TUTTI_E_IO,
            "%s; gave up after %d attempt%s. What was downloaded is kept: run the command again to "
            "continue",
            text, n, n == 1 ? "" : "s");
    session->not_before_us = clock_now_us() + 1000 * delay_ms;
    char note[640];
    snprintf(note, sizeof note, "%s; trying again in %.1f s (%d of %d)", text, (double)delay_ms / 1e3, n,
             session->options->n_retries);
    session->options->note(session->options->user, note);
    return TUTTI_OK;
}

/* Failures of the network, which may pass. */
static bool may_pass(CURLcode code)
{
    static const CURLcode PASSING[] = {
        CURLE_COULDNT_RESOLVE_PROXY,
        CURLE_COULDNT_RESOLVE_HOST,
        CURLE_COULDNT_CONNECT,
        CURLE_PARTIAL_FILE,
        CURLE_OPERATION_TIMEDOUT,
        CURLE_SSL_CONNECT_ERROR,
        CURLE_GOT_NOTHING,
        CURLE_SEND_ERROR,
        CURLE_RECV_ERROR,
        CURLE_HTTP2,
        CURLE_HTTP2_STREAM,
        CURLE_AGAIN,
    };
    for (size_t i = 0; i < sizeof PASSING / sizeof *PASSING; i++)
        if (PASSING[i] == code)
            return true;
    return false;
}

/* What to do about a status that no repetition changes. */
static enum tutti_status refused(const struct hub_session *session, const struct hub_answer *answer,
                                 const char *url, struct tutti_error *err)
{
    const struct hub_name *name = session->name;
    const char *variable = hub_name_token_variable(name);
    char said[300];
    snprintf(said, sizeof said, "%d %s%s%s", answer->status, answer->reason, *answer->message ? ": " : "",
             answer->message);
    if (answer->status == 401 || answer->status == 403) {
        if (session->is_token_withheld)
            return error_set(err, TUTTI_E_IO,
                             "%s: %s; %s is not sent over plain HTTP: use the hub's https:// URL", url, said,
                             variable);
        return error_set(
            err, TUTTI_E_IO,
            "%s: %s; the model is private or gated, or there is none of this name: check the name, "
            "accept its terms on %s/%s, and set %s to a token that may read it",
            url, said, name->hub, name->model, variable);
    }
    if (answer->status == 404)
        return error_set(err, TUTTI_E_NOT_FOUND,
                         "%s: %s; the hub has no such model, revision or file: check the name, and for a hub "
                         "with ModelScope's layout write ms:ORG/NAME",
                         url, said);
    return error_set(err, TUTTI_E_IO, "%s: %s, expected the content", url, said);
}

bool hub_http_is_good(struct hub_session *session, CURL *easy, CURLcode code, const struct hub_answer *answer,
                      const char *url, enum tutti_status *st, struct tutti_error *err)
{
    char text[500];
    curl_off_t retry_after_s = 0;
    *st = TUTTI_OK;
    int status = answer->status;
    if (code != CURLE_OK) {
        const char *why = answer->curl_text[0] ? answer->curl_text : curl_easy_strerror(code);
        snprintf(text, sizeof text, "%s: %s", url, why);
        if (may_pass(code))
            *st = hub_http_try_again(session, 0, text, err);
        else if (code == CURLE_UNSUPPORTED_PROTOCOL)
            *st = error_set(err, TUTTI_E_IO, "%s: it redirects to a URL that is not HTTPS, which is refused",
                            url);
        else if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE)
            *st = error_set(err, TUTTI_E_IO, "%s; set SSL_CERT_FILE to the certificates of the authority",
                            text);
        else
            *st = error_set(err, code == CURLE_OUT_OF_MEMORY ? TUTTI_E_MEMORY : TUTTI_E_IO, "%s", text);
        return false;
    }
    if (status == 200 || status == 206)
        return true;
    if (status == 408 || status == 425 || status == 429 || status >= 500) {
        curl_easy_getinfo(easy, CURLINFO_RETRY_AFTER, &retry_after_s);
        snprintf(text, sizeof text, "%s: %d %s%s%s", url, status, answer->reason,
                 *answer->message ? ": " : "", answer->message);
        *st = hub_http_try_again(session, retry_after_s, text, err);
    } else {
        *st = refused(session, answer, url, err);
    }
    return false;
}

/* ---- a whole body ---- */

struct body {
    struct hub_answer answer;
    struct buf *out;
    size_t start, max_bytes;
    bool is_too_long;
};

static size_t on_body(char *bytes, size_t size, size_t n, void *user)
{
    struct body *body = user;
    n *= size;
    if (body->answer.status != 200)
        return n;
    body->is_too_long = body->out->n_bytes - body->start + n > body->max_bytes;
    return !body->is_too_long && buf_add(body->out, bytes, n) ? n : 0;
}

/* Waits until the next attempt is allowed. */
static void wait_for_attempt(struct hub_session *session)
{
    for (uint64_t now; (now = clock_now_us()) < session->not_before_us;)
        curl_multi_poll(session->multi, NULL, 0, (int)((session->not_before_us - now) / 1000 + 1), NULL);
}

enum tutti_status hub_http_get(struct hub_session *session, const char *url, size_t max_bytes,
                               struct buf *out, struct tutti_error *err)
{
    struct body body = { .out = out, .start = out->n_bytes, .max_bytes = max_bytes };
    for (;;) {
        enum tutti_status st;
        wait_for_attempt(session);
        CURL *easy = hub_http_request(session, url, &body.answer, on_body, &body);
        if (!easy)
            return error_out_of_memory(url, err);
        CURLcode code = curl_easy_perform(easy);
        bool is_good = hub_http_is_good(session, easy, code, &body.answer, url, &st, err);
        curl_easy_cleanup(easy);
        if (body.is_too_long)
            return error_set(err, TUTTI_E_FORMAT, "%s: more than %zu bytes", url, max_bytes);
        if (is_good)
            session->n_failures = 0;
        if (is_good || st != TUTTI_OK)
            return st;
        if (out->n_bytes > body.start)
            buf_truncate(out, body.start);
    }
}
