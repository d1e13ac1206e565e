#include "cli/terminal/input.h"

#include "base/utf8.h"
#include "cli/terminal/interrupt.h"
#include "cli/terminal/numbers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK_BYTES = 1 << 16, MAX_DIGITS = 20 };

const char *input_name(const char *path)
{
    return strcmp(path, "-") == 0 ? "standard input" : path;
}

enum tutti_status input_read(struct buf *out, const char *path, struct tutti_error *err)
{
    return input_read_most(out, path, SIZE_MAX, err);
}

enum tutti_status input_read_most(struct buf *out, const char *path, size_t max_bytes,
                                  struct tutti_error *err)
{
    const char *name = input_name(path);
    bool is_stdin = strcmp(path, "-") == 0;
    size_t n_before = out->n_bytes;
    int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_from_errno(name, err);
    enum tutti_status st = TUTTI_OK;
    while (out->n_bytes <= max_bytes) {
        if (!buf_reserve(out, CHUNK_BYTES)) {
            st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory after %zu bytes", name, out->n_bytes);
            break;
        }
        ssize_t n = read(fd, out->bytes + out->n_bytes, CHUNK_BYTES);
        if (n < 0 && errno == EINTR && !interrupt_is_pending())
            continue;
        if (n < 0)
            st = error_set(err, TUTTI_E_IO, "%s: %s", name, strerror(errno));
        if (n <= 0)
            break;
        out->n_bytes += (size_t)n;
    }
    if (out->bytes) {
        char *text = out->bytes + n_before;
        size_t n_bytes = out->n_bytes - n_before, n_mark = utf8_mark_bytes(text, n_bytes);
        memmove(text, text + n_mark, n_bytes - n_mark);
        out->n_bytes -= n_mark;
        out->bytes[out->n_bytes] = '\0';
    }
    if (!is_stdin)
        close(fd);
    return st;
}

static bool is_separator(char c)
{
    return c == ',' || c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

enum tutti_status input_parse_ids(struct ids *out, const char *name, const char *text, size_t n_bytes,
                                  struct tutti_error *err)
{
    for (size_t i = 0; i < n_bytes;) {
        if (is_separator(text[i])) {
            i++;
            continue;
        }
        size_t start = i;
        while (i < n_bytes && !is_separator(text[i]))
            i++;
        size_t n = i - start;
        char word[MAX_DIGITS + 1];
        int64_t id = -1;
        if (n <= MAX_DIGITS) {
            memcpy(word, text + start, n);
            word[n] = '\0';
        }
        if (n > MAX_DIGITS || !number_read_int(word, &id) || id < 0 || id > INT32_MAX)
            return error_set(err, TUTTI_E_ARGUMENT, "%s: found '%.*s' at id %zu, expected a token id", name,
                             (int)(n > 40 ? 40 : n), text + start, out->n);
        if (!ids_add(out, (int32_t)id))
            return error_set(err, TUTTI_E_MEMORY, "%s: out of memory after %zu ids", name, out->n);
    }
    return TUTTI_OK;
}

enum tutti_status input_read_ids(struct ids *out, const char *value, struct tutti_error *err)
{
    struct buf text = { 0 };
    if (value[0] != '@')
        return input_parse_ids(out, "--ids", value, strlen(value), err);
    enum tutti_status st = input_read(&text, value + 1, err);
    if (st == TUTTI_OK)
        st = input_parse_ids(out, input_name(value + 1), text.bytes, text.n_bytes, err);
    buf_clear(&text);
    return st;
}

const char *input_ids_file(const char *value)
{
    return value && value[0] == '@' && strcmp(value, "@-") != 0 ? value + 1 : NULL;
}
