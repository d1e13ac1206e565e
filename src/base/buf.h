/* A growable byte string. Not for the compute path: growing allocates. */
#ifndef TUTTI_BASE_BUF_H
#define TUTTI_BASE_BUF_H

#include "base/error.h"

#include <stdarg.h>

/* Zero-initialised is empty and valid. bytes[n_bytes] is always '\0' once anything was added. */
struct buf {
    char *bytes;
    size_t n_bytes, capacity;
};

/* Each appends. False: out of memory; the content is unchanged. */
MUST_CHECK bool buf_add(struct buf *buf, const void *bytes, size_t n_bytes);
MUST_CHECK bool buf_add_string(struct buf *buf, const char *text);
MUST_CHECK bool buf_printf(struct buf *buf, const char *format, ...) PRINTF_LIKE(2, 3);
/* Reserves room for n_bytes more bytes. */
MUST_CHECK bool buf_reserve(struct buf *buf, size_t n_bytes);
/* The same, without spare capacity beyond that. */
MUST_CHECK bool buf_reserve_exact(struct buf *buf, size_t n_bytes);

void buf_truncate(struct buf *buf, size_t n_bytes); /* n_bytes <= buf->n_bytes */
void buf_clear(struct buf *buf);                    /* frees the storage; the buf may be used again */

#endif
