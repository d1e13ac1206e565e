/* The arguments of the kernels of a mixture of experts: router, grouping of rows by expert, sums.
 *
 * A row and one of the experts that it uses are a choice; choice c of row r has the number r * n_chosen + c, with the
 * experts of a row in ascending order. Choices ordered by expert, then by row, are entries. Entries of one expert are cut
 * into lists (struct linear_rows), which are multiplied together. All of it is computed on the card from the router's logits, and launches
 * depend on the number of rows only. */
#ifndef TUTTI_KERNELS_CUDA_EXPERTS_ARGS_H
#define TUTTI_KERNELS_CUDA_EXPERTS_ARGS_H

#include "kernels/cuda/args.h"
#include "kernels/cuda/linear/linear_args.h"

struct route_args {
    const struct step_counts *counts; /* rows from n_rows on are padding, which chooses no expert */
    const float *scores;              /* [rows][n_scores]: the router's logits */
    const float *bias, *factors;      /* [n_experts]; NULL: none */
    int32_t *ids;                     /* [rows][n_chosen]; -1: none */
    float *weights;                   /* [rows][n_chosen] */
    uint32_t *n_rows_of; /* [n_experts]: is increased by the rows that use the expert; NULL: none */
    int32_t n_scores, n_experts, n_chosen;
    int32_t is_sigmoid, is_normed;
    int32_t n_groups, n_chosen_groups, group_best; /* of struct routing */
    float scale;
};

/* A launch of route_rows has a warp for each row, and so much dynamic shared memory. */
static inline size_t route_shared_bytes(int n_experts)
{
    return (size_t)n_experts * 3 * sizeof(float);
}

struct group_args {
    const int32_t *ids;        /* [n_choices] */
    const uint32_t *n_rows_of; /* [n_experts] */
    int32_t *rows;             /* [n_choices]: the row of each entry */
    int32_t *entries;          /* [n_choices]: the entry of each choice; of padding it is not written */
    struct linear_rows *lists; /* as many as expert_lists() says */
    int32_t *n_lists;          /* the used ones */
    uint64_t *n_read;          /* is increased by expert_bytes for each used expert */
    uint64_t expert_bytes;
    int32_t n_choices, n_chosen, n_experts, list_rows;
};

/* Both in one launch, for few rows. route.n_rows_of: NULL. */
struct route_few_args {
    struct route_args route;
    struct group_args group;
};

enum { ROUTE_FEW_ROWS = 16, ROUTE_FEW_THREADS = ROUTE_FEW_ROWS * 32, ROUTE_FEW_BYTES = 60 << 10 };

/* Its dynamic shared memory: it can be used if these are at most ROUTE_FEW_BYTES. */
static inline size_t route_few_bytes(int n_rows, int n_experts, int n_chosen)
{
    size_t rows = (size_t)n_rows, words = (size_t)n_experts * (3 * rows + 2) + 1 + rows * (size_t)n_chosen;
    return words * sizeof(int32_t);
}

/* The most lists that n_choices can make: each used expert has at most one that is not full. */
static inline int expert_lists(int n_choices, int n_experts, int list_rows)
{
    int n_used = n_choices < n_experts ? n_choices : n_experts;
    return n_used + (n_choices - n_used) / list_rows;
}

struct sum_args {
    const struct step_counts *counts;
    const float *products;  /* [entries][n] */
    const int32_t *entries; /* [rows][n_chosen] */
    const float *weights;   /* [rows][n_chosen] */
    const float *scores;    /* [rows][n_scores]: the last is the gate of the base; NULL: it has none */
    float *y;               /* [rows][n] */
    uint32_t *n_rows_of;    /* [n_experts]: becomes 0, for the next layer */
    int32_t n, n_chosen, n_experts, n_scores;
    int32_t has_base; /* y has values, to which the products are added */
};

#endif
