#include "base/buf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes to allocate for n_bytes more and the final zero; 0: overflow. */
static size_t need_of(const struct buf *buf, size_t n_bytes)
{
    size_t need;
    if (__builtin_add_overflow(buf->n_bytes, n_bytes, &need) || need > SIZE_MAX / 2 - 1)
        return 0;
    return need + 1;
}

static bool grow_to(struct buf *buf, size_t capacity)
{
    char *bytes = realloc(buf->bytes, capacity);
    if (!bytes)
        return false;
    buf->bytes = bytes;
    buf->capacity = capacity;
    return true;
}

bool buf_reserve(struct buf *buf, size_t n_bytes)
{
    size_t need = need_of(buf, n_bytes), capacity = buf->capacity ? buf->capacity : 64;
    if (need == 0 || need <= buf->capacity)
        return need > 0;
    while (capacity < need)
        capacity += capacity / 2 + 1;
    return grow_to(buf, capacity);
}

bool buf_reserve_exact(struct buf *buf, size_t n_bytes)
{
    size_t need = need_of(buf, n_bytes);
    return need > 0 && (need <= buf->capacity || grow_to(buf, need));
}

bool buf_add(struct buf *buf, const void *bytes, size_t n_bytes)
{
    if (!buf_reserve(buf, n_bytes))
        return false;
    if (n_bytes > 0)
        memcpy(buf->bytes + buf->n_bytes, bytes, n_bytes);
    buf->n_bytes += n_bytes;
    buf->bytes[buf->n_bytes] = '\0';
    return true;
}

bool buf_add_string(struct buf *buf, const char *text)
{
    return buf_add(buf, text, strlen(text));
}

bool buf_printf(struct buf *buf, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    size_t room = buf->capacity - buf->n_bytes;
    int n = vsnprintf(room ? buf->bytes + buf->n_bytes : NULL, room, format, args);
    va_end(args);
    bool ok = n >= 0 && ((size_t)n < room || buf_reserve(buf, (size_t)n));
    if (ok && (size_t)n >= room)
        vsnprintf(buf->bytes + buf->n_bytes, (size_t)n + 1, format, again);
    va_end(again);
    if (ok)
        buf->n_bytes += (size_t)n;
    else if (room)
        buf->bytes[buf->n_bytes] = '\0'; /* drop partial output */
    return ok;
}

void buf_truncate(struct buf *buf, size_t n_bytes)
{
    if (n_bytes < buf->n_bytes) {
        buf->n_bytes = n_bytes;
        buf->bytes[n_bytes] = '\0';
    }
}

void buf_clear(struct buf *buf)
{
    free(buf->bytes);
    *buf = (struct buf){ 0 };
}
