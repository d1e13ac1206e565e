/* Counter-based random numbers: each is a function of (seed, stream, index). So the numbers of a
 * request do not depend on other requests, nor on being preempted and recomputed. */
#ifndef TUTTI_BASE_RNG_H
#define TUTTI_BASE_RNG_H

#include <stdint.h>

#define MIX_STEP   0x9E3779B97F4A7C15u
#define MIX_FIRST  0xBF58476D1CE4E5B9u
#define MIX_SECOND 0x94D049BB133111EBu

/* A bijection that scatters every bit: the finalizer of SplitMix64 (Steele, Lea and Flood, 2014),
 * with its step. */
static inline uint64_t mix64(uint64_t x)
{
    x += MIX_STEP;
    x = (x ^ x >> 30) * MIX_FIRST;
    x = (x ^ x >> 27) * MIX_SECOND;
    return x ^ x >> 31;
}

/* 64 random bits. They can also seed a further sequence: mix64(bits ^ i). */
static inline uint64_t rng_bits(uint64_t seed, uint64_t stream, uint64_t index)
{
    return mix64(mix64(mix64(seed) ^ stream) ^ index);
}

/* In [0, 1), 53 bits. */
static inline double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    return (double)(rng_bits(seed, stream, index) >> 11) * 0x1p-53;
}

#endif
