/* A 64-bit checksum that detects damage. It is not cryptographic: equal sums are easy to forge. */
#ifndef TUTTI_BASE_CHECKSUM_H
#define TUTTI_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* The same bytes and seed give the same sum on every machine of this byte order. A change within
 * 8 bytes that begin at a multiple of 8 always changes the sum; any other change goes unnoticed
 * with a probability of 2^-64. */
uint64_t checksum64(uint64_t seed, const void *bytes, size_t n_bytes);

#endif
