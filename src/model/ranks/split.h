/* How one model is split over tensor-parallel ranks. Only index arithmetic, shared by the code
 * that writes sharded checkpoints and the code that runs them.
 *
 * A rank owns whole heads, a range of the feed-forward layer's columns (of every expert's) and a
 * range of the vocabulary. Matrices whose outputs these are (q, k, v, gate, up, output) are split by rows: a
 * rank computes only its own elements. Matrices whose inputs these are (attn_out, down) are split
 * by columns: each rank computes a partial sum of every element. So a layer needs two
 * all-reduces, one after attention and one after the feed-forward layer. Small tensors are
 * replicated. After Shoeybi et al., "Megatron-LM", 2019, section 3. */
#ifndef TUTTI_MODEL_RANKS_SPLIT_H
#define TUTTI_MODEL_RANKS_SPLIT_H

#include "model/model.h"

struct tensor_names; /* model/description/family.h */

/* How a matrix [n_out][n_in] is split, even if it is stored transposed: rows are outputs. */
enum split_kind {
    SPLIT_WHOLE,   /* every rank holds all */
    SPLIT_ROWS,    /* its bias is split in the same way */
    SPLIT_COLUMNS, /* its bias is whole; only rank 0 adds it, as outputs are all-reduced */
    SPLIT_ELEMENTS /* of a vector with an element for each head */
};

struct split_range {
    int begin, end;
};

/* What one rank owns of a layer. The ranges of the ranks have no gaps and no overlaps, except KV
 * heads if they are fewer than ranks: then each rank has one KV head, and n_kv_copies neighbouring
 * ranks have the same one. */
struct split_layer {
    struct split_range heads, kv_heads, ffn;
    struct split_range expert_ffn, shared_ffn; /* of the experts' columns, each in the same way */
    int n_kv_copies;                           /* 1: no KV head is on two ranks */
};

/* What one rank owns. */
struct split {
    int n_ranks, rank;
    struct split_range vocab;
    struct split_layer kinds[MAX_LAYER_KINDS]; /* of desc.kinds; the rest is zero */
};

/* Elements in a quantization block of these matrices: a split by columns must not cut a block. 0 or
 * 1: any column is possible. */
struct split_blocks {
    int attn_out, down, expert_down, shared_down;
};

/* Respects blocks of n elements in the matrix of a slot that is split by columns. */
void split_widen(struct split_blocks *blocks, enum weight_slot slot, int n);

/* Of a model whose matrices all have blocks of n elements, except those that n does not divide. */
struct split_blocks split_blocks_of(const struct model_desc *desc, int n);

/* rank: 0 to n_ranks - 1. TUTTI_E_ARGUMENT: this model cannot be split so; the text gives the
 * reason and the possible numbers of ranks. */
MUST_CHECK enum tutti_status split_make(struct split *out, const struct model_desc *desc,
                                        const struct split_blocks *blocks, int n_ranks, int rank,
                                        struct tutti_error *err);

/* The split of a model on a single rank. */
struct split split_whole(const struct model_desc *desc);

/* Follows from the dimensions of the slot's table: heads, feed-forward columns and vocabulary are
 * divided among the ranks. A matrix that has one of these dimensions in its rows is split by rows. */
enum split_kind split_kind(enum weight_slot slot);

/* What of a weight is split: one of its parts, or all. */
struct split_target {
    enum weight_slot slot; /* SLOT_COUNT: not a weight of the model, so it stays whole */
    int layer;             /* 0 outside of layers */
    int part;              /* SPLIT_ALL_PARTS: all, one after the other */
    bool by_head;          /* all parts, stored by KV head (struct head_order); or both up-projections */
    bool alternates;       /* all parts, stored as a row of each in turn */
};
enum { SPLIT_ALL_PARTS = -1 };

/* A rank's rows (or columns) of a matrix that is split, as runs of the whole matrix, in the
 * rank's order. */
enum { SPLIT_MAX_RUNS = 3 };
struct split_part {
    enum split_kind kind;
    int n_runs; /* 0: SPLIT_WHOLE */
    struct split_range runs[SPLIT_MAX_RUNS];
    int n; /* rows or columns of all runs */
};
struct split_part split_part(const struct split *split, const struct model_desc *desc,
                             const struct split_target *target);

/* Rows or columns of the whole matrix, in the direction in which it is split; 0: SPLIT_WHOLE. */
int split_n_whole(const struct model_desc *desc, const struct split_target *target);

/* What a checkpoint's tensor holds, by its name. */
struct split_tensor {
    struct split_target target;
    bool is_bias;       /* of such a matrix */
    bool is_transposed; /* stored as [n_in][n_out] */
    bool is_merged;     /* of all experts, whose number is the first dimension */
};
struct split_tensor split_find(const struct model_desc *desc, const struct tensor_names *names,
                               const char *name);

/* The dimension in which such a tensor is split; -1: it is whole. */
int split_dim(const struct split_tensor *tensor);

/* Reads from a manifest what the rank of a sharded checkpoint owns. TUTTI_E_FORMAT: the manifest
 * does not fit this model. */
MUST_CHECK enum tutti_status split_read(struct split *out, const struct model_desc *desc,
                                        const struct shard_manifest *manifest, struct tutti_error *err);

/* The split as the JSON object of a manifest. NULL: out of memory. */
json_t *split_to_json(const struct split *split, const struct model_desc *desc);

/* The description of a rank's part: with its own numbers of heads, KV heads, columns and ids. The
 * caller handles what depends on the index of a head or token in the whole model (ALiBi's slopes,
 * ids). */
struct model_desc split_desc(const struct split *split, const struct model_desc *desc);

#endif
