/* Any bytes as a request's head, and after it as a chunked body: refused with a reason, or read within bounds; and a body
 * that arrives in parts is what it is at once.
 * Input: the size of the parts (a byte), the head up to its empty line, the body. */
#include "server/http/http_parse.h"

#include <assert.h>
#include <string.h>

enum { MAX_BODY_BYTES = 4096 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

/* A text of the head's, with its end. */
static void check_text(const struct http_head *head, const char *text, size_t n_head)
{
    assert(text >= head->text && text < head->text + n_head);
    assert(text + strlen(text) < head->text + n_head);
}

static void check_head(const uint8_t *bytes, size_t n_head)
{
    struct http_head head;
    const char *why = NULL;
    int status = http_head_parse(&head, (const char *)bytes, n_head, &why);
    assert(status == 0 || (status >= 400 && status < 600 && why && *why));
    if (status == 0) {
        assert(head.n_headers >= 0 && head.n_headers <= HTTP_MAX_HEADERS);
        assert(*head.method && (*head.path == '/' || strcmp(head.path, "*") == 0));
        assert(!head.chunked || head.n_body_bytes == 0);
        check_text(&head, head.method, n_head);
        for (int i = 0; i < head.n_headers; i++) {
            check_text(&head, head.headers[i].name, n_head);
            check_text(&head, head.headers[i].value, n_head);
            assert(http_head_find(&head, head.headers[i].name));
        }
    }
    http_head_clear(&head);
}

/* Gives the body in parts, each with what the reader left of the last, as a connection's buffer does. */
static int read_body(const char *bytes, size_t n_bytes, size_t n_part, struct http_chunks *chunks,
                     struct buf *body)
{
    size_t begin = 0, end = 0;
    int status = 0;
    while (status == 0 && end < n_bytes && chunks->state != CHUNK_DONE) {
        const char *why = NULL;
        size_t n_used = 0;
        end = n_part < n_bytes - end ? end + n_part : n_bytes;
        status = http_chunks_read(chunks, bytes + begin, end - begin, &n_used, body, MAX_BODY_BYTES, &why);
        assert(status == 0 || (status >= 400 && status < 600 && why && *why));
        assert(n_used <= end - begin && body->n_bytes <= MAX_BODY_BYTES);
        begin += n_used;
    }
    return status;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    if (n_bytes < 1)
        return 0;
    size_t n_part = (size_t)bytes[0] + 1;
    bytes++;
    n_bytes--;
    const uint8_t *end = n_bytes > 0 ? memmem(bytes, n_bytes, "\r\n\r\n", 4) : NULL;
    size_t n_head = end ? (size_t)(end - bytes) + 4 : n_bytes;
    check_head(bytes, n_head);

    const char *text = (const char *)bytes + n_head;
    struct http_chunks whole = { 0 }, parts = { 0 };
    struct buf a = { 0 }, b = { 0 };
    int status = read_body(text, n_bytes - n_head, n_bytes + 1, &whole, &a);
    int again = read_body(text, n_bytes - n_head, n_part, &parts, &b);
    assert(status == again);
    if (status == 0) {
        assert(whole.state == parts.state && whole.n_left == parts.n_left && a.n_bytes == b.n_bytes);
        assert(a.n_bytes == 0 || memcmp(a.bytes, b.bytes, a.n_bytes) == 0);
    }
    buf_clear(&a);
    buf_clear(&b);
    return 0;
}
