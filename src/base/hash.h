/* Hashes of bytes: XXH3 of libxxhash, for tables and checksums that detect damage.
 *
 * XXH3 is not cryptographic: a client that knows the seed can forge equal hashes. So a table whose
 * keys come from clients has a secret seed and compares whole keys. */
#ifndef TUTTI_BASE_HASH_H
#define TUTTI_BASE_HASH_H

#include <string.h>

#define XXH_INLINE_ALL /* most keys have fewer bytes than a call costs */
#include <xxhash.h>

/* The same bytes and seed give the same hash on every machine, also where a file contains it. */
static inline uint64_t hash64(uint64_t seed, const void *bytes, size_t n_bytes)
{
    return XXH3_64bits_withSeed(bytes, n_bytes, seed);
}

static inline uint64_t hash64_string(uint64_t seed, const char *text)
{
    return hash64(seed, text, strlen(text));
}

#endif
