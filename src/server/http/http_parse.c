#include "server/http/http_parse.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Characters of a token, RFC 9110 section 5.6.2. */
static bool is_token_char(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static int refuse_head(int status, const char *text, const char **why)
{
    *why = text;
    return status;
}

/* Takes the next line from *at, in place. False: it does not end in CR LF, or has a stray CR, LF or
 * NUL. */
static bool take_line(char **at, char *end, char **line)
{
    char *lf = memchr(*at, '\n', (size_t)(end - *at));
    if (!lf || lf == *at || lf[-1] != '\r')
        return false;
    size_t n = (size_t)(lf - 1 - *at);
    if (memchr(*at, '\r', n) || memchr(*at, '\0', n))
        return false;
    lf[-1] = '\0';
    *line = *at;
    *at = lf + 1;
    return true;
}

/* Decodes the path, once, so that routes and names are compared as they are meant. */
static int decode_path(struct http_head *head, const char **why)
{
    head->decoded = strdup(head->raw_path);
    if (!head->decoded)
        return refuse_head(503, "out of memory", why);
    char *out = head->decoded;
    for (const char *p = head->raw_path; *p; p++) {
        uint32_t byte = (unsigned char)*p;
        if (*p == '%') {
            if (!hex_read(p + 1, strnlen(p + 1, 2), 2, &byte))
                return refuse_head(400, "a % in the path is not followed by two hexadecimal digits", why);
            if (byte < ' ' || byte == 0x7f)
                return refuse_head(400, "the path has a percent-encoded control character", why);
            p += 2;
        }
        *out++ = (char)byte;
    }
    *out = '\0';
    head->path = head->decoded;
    return 0;
}

static int parse_request_line(struct http_head *head, char *line, const char **why)
{
    char *target = strchr(line, ' ');
    char *version = target ? strchr(target + 1, ' ') : NULL;
    if (!target || target == line || !version)
        return refuse_head(400, "the request line is not METHOD TARGET HTTP/1.1", why);
    *target++ = '\0';
    *version++ = '\0';
    for (const char *p = line; *p; p++)
        if (!is_token_char((unsigned char)*p))
            return refuse_head(400, "the method has a character that is not allowed", why);
    if (strncmp(version, "HTTP/", 5))
        return refuse_head(400, "the request line is not METHOD TARGET HTTP/1.1", why);
    if (strcmp(version, "HTTP/1.1") && strcmp(version, "HTTP/1.0"))
        return refuse_head(505, "only HTTP/1.1 and HTTP/1.0 are supported", why);
    head->minor = version[7] - '0';
    for (const char *p = target; *p; p++)
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 0x7f)
            return refuse_head(400, "the target has a character that must be percent-encoded", why);

    /* The absolute form is for proxies; its path is used. */
    if (!strncasecmp(target, "http://", 7)) {
        size_t n = strcspn(target + 7, "/?");
        static char root[] = "/";
        head->host = memmove(target + 6, target + 7, n); /* moved to make room for its terminator */
        char *rest = target + 7 + n;
        target[6 + n] = '\0';
        target = *rest ? rest : root;
    }
    if (*target != '/' && strcmp(target, "*"))
        return refuse_head(400, "the target must begin with /", why);
    char *query = strchr(target, '?');
    head->query = "";
    if (query) {
        *query = '\0';
        head->query = query + 1;
    }
    head->method = line;
    head->path = head->raw_path = target;
    return strchr(target, '%') ? decode_path(head, why) : 0;
}

static int parse_header_line(struct http_head *head, char *line, const char **why)
{
    char *colon = strchr(line, ':');
    if (*line == ' ' || *line == '\t')
        return refuse_head(400, "a folded header line is not allowed", why);
    if (!colon || colon == line)
        return refuse_head(400, "a header line has no name", why);
    for (const char *p = line; p < colon; p++)
        if (!is_token_char((unsigned char)*p))
            return refuse_head(400, "a header's name has a character that is not allowed", why);
    if (head->n_headers == HTTP_MAX_HEADERS)
        return refuse_head(431, "there are more than 100 headers", why);
    *colon = '\0';
    char *value = colon + 1;
    value += strspn(value, " \t");
    for (const char *p = value; *p; p++)
        if (((unsigned char)*p < ' ' && *p != '\t') || *p == 0x7f)
            return refuse_head(400, "a header's value has a control character", why);
    size_t n = strlen(value);
    while (n > 0 && (value[n - 1] == ' ' || value[n - 1] == '\t'))
        value[--n] = '\0';
    head->headers[head->n_headers++] = (struct http_header){ line, value };
    return 0;
}

/* True: the comma-separated list has the word. */
static bool list_has(const char *list, const char *word)
{
    size_t n_word = strlen(word);
    for (const char *p = list; *p;) {
        p += strspn(p, ", \t");
        size_t n = strcspn(p, ", \t");
        if (n == n_word && !strncasecmp(p, word, n))
            return true;
        p += n;
    }
    return false;
}

