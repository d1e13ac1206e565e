/* A loaded model: description, packed weights, tokenizer, chat format.
 *
 * A family (llama.c, chatglm.c, ...) turns a checkpoint's configuration into a struct model_desc and says under which names
 * the tensors stand; forward.c runs any description. Families hold no arithmetic. */
#ifndef TUTTI_MODEL_H
#define TUTTI_MODEL_H

#include "backend/backend.h"
#include "base/error.h"
#include "base/ids.h"
#include "checkpoint/checkpoint.h"
#include "tokenizer/tokenizer.h"

enum { MAX_STOP_IDS = 64 };

/* Everything that forward.c must know. Ranges were checked by model_desc_check(). */
struct model_desc {
    char family[32];      /* "llama", "chatglm" */
    char chat_format[32]; /* "llama2", "chatglm2", "chatglm3"; "": none */
    int n_layers, d_model, n_heads, n_kv_heads, head_dim, d_ff, n_vocab, n_ctx;
    enum { NORM_RMS, NORM_LAYER /* mean taken off, biases */ } norm;
    float norm_eps;
    bool has_embedding_norm; /* on the embedding, before the first layer */
    bool has_post_norms; /* on what attention and the feed-forward layer give, before it joins the stream */
    /* 0: a block's output is added to the residual stream; else to the block's normed input times this. */
    float residual_scale;
    bool has_learned_positions; /* a table of n_ctx rows is added to the embedding */
    /* The last layer's queries are made of a table of n_ctx rows by position; the output norm stands before that layer,
     * none behind it. */
    bool has_top_query;
    enum rope_kind rope;
    int rotary_dim;
    double rope_theta;
    bool has_half_freqs; /* rotary frequencies are rounded to half precision */
    struct rope_scaling {
        /* dynamic: none within n_ctx; beyond it the base would follow from the length of the text. */
        enum {
            ROPE_SCALING_NONE,
            ROPE_SCALING_LINEAR,
            ROPE_SCALING_LLAMA3,
            ROPE_SCALING_YARN,
            ROPE_SCALING_DYNAMIC
        } kind;
        double factor, low_freq_factor, high_freq_factor; /* llama3 */
        double beta_fast, beta_slow, attention_factor;    /* yarn; attention_factor 0: 0.1 ln(factor) + 1 */
        int original_n_ctx;
    } rope_scaling;
    bool has_qk_norm;       /* RMSNorm of each head of q and k, with norm_eps, before the rotation */
    bool has_alibi;         /* scores fall with the distance, in place of a rotation */
    int window;             /* a position sees this many, itself with them; 0: all before it */
    bool has_qkv_bias;      /* on q, k, v */
    bool has_attn_out_bias; /* on the projection behind attention */
    bool has_mlp_bias;      /* on gate, up and down */
    bool has_gate;          /* act(gate) * up, else act(up) */
    bool tied_output;       /* the embedding is the output matrix too */
    bool is_untied;         /* the configuration ties it, but the file's own output matrix is another one */
    enum activation activation;
    /* What stands before the first prefix_end_id is read in both directions; rotary positions behind it stay at the first of
     * mask_ids that there is, and count in a second stream. */
    bool has_prefix;
    int32_t prefix_end_id, mask_ids[2];
    int32_t bos_id, pad_id; /* -1: none */
    /* What ends an answer: first the ids that the checkpoint's files list, then those that end an answer of a chat as well. */
    int32_t stop_ids[MAX_STOP_IDS];
    int n_stop_ids, n_chat_stop_ids;
    int n_usable_vocab; /* ids from here on are padding rows, never sampled */
};

/* Whether positions from n_ctx on cannot be computed, which other models do as well as they can. */
static inline bool model_desc_ends_at_context(const struct model_desc *d)
{
    return d->has_learned_positions || d->has_top_query || d->rope_scaling.kind == ROPE_SCALING_DYNAMIC;
}

/* How many of stop_ids end an answer. */
static inline int model_desc_n_stops(const struct model_desc *d, bool is_chat)
{
    return d->n_stop_ids + (is_chat ? d->n_chat_stop_ids : 0);
}

struct chat_call;
struct chat_template;

/* A chat format renders messages to ids and says how a reply becomes text. See model/chat/chat.h. */
struct chat_format {
    const char *name;
    /* Adds the ids of the whole prompt, ready for the assistant's answer. TUTTI_E_ARGUMENT: an unknown role (param
     * names messages[i].role), or what the format cannot say; TUTTI_E_MEMORY. */
    enum tutti_status (*render)(const struct chat_call *call, struct ids *out, struct tutti_error *err);
    bool is_own_template;   /* chat_source() has its text */
    bool takes_tools;       /* of formats that are code */
    bool has_metadata_line; /* a reply's first line is metadata: not shown where it is blank */
    bool trims_reply;       /* blanks and newlines around the reply are not shown */
    bool fills_in_time;     /* a reply's "[[训练时间]]", the time of training, is shown as "2023年" */
    bool widens_marks;      /* , ! : ; ? beside a Chinese character are shown full-width; fills_in_time too */
};

struct family;
struct adapters; /* model/adapters/adapter.h */
struct group;    /* model/ranks/group.h */

/* [d_model] each; b is NULL for NORM_RMS. Both NULL: the model has no such norm. */
struct norm {
    float *w, *b;
};

struct layer {
    struct norm attn_norm, ffn_norm;
    struct norm attn_post_norm, ffn_post_norm; /* has_post_norms */
    float *q_norm, *k_norm;                    /* [head_dim]; NULL without has_qk_norm */
    struct matrix *qkv, *attn_out;
    struct matrix *gate_up, *down; /* gate_up: up alone without has_gate */
};

