/* The arguments of the kernels that ranks on cards need between transfers. */
#ifndef TUTTI_KERNELS_CUDA_CLUSTER_ARGS_H
#define TUTTI_KERNELS_CUDA_CLUSTER_ARGS_H

#include <stdint.h>

/* y [n] = the sum of the ranks' parts, in their order; the own part is y. */
struct sum_parts_args {
    const float *parts; /* [n_ranks][n] */
    float *y;
    int64_t n;
    int32_t n_ranks, rank;
};

/* Column begin and the next n_part of whole [n_rows][n_whole] = part [n_rows][n_part]. */
struct place_columns_args {
    const float *part;
    float *whole;
    int32_t begin, n_part, n_whole;
};

#endif