static int parse_length(struct http_head *head, const char *value, bool seen, const char **why)
{
    uint64_t n = 0;
    if (!*value)
        return refuse_head(400, "Content-Length is not a number", why);
    for (const char *p = value; *p; p++)
        if (*p < '0' || *p > '9' || __builtin_mul_overflow(n, (uint64_t)10, &n) ||
            __builtin_add_overflow(n, (uint64_t)(*p - '0'), &n))
            return refuse_head(400, "Content-Length is not a number", why);
    if (seen)
        return refuse_head(400, "duplicate header Content-Length", why);
    head->n_body_bytes = n;
    return 0;
}

/* Derives the framing of the body, and keep-alive, from the headers. */
static int parse_framing(struct http_head *head, const char **why)
{
    bool has_length = false, has_host = false, close = false, keep = false;
    for (int i = 0; i < head->n_headers; i++) {
        const char *name = head->headers[i].name, *value = head->headers[i].value;
        if (!strcasecmp(name, "content-length")) {
            int status = parse_length(head, value, has_length, why);
            if (status)
                return status;
            has_length = true;
        } else if (!strcasecmp(name, "transfer-encoding")) {
            if (strcasecmp(value, "chunked") || head->chunked)
                return refuse_head(501, "the only supported Transfer-Encoding is chunked", why);
            head->chunked = true;
        } else if (!strcasecmp(name, "host")) {
            if (has_host)
                return refuse_head(400, "duplicate header Host", why);
            has_host = true;
            head->host = head->host ? head->host
                                    : value; /* RFC 9112 section 3.2.2: an absolute target comes first */
        } else if (!strcasecmp(name, "connection")) {
            close |= list_has(value, "close");
            keep |= list_has(value, "keep-alive");
        } else if (!strcasecmp(name, "expect")) {
            if (strcasecmp(value, "100-continue"))
                return refuse_head(417, "the only supported Expect is 100-continue", why);
            head->expects_continue = head->minor >= 1;
        }
    }
    if (head->minor >= 1 && !has_host)
        return refuse_head(400, "the header Host is missing", why);
    if (head->chunked && (has_length || head->minor == 0))
        return refuse_head(400, "Transfer-Encoding together with Content-Length, or in HTTP/1.0", why);
    if (head->host && strpbrk(head->host, " \t,/?#@\\\""))
        return refuse_head(400, "the header Host is not NAME or NAME:PORT", why);
    head->keep_alive = !close && (head->minor >= 1 || keep);
    return 0;
}

int http_head_parse(struct http_head *out, const char *bytes, size_t n_bytes, const char **why)
{
    *out = (struct http_head){ 0 };
    if (n_bytes > HTTP_MAX_HEAD_BYTES)
        return refuse_head(431, "the request's head is larger than 32 KiB", why);
    char *text = malloc(n_bytes + 1);
    if (!text)
        return refuse_head(503, "out of memory", why);
    memcpy(text, bytes, n_bytes);
    text[n_bytes] = '\0';
    out->text = text;

    char *at = text, *end = text + n_bytes, *line;
    if (!take_line(&at, end, &line))
        return refuse_head(400, "a line does not end in CR LF", why);
    int status = parse_request_line(out, line, why);
    while (!status) {
        if (!take_line(&at, end, &line))
            return refuse_head(400, "a line does not end in CR LF", why);
        if (!*line)
            break;
        status = parse_header_line(out, line, why);
    }
    return status ? status : parse_framing(out, why);
}

void http_head_clear(struct http_head *head)
{
    free(head->text);
    free(head->decoded);
    *head = (struct http_head){ 0 };
}

const char *http_head_find(const struct http_head *head, const char *name)
{
    for (int i = 0; i < head->n_headers; i++)
        if (!strcasecmp(head->headers[i].name, name))
            return head->headers[i].value;
    return NULL;
}

/* ---- chunked coding, RFC 9112 section 7.1 ---- */

/* Length of a line of at most max bytes with its CR LF. 0: not complete yet; -1: too long, or not
 * ended by CR LF. */
static int64_t line_bytes(const char *bytes, size_t n_bytes, size_t max)
{
    const char *lf = memchr(bytes, '\n', n_bytes < max ? n_bytes : max);
    if (!lf)
        return n_bytes >= max ? -1 : 0;
    return lf > bytes && lf[-1] == '\r' ? lf - bytes + 1 : -1;
}

static size_t token_bytes(const char *text)
{
    size_t n = 0;
    while (is_token_char((unsigned char)text[n]))
        n++;
    return n;
}

