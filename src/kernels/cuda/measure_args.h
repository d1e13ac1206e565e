/* Arguments of the kernels of measure.c. */
#ifndef TUTTI_KERNELS_CUDA_MEASURE_ARGS_H
#define TUTTI_KERNELS_CUDA_MEASURE_ARGS_H

#include <stdint.h>

enum {
    MEASURE_THREADS = 256,
    MEASURE_UNROLL = 8,
    MEASURE_WGMMA = 4,             /* level 90: matrix instructions of an iteration, of 128 columns */
    MEASURE_SHARED = 128 * 16 * 2, /* their second operand */
};

struct measure_read_args {
    const uint32_t *words; /* [n][4] */
    uint32_t *out;         /* [1] */
    int64_t n;
    uint32_t rare; /* a value that the sum of all words probably has not */
};

/* Each thread, or each warp of matrix instructions, does 8 n of them; each warpgroup of level 90 MEASURE_WGMMA * n. */
struct measure_arithmetic_args {
    float *out; /* [1] */
    int32_t n;
    uint32_t bits; /* of the factors */
    uint32_t rare;
};

#endif
