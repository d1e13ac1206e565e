/* Reads numbers from bytes, compares bytes, and recognizes blanks. */
#ifndef TUTTI_BASE_BYTES_H
#define TUTTI_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A little-endian number of at most 8 bytes. */
static inline uint64_t bytes_load_le(const uint8_t *bytes, int n_bytes)
{
    uint64_t value = 0;
    for (int i = n_bytes - 1; i >= 0; i--)
        value = value << 8 | bytes[i];
    return value;
}

/* As strcmp(), for bytes that are not terminated: a prefix is smaller. */
static inline int bytes_compare(const char *a, size_t n_a, const char *b, size_t n_b)
{
    int order = memcmp(a, b, n_a < n_b ? n_a : n_b);
    return order != 0 ? order : n_a < n_b ? -1 : n_a > n_b;
}

/* Blank: as isspace() in the C locale. */
static inline bool char_is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

#endif
