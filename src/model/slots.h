/* The weights that a model may hold, one row of a table each. Finding them in a checkpoint,
 * loading, freeing, random weights, fingerprints, memory figures and conversion are loops over this
 * table: a weight of a new kind is one line here, its tensor's name in the families that have it,
 * and its use in forward.c. */
#ifndef TUTTI_MODEL_SLOTS_H
#define TUTTI_MODEL_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

struct model_desc; /* model/model.h */

/* In the order in which they are loaded and written. The first group and the last are outside of
 * layers. */
enum weight_slot {
    SLOT_NONE = -1,
    SLOT_EMBEDDING,
    SLOT_EMBEDDING_NORM,
    SLOT_POSITIONS, /* a vector for each position, added to the embedding */
    SLOT_SEGMENTS,  /* a vector for each segment, added to the embedding */
    SLOT_TOP_TABLE, /* a vector for each position: the input of SLOT_TOP_QUERY */

    SLOT_ATTN_NORM,
    SLOT_QKV,
    SLOT_TOP_QUERY, /* of has_top_query: in the last layer these two replace SLOT_QKV */
    SLOT_TOP_KV,
    SLOT_Q_NORM, /* of each head, or of all together */
    SLOT_K_NORM,
    SLOT_LATENT_Q, /* of latent attention these replace SLOT_QKV: queries from the stream, */
    SLOT_Q_A,      /* or by way of q_rank elements, */
    SLOT_Q_A_NORM,
    SLOT_Q_B,
    SLOT_KV_A,      /* the latent, and the rotary part of the key */
    SLOT_KV_A_NORM, /* of the latent */
    SLOT_K_UP,      /* by head: multiplies queries, so that they can be compared with latents */
    SLOT_V_UP,      /* by head: from latents to values */
    SLOT_SINKS,     /* of has_sinks */
    SLOT_ATTN_OUT,
    SLOT_ATTN_POST_NORM,
    SLOT_FFN_NORM,
    SLOT_GATE_UP, /* only up without has_gate */
    SLOT_DOWN,
    SLOT_ROUTER,      /* of layers with experts: these six replace the two above */
    SLOT_ROUTER_BIAS, /* added to the router's scores for choosing */
    SLOT_EXPERT_GATE_UP,
    SLOT_EXPERT_DOWN,
    SLOT_SHARED_GATE_UP,
    SLOT_SHARED_DOWN,
    SLOT_EXPERT_FACTORS, /* of has_factors */
    SLOT_ROUTER_NORM,    /* of has_norms, and the next three: before the router, */
    SLOT_EXPERT_NORM,    /* before the experts, */
    SLOT_SHARED_POST_NORM,
    SLOT_EXPERT_POST_NORM,
    SLOT_FFN_POST_NORM,
    SLOT_LAYER_SCALE, /* of has_layer_scale */

    SLOT_MTP_EMBEDDING, /* of the layer for multi-token prediction, in addition to those of a layer */
    SLOT_MTP_EMBEDDING_NORM,
    SLOT_MTP_HIDDEN_NORM,
    SLOT_MTP_JOIN, /* of the normed embedding, then the normed hidden state */
    SLOT_MTP_OUTPUT_NORM,
    SLOT_MTP_OUTPUT,

    SLOT_OUTPUT_NORM,
    SLOT_OUTPUT, /* not in models with a tied output */
    SLOT_POOLER, /* of an encoder with has_score: its head */
    SLOT_SCORE,
    SLOT_COUNT
};

/* A matrix may be stored as several tensors, its parts, whose rows are concatenated. */
enum { MAX_PARTS = 3 };

/* A dimension, in terms of the description: the model's, or that of the layer. */
enum dim {
    DIM_NONE,
    DIM_MODEL,  /* d_model */
    DIM_PAIR,   /* 2 d_model */
    DIM_Q_NORM, /* head_dim, or that of all query heads */
    DIM_K_NORM,
    DIM_QUERIES,      /* n_heads * head_dim */
    DIM_ATTENDED,     /* n_heads * attn_value_dim() */
    DIM_Q_RANK,       /* q_rank */
    DIM_LATENT,       /* n_latent */
    DIM_LATENT_ROW,   /* attn_latent_row() */
    DIM_LATENT_HEADS, /* n_heads * n_latent */
    DIM_UNROTATED,    /* head_dim - rotary_dim */
    DIM_KV,           /* n_kv_heads * head_dim */
    DIM_VALUES,       /* the same; 0 if keys are values */
    DIM_HEADS,        /* n_heads */
    DIM_FF,           /* d_ff */
    DIM_EXPERTS,      /* their number */
    DIM_EXPERT_FF,
    DIM_SHARED_FF,
    DIM_SHARED_GATE, /* 1 if the shared expert has one, else 0 */
    DIM_VOCAB,       /* n_vocab */
    DIM_POSITIONS,   /* n_ctx and the rows before position 0 */
    DIM_CONTEXT,     /* n_ctx; a stored tensor may have more rows */
    DIM_SEGMENTS,    /* n_segments */
    DIM_ONE,         /* 1 */
};

