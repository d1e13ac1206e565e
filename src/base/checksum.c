#include "base/checksum.h"

#include "base/rng.h"

#include <string.h>

/* Words are distributed over eight chains, so that their multiplications overlap. Each link is a
 * bijection both of the word and of the chain's previous value. */
enum { CHAINS = 8, RUN_BYTES = CHAINS * sizeof(uint64_t) };

static void add_run(uint64_t chains[CHAINS], const uint8_t *bytes)
{
    for (size_t i = 0; i < CHAINS; i++) {
        uint64_t word;
        memcpy(&word, bytes + i * sizeof word, sizeof word);
        chains[i] = mix64(chains[i] ^ word);
    }
}

uint64_t checksum64(uint64_t seed, const void *bytes, size_t n_bytes)
{
    const uint8_t *at = bytes;
    uint64_t chains[CHAINS];
    for (size_t i = 0; i < CHAINS; i++)
        chains[i] = mix64(seed + i);
    size_t left = n_bytes;
    for (; left >= RUN_BYTES; left -= RUN_BYTES, at += RUN_BYTES)
        add_run(chains, at);
    if (left > 0) { /* padded with zeros; the length makes it unique */
        uint8_t last[RUN_BYTES] = { 0 };
        memcpy(last, at, left);
        add_run(chains, last);
    }
    uint64_t sum = mix64(seed ^ n_bytes);
    for (size_t i = 0; i < CHAINS; i++)
        sum = mix64(sum ^ chains[i]);
    return sum;
}
