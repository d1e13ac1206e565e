/* A checksum of 64 bits against damage, not against forgery: whoever can write the bytes can write a sum that fits. */
#ifndef TUTTI_BASE_CHECKSUM_H
#define TUTTI_BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* The same bytes and seed give the same sum on every machine of this byte order. A change of up to 8 neighbouring bytes
 * that begin at a multiple of 8 always changes it, any other one but for a chance of 2^-64. */
uint64_t checksum64(uint64_t seed, const void *bytes, size_t n_bytes);

#endif