/* Length of a quoted string with its quotes, RFC 9110 section 5.6.4; 0: not a quoted string. */
static size_t quoted_bytes(const char *text)
{
    size_t n = 1;
    if (*text != '"')
        return 0;
    while (text[n] != '"') {
        n += text[n] == '\\';
        unsigned char c = (unsigned char)text[n++];
        if ((c < ' ' && c != '\t') || c == 0x7f)
            return 0;
    }
    return n + 1;
}

/* Extensions are ignored, but anything else in their place would be ambiguous. True: from text to
 * end, where the line's CR LF is, there are only extensions, without blanks, as RFC 9112 requires
 * of senders. */
static bool are_extensions(const char *text, const char *end)
{
    while (*text == ';') {
        size_t n = token_bytes(++text);
        if (n == 0)
            return false;
        text += n;
        if (*text == '=') {
            n = *++text == '"' ? quoted_bytes(text) : token_bytes(text);
            if (n == 0)
                return false;
            text += n;
        }
    }
    return text == end;
}

/* line: ends with CR LF. */
static int parse_chunk_size(struct http_chunks *chunks, const char *line, size_t n_line, const char **why)
{
    uint64_t n = 0;
    size_t digits = 0;
    for (; hex_digit(line[digits]) >= 0; digits++) {
        if (digits == 15)
            return refuse_head(400, "a chunk's size is too large", why);
        n = n * 16 + (uint64_t)hex_digit(line[digits]);
    }
    if (digits == 0)
        return refuse_head(400, "a chunk's size is not a hexadecimal number", why);
    if (!are_extensions(line + digits, line + n_line - 2))
        return refuse_head(400, "a chunk's size is followed by something other than an extension", why);
    chunks->n_extension_bytes += n_line - digits - 2;
    if (chunks->n_extension_bytes > HTTP_MAX_EXTENSION_BYTES)
        return refuse_head(400, "the extensions of all chunks are larger than 16 KiB", why);
    chunks->n_left = n;
    chunks->state = n ? CHUNK_DATA : CHUNK_TRAILER;
    return 0;
}

/* True: a line of the trailer, which ends with CR LF, is a valid field; fields are ignored. */
static bool is_field_line(const char *line, size_t n_line)
{
    size_t n = token_bytes(line);
    if (n == 0 || line[n] != ':')
        return false;
    for (n++; n < n_line - 2; n++)
        if (((unsigned char)line[n] < ' ' && line[n] != '\t') || line[n] == 0x7f)
            return false;
    return true;
}

/* Handles a complete line: the chunk size, the end of the data, or the trailer. */
static int read_chunk_line(struct http_chunks *chunks, const char *line, size_t n, const char **why)
{
    switch (chunks->state) {
    case CHUNK_SIZE:
        return parse_chunk_size(chunks, line, n, why);
    case CHUNK_DATA_END:
        chunks->state = CHUNK_SIZE;
        return n == 2 ? 0 : refuse_head(400, "a chunk is longer than its size says", why);
    default:
        chunks->n_trailer_bytes += n;
        if (chunks->n_trailer_bytes > HTTP_MAX_TRAILER_BYTES)
            return refuse_head(431, "the trailer is larger than 8 KiB", why);
        if (n == 2)
            chunks->state = CHUNK_DONE;
        else if (!is_field_line(line, n))
            return refuse_head(400, "a line of the trailer is not a header line", why);
        return 0;
    }
}

int http_chunks_read(struct http_chunks *chunks, const char *bytes, size_t n_bytes, size_t *n_used,
                     struct buf *body, size_t max_body_bytes, const char **why)
{
    size_t at = 0;
    *n_used = 0;
    while (chunks->state != CHUNK_DONE && at < n_bytes) {
        if (chunks->state == CHUNK_DATA) {
            size_t n = n_bytes - at;
            if (n > chunks->n_left)
                n = (size_t)chunks->n_left;
            if (chunks->n_left > max_body_bytes || body->n_bytes > max_body_bytes - chunks->n_left)
                return refuse_head(413, "the request's body is larger than --max-body allows", why);
            if (!buf_add(body, bytes + at, n))
                return refuse_head(503, "out of memory", why);
            at += n;
            chunks->n_left -= n;
            if (!chunks->n_left)
                chunks->state = CHUNK_DATA_END;
        } else {
            size_t max = chunks->state == CHUNK_TRAILER ? HTTP_MAX_TRAILER_BYTES : HTTP_MAX_CHUNK_LINE;
            int64_t n = line_bytes(bytes + at, n_bytes - at, max);
            if (n < 0)
                return refuse_head(400, "a line of the chunked body does not end in CR LF", why);
            if (n == 0)
                break;
            int status = read_chunk_line(chunks, bytes + at, (size_t)n, why);
            if (status)
                return status;
            at += (size_t)n;
        }
    }
    *n_used = at;
    return 0;
}
