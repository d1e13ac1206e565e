/* What the *_body.h files and the files that include them need on every processor. A body is written in vec16,
 * a vector of sixteen floats, which each instruction set defines in its vec16.h. */
#ifndef TUTTI_KERNELS_VECTOR_VECTOR_H
#define TUTTI_KERNELS_VECTOR_VECTOR_H

#include "kernels/variants.h"

#include <stddef.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16") /* before loops whose arrays must live in registers */

/* How far ahead linear layers prefetch their weights, in bytes: into all caches, and before that into the L2 cache (0: not).
 * By processor, set by kernels_init(). */
extern size_t weights_ahead_bytes, weights_ahead_l2_bytes;

/* The number of lanes, of sixteen, that a row of n elements fills from element i on. */
INLINE int lanes_left(int64_t i, int64_t n)
{
    return n - i < 16 ? (int)(n - i) : 16;
}

/* Zeroes the outputs of a panel. */
INLINE void clear_outputs(float *out, int n_rows)
{
    memset(out, 0, (size_t)(half_rows(n_rows) + n_rows) * LANES * sizeof *out);
}

/* Fetches a line into all caches. */
INLINE void prefetch(const void *line)
{
    __builtin_prefetch(line, 0, 3);
}

/* Fetches the lines that are read some time after this one of packed weights. */
INLINE void prefetch_weights(const uint8_t *line)
{
    if (weights_ahead_l2_bytes > 0)
        __builtin_prefetch(line + weights_ahead_l2_bytes, 0, 2);
    prefetch(line + weights_ahead_bytes);
}

#endif