enum slot_kind {
    SLOT_MATRIX, /* packed; its input has as many elements as a row */
    SLOT_NORM,   /* one row of float32 */
    SLOT_VECTOR, /* one row of float32 that is no norm */
    SLOT_TABLE,  /* float32, a row for each position or segment */
    SLOT_NUMBER, /* a float in the host's memory */
};

/* What the type of a matrix depends on when weights are quantized: see weight_type.h. */
enum weight_role {
    WEIGHT_OTHER, /* queries, gate, up */
    WEIGHT_KEYS,  /* that are a matrix of their own */
    WEIGHT_EMBEDDING,
    WEIGHT_OUTPUT, /* also a tied embedding */
    WEIGHT_VALUES, /* or fused queries, keys and values */
    WEIGHT_ATTN_OUT,
    WEIGHT_DOWN,
    WEIGHT_ROUTER /* always float32: which experts a row uses must not depend on rounding */
};

struct slot_info {
    const char *name; /* for messages */
    enum slot_kind kind;
    bool is_of_layer;
    bool (*is_in)(const struct model_desc *desc, int layer);    /* NULL: in every model */
    bool (*has_bias)(const struct model_desc *desc, int layer); /* NULL: never */
    enum dim
        rows[MAX_PARTS]; /* of the parts; DIM_NONE: one row, or no more parts. A dimension of 0: no part */
    enum dim columns;
    /* Of the matrix, and of its last part where each part is a matrix of its own; the others are
     * then WEIGHT_KEYS or WEIGHT_OTHER. */
    enum weight_role role;
    bool can_adapt;     /* a linear layer that LoRA adapters may change */
    bool is_of_experts; /* one such matrix for each expert of the layer */
    bool is_by_head;    /* n_heads matrices, one after the other */
};

/* Whether the weight is a norm that subtracts the mean, of a model without biases: the backend adds zeros. */
bool slot_has_zero_bias(const struct model_desc *desc, enum weight_slot slot);

/* slot: 0 to SLOT_COUNT - 1. */
const struct slot_info *slot_info(enum weight_slot slot);

/* Whether such a model has the weight. layer: 0 for those outside of layers. */
bool slot_is_in(const struct model_desc *desc, enum weight_slot slot, int layer);

/* The slot under whose names a weight is stored: the top query and its keys and values are stored
 * as queries, keys and values. */
static inline enum weight_slot slot_named_as(enum weight_slot slot)
{
    return slot == SLOT_TOP_QUERY || slot == SLOT_TOP_KV ? SLOT_QKV : slot;
}

/* layer: 0 outside of layers. */
int slot_dim(const struct model_desc *desc, enum dim dim, int layer);

/* The parts of a weight; of experts those of each. Without a gate, gate_up is only up. */
struct slot_shape {
    int n_experts; /* 1: a single matrix */
    int n_parts, rows[MAX_PARTS];
    int n_out; /* rows of all parts */
    int n_in;
    bool has_bias, is_gate_up;
};
struct slot_shape slot_shape(const struct model_desc *desc, enum weight_slot slot, int layer);

/* Elements of all weights and biases of a model; active: without the experts that a row does not
 * use. */
struct slot_params {
    uint64_t all, active;
};
struct slot_params slot_params(const struct model_desc *desc);

/* All weights of a model, in order. Begin with SLOT_BEGIN; false: there are no more. */
struct slot_at {
    enum weight_slot slot;
    int layer;
    int expert; /* 0 for weights that are not of experts */
};
#define SLOT_BEGIN ((struct slot_at){ SLOT_NONE, 0, 0 })
bool slot_next(const struct model_desc *desc, struct slot_at *at);
/* The same, but with each expert of a layer's experts. */
bool slot_next_expert(const struct model_desc *desc, struct slot_at *at);

#endif
