/* Divides the attention of a step into units of work for the kernels. */
#ifndef TUTTI_BACKEND_CUDA_ATTENTION_PLAN_H
#define TUTTI_BACKEND_CUDA_ATTENTION_PLAN_H

#include "backend/cuda/cuda.h"
#include "kernels/cuda/attention/attention_args.h"

struct attention_limits {
    int n_resident;  /* blocks that the card computes at the same time */
    int least_wide;  /* tiles times head groups, from which on each warp has a tile of its own; 0: never */
    int64_t n_slots; /* of partial results */
};

/* Head groups of a shape: query heads of a KV head, up to tile_queries of them. */
struct head_groups {
    int tile_queries;
    int heads_of_kv, groups_of_kv, n_groups;
    int tile_rows; /* of a tile, at most */
};

struct head_groups head_groups_of(const struct attention_shape *shape);

/* Units that a plan of n_rows rows may have. */
int attention_plan_units(const struct attention_shape *shape, const struct attention_limits *limits,
                         int n_rows);

/* The kernels of a shape and a type of pages. wide: N_CUDA_KERNELS if there is none. */
struct attention_kernels {
    enum cuda_kernel split, wide;
    int split_threads, wide_threads;
    size_t split_shared, wide_shared; /* bytes of dynamic shared memory */
    int wide_tiles;                   /* tiles of a block */
    int n_stages;                     /* of struct attention_args */
};

/* shared_bytes: dynamic shared memory that a block may have. level: of the kernels (cuda.h); 75 has no matrix instructions for
 * bfloat16. */
struct attention_kernels attention_kernels_of(const struct attention_shape *shape, enum cuda_kv_type type,
                                              size_t shared_bytes, int level);

/* Fills the plans of the kernels of attention.c (split) and attention_wide.c. Both have room for attention_plan_units(). */
void attention_plan_make(struct attention_plan *split, struct attention_plan *wide,
                         const struct attention_shape *shape, const struct attention_limits *limits,
                         const struct step *step);

#endif
