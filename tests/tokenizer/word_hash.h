/* FNV-1a over the lengths of words, as tools/fixtures writes it: 32 bits each, little-endian. */
#ifndef TUTTI_TESTS_WORD_HASH_H
#define TUTTI_TESTS_WORD_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static const uint64_t WORD_HASH_BEGIN = 0xCBF29CE484222325;

static inline uint64_t hash_length(uint64_t hash, size_t n)
{
    for (int i = 0; i < 4; i++)
        hash = (hash ^ (n >> (8 * i) & 0xFF)) * 0x100000001B3;
    return hash;
}

/* For pretokenize(); to: the hash. */
static inline bool hash_word(void *to, const char *word, size_t n_bytes)
{
    (void)word;
    *(uint64_t *)to = hash_length(*(uint64_t *)to, n_bytes);
    return true;
}

#endif
