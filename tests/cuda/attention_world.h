/* Keys and values in pages, and steps over them, for tests of kernels/cuda/attention/kv.c and attention*.c: host memory, and the emulator
 * instead of a card. */
#ifndef TUTTI_TESTS_CUDA_ATTENTION_WORLD_H
#define TUTTI_TESTS_CUDA_ATTENTION_WORLD_H

#include "backend/cuda/attention/attention_plan.h"
#include "kernels/cuda/attention/kv_args.h"

enum { WORLD_ROWS = 1100, WORLD_PAGES = 2 * (WORLD_ROWS / CUDA_KV_PAGE + 1), WORLD_PADDING = 3 };

/* A kind of attention. Row r of sequence 1 is row r of the arrays; sequence 0 is another one. */
struct world_case {
    int n_heads, n_kv_heads, head_dim, n_latent;
    enum dtype type;
    enum rope_kind rope; /* half of a head rotates; with latent attention the rest of a row */
    int window, first, prefix_len;
    bool has_slopes, has_sinks, has_norms, has_joint_norms;
    bool keys_are_values, norms_values; /* of struct attention_shape */
    float softcap;
    float magnitude; /* of q; 0: 1 */
    float
        large_key; /* k, or a latent's rotary part, times this number, and what it is multiplied by over it; 0: 1 */
};

struct world {
    struct world_case c;
    struct attention_shape shape;
    int rotary_dim, q_dim; /* q_dim: of latent attention */
    float *qkv; /* [WORLD_ROWS][all floats of a row]; of latent attention the queries' first part */
    float *latent_q, *latent_kv;
    float *cos_sin; /* [WORLD_ROWS][rotary_dim] */
    float *freqs, *slopes, *sinks, *q_norm, *k_norm;
    uint8_t *pages;
    uint64_t page_bytes;
    int32_t tables[2][WORLD_PAGES];
    int n_stored[2];
};

/* How attention is computed. */
struct world_run {
    int chunk;      /* rows of a step */
    bool has_other; /* each step has a row of another sequence in front */
    int n_resident, least_wide, n_slots;
    size_t shared_bytes; /* of the card; 0: those of level 90 */
    int level;           /* of the kernels; 0: 90 */
};

struct world *world_new(const struct world_case *c);
void world_free(struct world *w);
int world_row_floats(const struct world *w);
int world_value_dim(const struct world *w);

/* Stores rows begin..end - 1 of sequence seq. */
void world_store(struct world *w, int seq, int begin, int end);
/* y [end - begin][n_heads * value_dim]: attention of rows begin..end - 1 of sequence 1, which are stored step by step. */
void world_attend(struct world *w, float *y, int begin, int end, const struct world_run *run);
/* The same by the formula, in double. */
void world_attend_double(const struct world *w, double *y, int begin, int end);

#endif
