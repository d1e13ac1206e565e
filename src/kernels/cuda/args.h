/* What the CUDA backend and its kernels share: the arguments of kernels, and the layout of the card's memory.
 *
 * Every pointer is to the card's memory. The host fills these structures and never follows their pointers. */
#ifndef TUTTI_KERNELS_CUDA_ARGS_H
#define TUTTI_KERNELS_CUDA_ARGS_H

#include <stddef.h>
#include <stdint.h>

/* The rows of the running step (struct step of backend.h), at addresses that stay the same from step to step.
 *
 * A step has as many rows as its bucket: the rows after those of the caller are padding, which belong to a sequence of
 * their own (index n_seqs) at position 0, with token 0. Padding may be computed like any row: its results are never read.
 * counts has the caller's numbers, for operations that must leave padding out: those that store keys and values, attention,
 * the choice of experts. */
struct step_rows {
    const int32_t *token_ids;       /* [rows] */
    const int32_t *positions;       /* [rows] */
    const int32_t *seqs;            /* [rows], 0..n_seqs */
    const int32_t *rope_positions;  /* [rows] */
    const int32_t *block_positions; /* [rows] */
    const int32_t *output_rows;     /* [outputs] */
    const int32_t *prefix_lens;     /* [n_seqs + 1] */
    const int32_t *slots;           /* [n_seqs + 1]: the row of the tables below */
    const int32_t *page_tables;     /* [slots][max_pages] */
    const int32_t *window_tables;   /* [slots][max_pages]; may be page_tables */
    const struct step_counts {
        int32_t n_rows, n_seqs, n_outputs, n_hidden;
    } * counts;
    int32_t max_pages;
};

#endif
