/* What the *_body.h files and the files that include them need on every processor. A body is written in vec16,
 * a vector of sixteen floats, which each instruction set defines in its vec16.h. */
#ifndef TUTTI_KERNELS_VECTOR_VECTOR_H
#define TUTTI_KERNELS_VECTOR_VECTOR_H

#include "kernels/variants.h"

#include <stddef.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16") /* before loops whose arrays must live in registers */

/* How far ahead linear layers prefetch their weights, in bytes: into all caches, and before that into the L2 cache (0: not). */
struct prefetch_distance {
    size_t all, l2;
};
/* By processor, set by kernels_init(). many: for bf16 tiles of more than TILE_FEW_ROWS rows. */
extern struct prefetch_distance weights_ahead, weights_ahead_many;
enum { TILE_FEW_ROWS = 4 };

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

/* Fetches a line, in the order of the calls: a compiler reorders __builtin_prefetch(), which disturbs what the processor reads ahead
 * by itself (a row of Q4_0 weights took 8 % longer on Zen 5). */
#if defined(__x86_64__)
#define PREFETCH(instruction, line) __asm__ volatile(instruction " %0" ::"m"(*(const char *)(line)))
#define PREFETCH_ALL                "prefetcht0"
#define PREFETCH_L2                 "prefetcht1"
#elif defined(__aarch64__)
#define PREFETCH(instruction, line) __asm__ volatile("prfm " instruction ", %0" ::"Q"(*(const char *)(line)))
#define PREFETCH_ALL                "pldl1keep"
#define PREFETCH_L2                 "pldl2keep"
#else
#define PREFETCH(instruction, line) __builtin_prefetch(line)
#endif

/* Into all caches. */
INLINE void prefetch(const void *line)
{
    PREFETCH(PREFETCH_ALL, line);
}

INLINE void prefetch_into_l2(const void *line)
{
    PREFETCH(PREFETCH_L2, line);
}

/* Fetches the lines at these distances after this one of packed weights. */
INLINE void prefetch_ahead(const uint8_t *line, struct prefetch_distance distance)
{
    if (distance.l2 > 0)
        prefetch_into_l2(line + distance.l2);
    prefetch(line + distance.all);
}

INLINE void prefetch_weights(const uint8_t *line)
{
    prefetch_ahead(line, weights_ahead);
}

/* Fetches ahead of the part-th of n_parts of a unit of weights: lines in order, each once, from the second one on, which is read
 * before the first. fetch: prefetch_weights(), or what does its work. */
INLINE void prefetch_part(const uint8_t *unit, size_t n_bytes, int part, int n_parts,
                          void fetch(const uint8_t *line))
{
    const size_t n_lines = n_bytes / 64, parts = (size_t)n_parts;
    for (size_t i = n_lines * (size_t)part / parts; i < n_lines * (size_t)(part + 1) / parts; i++)
        fetch(unit + (i + 1) * 64);
}

#endif
