/* Parses the head of an HTTP/1.1 request and the chunked coding, strictly by RFC 9112.
 *
 * Ambiguous framing is refused, because request smuggling past a proxy is based on it: bare line
 * feeds, folded lines, blanks before a colon, duplicate Content-Length, Content-Length with
 * Transfer-Encoding. */
#ifndef TUTTI_SERVER_HTTP_HTTP_PARSE_H
#define TUTTI_SERVER_HTTP_HTTP_PARSE_H

#include "base/buf.h"

enum {
    HTTP_MAX_HEAD_BYTES = 32 * 1024,
    HTTP_MAX_HEADERS = 100,
    HTTP_MAX_CHUNK_LINE = 256,            /* a size and its extensions */
    HTTP_MAX_EXTENSION_BYTES = 16 * 1024, /* of all chunks of a body */
    HTTP_MAX_TRAILER_BYTES = 8 * 1024,
};

struct http_header {
    const char *name, *value; /* value without blanks around it */
};

/* Zero-initialised is empty. Strings point into text. */
struct http_head {
    char *text;
    /* The host and port that the client addresses: from an absolute target, else from the header
     * Host; NULL: neither. */
    const char *host;
    /* path begins with '/' and is percent-decoded; raw_path is as it was sent. query, without '?', is not decoded: "" if
     * there is none. */
    const char *method, *path, *raw_path, *query;
    char *decoded; /* path, unless it is raw_path */
    int minor;     /* of HTTP/1.minor */
    struct http_header headers[HTTP_MAX_HEADERS];
    int n_headers;
    bool keep_alive, chunked, expects_continue;
    uint64_t n_body_bytes; /* 0 where chunked */
};

/* Parses a head including the empty line. Returns 0, or the HTTP status to refuse with; *why is then
 * the reason, a constant string. Call http_head_clear() in any case. */
MUST_CHECK int http_head_parse(struct http_head *out, const char *bytes, size_t n_bytes, const char **why);
void http_head_clear(struct http_head *head);

/* Finds a header by name, ignoring case; NULL: not found. */
const char *http_head_find(const struct http_head *head, const char *name);

/* Incremental decoder of the chunked coding. Zero-initialise. */
struct http_chunks {
    enum { CHUNK_SIZE, CHUNK_DATA, CHUNK_DATA_END, CHUNK_TRAILER, CHUNK_DONE } state;
    uint64_t n_left; /* of this chunk */
    size_t n_extension_bytes, n_trailer_bytes;
};

/* Decodes as much of bytes as possible and appends the data to body, up to max_body_bytes in total.
 * Returns 0 (*n_used bytes were consumed; state CHUNK_DONE: the body is complete), or the HTTP
 * status to refuse with. */
MUST_CHECK int http_chunks_read(struct http_chunks *chunks, const char *bytes, size_t n_bytes, size_t *n_used,
                                struct buf *body, size_t max_body_bytes, const char **why);

#endif