/* has_top_query: the last layer's qkv is NULL, these stand in its place. */
struct top_query {
    float *table;              /* [n_ctx][d_model] */
    struct matrix *query, *kv; /* [d_model] to q; to k and v */
};

struct model {
    char name[128];
    struct model_desc desc; /* of the whole model */
    /* Of what this rank holds: the same, but for the numbers of heads, columns and ids where it is one of several
     * (split.h). */
    struct model_desc local;
    struct group *group; /* the ranks that run the model together; NULL: this process alone */
    enum dtype weight_type, kv_type;
    struct backend *backend;
    struct layer *layers;              /* [n_layers] */
    struct matrix *embedding, *output; /* the same where tied */
    struct norm embedding_norm, output_norm;
    float *positions; /* [n_ctx][d_model], where has_learned_positions */
    struct top_query top_query;
    struct tokenizer *tokenizer;         /* NULL: none */
    struct adapters *adapters;           /* NULL: none */
    bool is_gguf;                        /* rows of q and k are in GGUF's order */
    const struct family *family;         /* NULL: made-up weights */
    const struct chat_format *chat;      /* NULL: none */
    struct chat_template *chat_template; /* of a format that is a template */
    struct tutti_sampling sampling;      /* defaults */
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

/* The description of a known shape; NULL: there is none of this name. */
const struct model_desc *model_shape(const char *name);

/* The same for any description, such as some layers of a model. */
MUST_CHECK enum tutti_status model_make_like(struct model **out, const char *name,
                                             const struct model_desc *desc, enum dtype type,
                                             const struct tutti_model_options *options,
                                             struct tutti_error *err);
void model_free(struct model *model); /* NULL is allowed */

/* Adds the ids that stand before a text that the model is to continue (bos, or [gMASK] sop). */
MUST_CHECK enum tutti_status model_text_prefix(const struct model *model, struct ids *out,
                                               struct tutti_error *err);

/* The part of a sequence that desc.has_prefix is about; its ids must all be rows of one step. All zero for other models. */
struct prefix {
    int n, mask_position;
    bool has_no_end; /* of a model with prefixes: prefix_end_id is not there */
};
struct prefix model_find_prefix(const struct model_desc *desc, const int32_t *ids, int n_ids);

/* The rope_positions and block_positions of a step's row, for models with prefixes. */
void model_prefix_positions(const struct prefix *prefix, int position, int32_t *rope, int32_t *block);

/* Adds the ids that stand behind such a text. */
MUST_CHECK enum tutti_status model_text_suffix(const struct model *model, struct ids *out,
                                               struct tutti_error *err);

/* A prompt that is plain text. */
struct model_text {
    const char *bytes;
    size_t n_bytes;
    bool add_special;   /* with what the model expects before a text, and behind it */
    bool parse_special; /* special tokens that the text spells become them: it is trusted */
};

/* Adds the text's ids to out, which is empty. The model has a tokenizer. */
MUST_CHECK enum tutti_status model_encode_text(const struct model *model, const struct model_text *text,
                                               struct ids *out, struct tutti_error *err);

/* TUTTI_E_ARGUMENT with param: a text spelled a special token for which the model has no row in its embedding. */
MUST_CHECK enum tutti_status model_check_rows(const struct model *model, const struct ids *ids,
                                              const char *param, struct tutti_error *err);

/* Sizes activations and scratch memory for steps of up to max_rows rows, max_outputs of them with logits (any with hidden
 * states). May be called again with another size. */
MUST_CHECK enum tutti_status model_reserve(struct model *model, int max_rows, int max_outputs,
                                           struct tutti_error *err);

/* One forward pass over the rows of step. logits: host, [n_outputs - n_hidden][n_vocab]. Hidden states are those that logits are
 * made of: behind the last norm. n_rows and n_outputs: at most what was reserved. Allocates nothing. */
void model_forward(struct model *model, struct kv_memory *kv, const struct step *step, float *logits);

/* ---- KV memory, by which model_forward() goes. Of a model of several ranks there is one at a time ---- */

/* n_pages pages for every layer, of the model's kv_type, on every rank. On success *out is the caller's. */
MUST_CHECK enum tutti_status model_kv_new(struct model *model, struct kv_memory **out, int n_pages,
                                          struct tutti_error *err);
void model_kv_free(struct model *model, struct kv_memory *kv); /* NULL is allowed */
void model_kv_copy_page(struct model *model, struct kv_memory *kv, int32_t dst, int32_t src);

/* Memory that this process may still take for pages: of several ranks, the least that any of them may. */
uint64_t model_memory_left(struct model *model);

/* What each rank has in memory (memory_resident()): [LIMIT_RANKS], of which it fills those that there are. Returns how many; 0: a
 * rank was lost. */
int model_memory_taken(struct model *model, uint64_t *n_bytes);

/* ---- ranks. One that runs alone is rank 0 ---- */

int model_rank(const struct model *model);

/* Ranks but 0: does what rank 0 does with the model until that frees it. TUTTI_E_IO: a rank was lost. */
MUST_CHECK enum tutti_status model_follow(struct model *model, struct tutti_error *err);

/* Reserves what telling the others of a step takes: up to max_rows rows of max_seqs sequences with page tables of max_pages.
 * Without it, memory is taken when it is needed. */
MUST_CHECK enum tutti_status model_reserve_tables(struct model *model, int max_rows, int max_seqs,
                                                  int max_pages, struct tutti_error *err);

/* True: a rank was lost, and what model_forward() gave since is of no use. model_check(): TUTTI_E_IO, and which one. */
bool model_is_lost(const struct model *model);
enum tutti_status model_check(const struct model *model, struct tutti_error *err);

/* As cluster_on_loss(). */
void model_on_loss(struct model *model, void (*fn)(void *user), void *user);

#endif
