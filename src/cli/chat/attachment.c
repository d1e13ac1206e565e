#include "cli/chat/attachment.h"

#include "base/utf8.h"
#include "cli/terminal/input.h"
#include "cli/terminal/numbers.h"

#include <stdlib.h>
#include <string.h>

enum { BYTES_PER_TOKEN = 32, MIN_BYTES = 4096, MIN_FENCE = 3 };

size_t attachment_max_bytes(int n_tokens)
{
    return MIN_BYTES + (size_t)n_tokens * BYTES_PER_TOKEN;
}

bool attachment_write(struct buf *out, const char *name, const char *text, size_t n_bytes)
{
    size_t longest = MIN_FENCE - 1, run = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        run = text[i] == '`' ? run + 1 : 0;
        longest = run > longest ? run : longest;
    }
    size_t n_fence = longest + 1;
    char *fence = malloc(n_fence + 1);
    if (!fence)
        return false;
    memset(fence, '`', n_fence);
    fence[n_fence] = '\0';
    if (n_bytes > 0 && text[n_bytes - 1] == '\n')
        n_bytes--;
    bool ok = buf_printf(out, "%s:\n%s\n", name, fence) && (n_bytes == 0 || buf_add(out, text, n_bytes)) &&
              buf_printf(out, "\n%s\n\n", fence);
    free(fence);
    return ok;
}

enum tutti_status text_file_read(struct buf *out, const char *path, size_t max_bytes, struct tutti_error *err)
{
    char size[NUMBER_SIZE_BYTES];
    enum tutti_status st = input_read_most(out, path, max_bytes, err);
    if (st == TUTTI_OK && out->n_bytes > max_bytes)
        return error_set(err, TUTTI_E_LIMIT, "%s: longer than %s, which is more than the context can hold",
                         input_name(path), number_write_size(size, max_bytes));
    if (st == TUTTI_OK && out->n_bytes > 0 &&
        (!utf8_is_valid(out->bytes, out->n_bytes) || memchr(out->bytes, '\0', out->n_bytes)))
        return error_set(err, TUTTI_E_FORMAT, "%s: found bytes that are not UTF-8 text, expected a text file",
                         input_name(path));
    return st;
}

enum tutti_status system_file_read(struct buf *out, const char *path, size_t max_bytes,
                                   struct tutti_error *err)
{
    enum tutti_status st = text_file_read(out, path, max_bytes, err);
    if (st == TUTTI_OK && out->n_bytes > 0 && out->bytes[out->n_bytes - 1] == '\n') {
        buf_truncate(out, out->n_bytes - 1);
        out->bytes[out->n_bytes] = '\0';
    }
    return st == TUTTI_OK && out->n_bytes == 0
               ? error_set(err, TUTTI_E_FORMAT, "%s: the file is empty, expected a system message",
                           input_name(path))
               : st;
}

enum tutti_status attachment_read(struct buf *out, const char *path, size_t max_bytes,
                                  struct tutti_error *err)
{
    struct buf text = { 0 };
    size_t n_before = out->n_bytes;
    char *name = strdup(input_name(path));
    enum tutti_status st = name ? text_file_read(&text, path, max_bytes, err)
                                : error_out_of_memory(path, err);
    if (st == TUTTI_OK) {
        utf8_make_printable(name, strlen(name));
        if (!attachment_write(out, name, text.bytes ? text.bytes : "", text.n_bytes)) {
            buf_truncate(out, n_before);
            st = error_out_of_memory(path, err);
        }
    }
    free(name);
    buf_clear(&text);
    return st;
}
