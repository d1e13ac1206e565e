/* The arguments of kernels/cuda/step.c. */
#ifndef TUTTI_KERNELS_CUDA_STEP_ARGS_H
#define TUTTI_KERNELS_CUDA_STEP_ARGS_H

#include "kernels/cuda/sample/sample_args.h"

#include <stdint.h>

/* An entry of a page table that is to be changed. */
struct table_change {
    uint32_t table, index; /* 0: pages, 1: window slots; slot * max_pages + page of the sequence */
    int32_t page;
};

struct set_pages_args {
    int32_t *tables[2];
    const struct table_change *changes; /* [n]; no entry is changed twice */
    int32_t n;
};

struct feed_tokens_args {
    int32_t *token_ids;                /* [n] */
    const int32_t *sources;            /* [n]: index in results; -1: the id is known */
    const struct draw_result *results; /* of the last sampling */
    int32_t n;
};

#endif
