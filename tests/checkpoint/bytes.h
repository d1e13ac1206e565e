/* Files made by hand, byte by byte. */
#ifndef TUTTI_TESTS_CHECKPOINT_BYTES_H
#define TUTTI_TESTS_CHECKPOINT_BYTES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct bytes {
    uint8_t bytes[4096];
    size_t n;
};

/* value, little-endian, in n bytes */
static inline void put(struct bytes *b, uint64_t value, int n)
{
    for (int i = 0; i < n; i++)
        b->bytes[b->n++] = i < 8 ? (uint8_t)(value >> (8 * i)) : 0;
}

static inline void put_text(struct bytes *b, const void *text, size_t n)
{
    memcpy(b->bytes + b->n, text, n);
    b->n += n;
}

#endif
