/* Any bytes as the body of a request to any API: it is answered, with JSON. Input: which API (a byte), the body. */
#include "served.h"

#include "base/buf.h"

#include <assert.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes);

static const char *const PATHS[] = { "/v1/chat/completions",
                                     "/v1/completions",
                                     "/v1/responses",
                                     "/tokenize",
                                     "/detokenize",
                                     "/generate",
                                     "/generate_stream",
                                     "/",
                                     "/models/x",
                                     "/models/x/generate",
                                     "/models/x/generate_stream",
                                     "/llm/generate",
                                     "/v1/embeddings",
                                     "/v1/messages",
                                     "/v1/messages/count_tokens",
                                     "/infill" };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n_bytes)
{
    struct buf request = { 0 };
    if (n_bytes < 1)
        return 0;
    assert(buf_printf(&request,
                      "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                      "application/json\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
                      PATHS[bytes[0] % (sizeof PATHS / sizeof *PATHS)], n_bytes - 1));
    assert(n_bytes == 1 || buf_add(&request, bytes + 1, n_bytes - 1));
    int status = served_send((const uint8_t *)request.bytes, request.n_bytes, request.n_bytes);
    buf_clear(&request);
    assert(status == 200 || status == 400 || status == 404 || status == 409 || status == 413 ||
           status == 422 || status == 429);
    return 0;
}
