/* A loaded model: description, packed weights, tokenizer, chat format.
 *
 * A family (llama.c, chatglm.c) turns a checkpoint's configuration into a struct model_desc and says under which names
 * the tensors stand; forward.c runs any description. Families hold no arithmetic. */
#ifndef TUTTI_MODEL_H
#define TUTTI_MODEL_H

#include "backend/backend.h"
#include "base/error.h"
#include "base/ids.h"
#include "checkpoint/checkpoint.h"
#include "tokenizer/tokenizer.h"

enum { MAX_STOP_IDS = 16 };

/* Everything that forward.c must know. Ranges were checked by model_desc_check(). */
struct model_desc {
    char family[32];      /* "llama", "chatglm" */
    char chat_format[32]; /* "llama2", "chatglm2", "chatglm3"; "": none */
    int n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, n_vocab, n_ctx;
    float norm_eps;
    enum rope_kind rope;
    int rotary_dim;
    double rope_theta;
    struct rope_scaling {
        enum { ROPE_SCALING_NONE, ROPE_SCALING_LINEAR, ROPE_SCALING_LLAMA3 } kind;
        double factor, low_freq_factor, high_freq_factor;
        int original_n_ctx;
    } rope_scaling;
    bool has_qkv_bias;      /* on q, k, v */
    bool has_attn_out_bias; /* on the projection behind attention */
    bool has_mlp_bias;      /* on gate, up and down */
    bool tied_output;       /* the embedding is the output matrix too */
    enum activation activation;
    int32_t bos_id, pad_id; /* -1: none */
    int32_t stop_ids[MAX_STOP_IDS];
    int n_stop_ids;
    int n_usable_vocab; /* ids from here on are padding rows, never sampled */
};

/* A chat format renders messages to ids and says how a reply becomes text. One const instance a format, in the
 * family's file. */
struct chat_format {
    const char *name;
    /* Adds the ids of the whole prompt, ready for the assistant's answer. TUTTI_E_ARGUMENT: an unknown role (param
     * names messages[i].role); TUTTI_E_MEMORY. */
    enum tutti_status (*render)(const struct tokenizer *tok, const struct model_desc *desc,
                                const struct tutti_message *messages, size_t n_messages, struct ids *out,
                                struct tutti_error *err);
    bool has_metadata_line; /* a reply's first line is metadata: not shown where it is blank */
    bool trims_reply;       /* blanks and newlines around the reply are not shown */
};

struct family;

struct layer {
    float *attn_norm, *ffn_norm; /* [d_model] */
    struct matrix *qkv, *attn_out, *gate_up, *down;
};

struct model {
    char name[128];
    struct model_desc desc;
    enum dtype weight_type, kv_type;
    struct backend *backend;
    struct layer *layers;              /* [n_layers] */
    struct matrix *embedding, *output; /* the same where tied */
    float *output_norm;                /* [d_model] */
    struct tokenizer *tokenizer;       /* NULL: none */
    const struct family *family;       /* NULL: made-up weights */
    const struct chat_format *chat;    /* NULL: none */
    struct tutti_sampling sampling;    /* defaults */
    uint64_t n_params, weight_bytes;
    float *rope_freqs;           /* host */
    struct workspace *workspace; /* activations for max_rows rows, by model_reserve() */
    bool in_use;                 /* an engine is open on it */
};

MUST_CHECK enum tutti_status model_load(struct model **out, const char *path,
                                        const struct tutti_model_options *options, struct tutti_error *err);

/* A known shape ("chatglm3-6b", ...) with made-up weights, without tokenizer, for benchmarks. */
MUST_CHECK enum tutti_status model_make(struct model **out, const char *shape, enum dtype type,
                                        const struct tutti_model_options *options, struct tutti_error *err);
void model_free(struct model *model); /* NULL is allowed */

/* Adds the ids that stand before a text that the model is to continue (bos, or [gMASK] sop). */
MUST_CHECK enum tutti_status model_text_prefix(const struct model *model, struct ids *out,
                                               struct tutti_error *err);

/* Sizes activations and scratch memory for steps of up to max_rows rows. May be called again with another size. */
MUST_CHECK enum tutti_status model_reserve(struct model *model, int max_rows, struct tutti_error *err);

/* One forward pass over the rows of step. logits: host, [n_outputs][n_vocab]. n_rows: at most what was reserved.
 * Allocates nothing. */
void model_forward(struct model *model, struct kv_memory *kv, const struct step *step, float *logits);

#endif
