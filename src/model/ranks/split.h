/* How one model is cut over several ranks: arithmetic alone, shared by what writes the parts of a checkpoint and by what runs them.
 *
 * A rank owns whole heads, a run of the feed-forward layer's columns and a run of the vocabulary. Matrices in front of them are cut by
 * rows, so a rank computes its own elements of q, k, v, of gate and up, of the logits; the matrices behind them are cut by columns, so
 * that each rank computes a summand of every element: one sum over the ranks behind attention and one behind the feed-forward layer.
 * After Shoeybi et al., "Megatron-LM", 2019, section 3. What is small is whole on every rank. */
#ifndef TUTTI_MODEL_RANKS_SPLIT_H
#define TUTTI_MODEL_RANKS_SPLIT_H

#include "model/model.h"

struct tensor_names; /* model/description/family.h */

/* What a tensor is in the model. */
enum split_role {
    SPLIT_EMBEDDING, /* [n_vocab][d_model] */
    SPLIT_OUTPUT,    /* the same shape */
    SPLIT_Q,         /* the top query layer's query, too */
    SPLIT_K,
    SPLIT_V,
    SPLIT_QKV,         /* in one, q's heads first, then k's, then v's */
    SPLIT_QKV_BY_HEAD, /* in one, [n_heads][q, k, v][head_dim] */
    SPLIT_ATTN_OUT,
    SPLIT_GATE,
    SPLIT_UP,
    SPLIT_GATE_UP, /* in one, gate's rows first */
    SPLIT_DOWN,
    SPLIT_NORM,      /* every norm, those of q's and k's heads too */
    SPLIT_POSITIONS, /* by position: learned ones, the table of the top query, rotary divisors */
};

/* Of a matrix [n_out][n_in], whichever way round it is stored: rows are outputs. A bias goes with the rows of its matrix. */
enum split_kind {
    SPLIT_WHOLE, /* every rank holds all */
    SPLIT_ROWS,  /* its bias is cut in the same way */
    SPLIT_COLUMNS /* its bias is whole on every rank; rank 0 alone adds it, since the ranks' outputs are summed */
};

struct split_range {
    int begin, end;
};

/* What one rank owns. Ranks follow each other without gap and overlap, but for KV heads where they are fewer than ranks: then a rank
 * has one of them, and n_kv_copies neighbours have the same. */
struct split {
    int n_ranks, rank;
    struct split_range heads, kv_heads, ffn, vocab;
    int n_kv_copies; /* 1: no KV head is on two ranks */
};

/* Elements of a block of the types that these matrices have, for a cut through their columns must not go through a block; 1: any column
 * will do. */
struct split_blocks {
    int attn_out, down;
};

/* rank: 0 to n_ranks - 1. TUTTI_E_ARGUMENT: this model cannot be cut so; the text says what stands in the way, and which numbers of ranks
 * would do. */
MUST_CHECK enum tutti_status split_make(struct split *out, const struct model_desc *desc,
                                        const struct split_blocks *blocks, int n_ranks, int rank,
                                        struct tutti_error *err);

/* The whole model as the one rank of itself. */
struct split split_whole(const struct model_desc *desc);

enum split_kind split_kind(enum split_role role);

/* A rank's rows, or columns, of a matrix that is cut, as runs of the whole matrix in the order in which the rank keeps them. */
enum { SPLIT_MAX_RUNS = 3 };
struct split_part {
    enum split_kind kind;
    int n_runs; /* 0: SPLIT_WHOLE */
    struct split_range runs[SPLIT_MAX_RUNS];
    int n; /* rows or columns of all runs */
};
struct split_part split_part(const struct split *split, const struct model_desc *desc, enum split_role role);

/* Rows or columns of the whole matrix in the direction that it is cut in; 0: SPLIT_WHOLE. */
int split_n_whole(const struct model_desc *desc, enum split_role role);

/* What a tensor of a checkpoint is, by its name. */
struct split_tensor {
    enum split_role role; /* SPLIT_NORM for all that nobody knows: it stays whole */
    bool is_bias;         /* of a matrix of that role */
    bool is_transposed;   /* stored as [n_in][n_out] */
};
struct split_tensor split_find(const struct model_desc *desc, const struct tensor_names *names,
                               const char *name);

/* The dimension in which such a tensor is cut; -1: it is not. */
int split_dim(const struct split_tensor *tensor);

/* What the rank of a sharded checkpoint owns, as its manifest says. TUTTI_E_FORMAT: that cannot be true of this model. */
MUST_CHECK enum tutti_status split_read(struct split *out, const struct model_desc *desc,
                                        const struct shard_manifest *manifest, struct tutti_error *err);

/* The same to write: an object; NULL: no memory. */
json_t *split_to_json(const struct split *split);

/* The description of what a rank holds: its own heads, KV heads, columns and vocabulary in place of all. What depends on the index of a
 * head or a token in the whole model (ALiBi's slopes, ids) is the caller's business. */
struct model_desc split_desc(const struct split *split, const struct model_desc *desc);

#endif
