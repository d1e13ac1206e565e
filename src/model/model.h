/* A loaded model: description, packed weights, tokenizer, chat format.
 *
 * A family (llama.c, chatglm.c, ...) converts a checkpoint's configuration into a struct
 * model_desc and gives the names of the tensors. forward.c runs any description; families hold no
 * arithmetic. */
#ifndef TUTTI_MODEL_H
#define TUTTI_MODEL_H

#include "backend/backend.h"
#include "base/error.h"
#include "base/ids.h"
#include "base/limits.h"
#include "checkpoint/checkpoint.h"
#include "model/infill.h"
#include "model/marks.h"
#include "model/slots.h"
#include "tokenizer/tokenizer.h"

enum { MAX_STOP_IDS = 64, MAX_ROPE_FACTORS = 128 };
#define GGUF_ROPE_DIVISORS "rope_freqs.weight"

/* How the layers of one kind attend. */
struct attn_desc {
    int n_heads, n_kv_heads, head_dim;
    /* > 0: latent attention (MLA; DeepSeek-AI, 2024, section 2.1). A position stores a latent of so many
     * elements and one rotary part for all heads, from which keys and values follow by up-projections;
     * these are absorbed into queries and results, so that n_kv_heads is 1. Queries have head_dim
     * elements, of which the last rotary_dim rotate. */
    int n_latent;
    int q_rank;            /* latent attention: queries go through so many elements; 0: they do not */
    int value_dim;         /* latent attention: of a head's result; see attn_value_dim() */
    float latent_norm_eps; /* of the norms of latents and of those q_rank elements */
    float scale;           /* factor of q . k; 0: 1 / sqrt(head_dim) */
    float softcap;         /* a score s becomes softcap tanh(s / softcap); 0: none */
    int first;             /* positions from this one on attend to none before it */
    int window;            /* a position attends to this many, itself included; 0: to all before it */
    enum rope_kind rope;
    int rotary_dim;
    int n_rotating; /* of the rotary_dim / 2 pairs only the first so many rotate (their frequencies do not change); 0: all */
    double rope_theta;
    bool has_half_freqs; /* rotary frequencies are rounded to half precision */
    struct rope_scaling {
        /* ROPE_SCALING_DYNAMIC: none up to n_ctx; beyond it the base would depend on the length
         * of the text. ROPE_SCALING_LONGROPE: each frequency is divided by a factor of one of two
         * lists. A position's bits must not depend on the length that its text will have, so the
         * list follows the context that the model was opened for (model_limit_context()). */
        enum {
            ROPE_SCALING_NONE,
            ROPE_SCALING_LINEAR,
            ROPE_SCALING_LLAMA3,
            ROPE_SCALING_YARN,
            ROPE_SCALING_DYNAMIC,
            ROPE_SCALING_LONGROPE
        } kind;
        double factor, low_freq_factor, high_freq_factor; /* llama3 */
        /* yarn, longrope: the factor of cos and sin; yarn 0: 0.1 ln(factor) + 1 */
        double attention_factor;
        /* The queries of position p are multiplied by 1 + query_growth ln(1 + floor(p / original_n_ctx)), Meta, 2025 (LLaMA 4).
         * Positions from original_n_ctx on are not supported, so the factor is 1. 0: none. */
        double query_growth;
        double beta_fast, beta_slow; /* yarn */
        bool is_exact;     /* yarn: the ramp may begin and end between two pairs; else it is rounded */
        bool has_divisors; /* of a GGUF file: the tensor GGUF_ROPE_DIVISORS divides the frequencies */
        int original_n_ctx;
        int n_factors; /* longrope: rotary_dim / 2 of each list */
        bool is_short; /* longrope: the context is at most original_n_ctx */
        float short_factors[MAX_ROPE_FACTORS], long_factors[MAX_ROPE_FACTORS];
    } rope_scaling;
    bool has_qk_norm;     /* RMSNorm of each head of q and k, with norm_eps, before rotary embedding */
    bool norms_all_heads; /* has_qk_norm: one norm over all heads together */
    bool has_alibi;       /* ALiBi (scores fall with the distance) instead of rotary embedding */
    bool has_qkv_bias;    /* on q, k, v */
    bool has_out_bias;    /* on the output projection */
    bool keys_are_values; /* there is no matrix of values: they are the keys before their norm and rotation */
    bool norms_values;    /* RMSNorm of each head of v, with norm_eps, without weights */
    bool has_sinks;       /* each head has a score of no position, in the softmax's denominator */
};

/* Elements of a head's result. */
static inline int attn_value_dim(const struct attn_desc *a)
{
    return a->n_latent > 0 ? a->value_dim : a->head_dim;
}

/* Elements that latent attention stores of a position. */
static inline int attn_latent_row(const struct attn_desc *a)
{
    return a->n_latent + a->rotary_dim;
}

/* The experts of a layer: feed-forward blocks, of which each row uses a few. */
struct expert_desc {
    struct routing routing; /* n_experts 0: the layer has one feed-forward block for all rows */
    int d_ff;               /* of each */
    int d_shared;           /* width of the shared expert, which all rows use; 0: none */
    bool gates_shared;      /* the shared expert's output is multiplied by the sigmoid of a logit */
    bool has_choice_bias;   /* added to the scores for choosing */
    bool has_router_bias;   /* added to the router's logits */
    bool has_bias;          /* on gate, up and down of each expert */
    bool has_factors;       /* the weight of each expert is multiplied by a factor */
    /* The router and the experts take the stream after attention, each by a norm of its own. Their output and that of
     * the shared expert, which has the norm of other models, are normed before they are added. */
    bool has_norms;
    float router_scale; /* factor of the router's logits; 0: none */
};

/* The feed-forward block of the layers of one kind. */
struct ffn_desc {
    int d_ff;      /* 0: of a layer with experts */
    bool has_gate; /* act(gate) * up, else act(up) */
    bool has_bias; /* on gate, up and down */
    enum activation activation;
    struct expert_desc experts;
};

static inline bool ffn_has_experts(const struct ffn_desc *f)
{
    return f->experts.routing.n_experts > 0;
}

struct layer_desc {
    struct attn_desc attn;
    struct ffn_desc ffn;
};
enum { MAX_LAYER_KINDS = 8 };

/* The hyperparameters: everything that forward.c must know. Ranges are checked by
 * model_desc_check(). */
struct model_desc {
    char family[32];      /* "llama", "chatglm" */
    char chat_format[32]; /* "llama2", "chatglm2", "chatglm3"; "": none */
    int n_layers, d_model, n_vocab, n_ctx;
    /* Layers may be of several kinds: layer i is described by kinds[kind_of[i]]. The first layer is
     * of kind 0. */
    int n_kinds;
    struct layer_desc kinds[MAX_LAYER_KINDS];
    uint8_t kind_of[LIMIT_LAYERS];
    /* Layers for multi-token prediction (MTP) that the checkpoint has after the n_layers. With uses_mtp
     * the first of them is loaded as layer n_layers, of the last kind: it drafts tokens. Its embedding
     * and output matrix are those of the model, unless the checkpoint has others. */
    int n_mtp_layers;
    bool uses_mtp, has_mtp_embedding, has_mtp_output;
    enum { NORM_RMS, NORM_LAYER /* subtracts the mean, has biases */, NORM_LAYER_PLAIN /* has none */ } norm;
    float norm_eps;
    bool has_embedding_norm; /* on the embedding, before the first layer */
    /* Norms of the outputs of attention and feed-forward layer, before they join the residual; or with
     * norms_sums of the residual stream after they joined it, which leaves no norm for its end (BERT). */
    bool has_post_norms, norms_sums;
    bool has_no_pre_norms; /* the inputs of attention and feed-forward layer are not normed */
    bool has_layer_scale;  /* the stream is multiplied by a number after each layer */
    /* The feed-forward layer's input: the stream after attention; or, in parallel with attention, the
     * stream before it, with a norm of its own or with attention's. Parallel outputs are added to the
     * stream together. */
    enum { FFN_SEQUENTIAL, FFN_PARALLEL, FFN_PARALLEL_ONE_NORM } ffn_place;
    bool has_output_bias;
    /* 0: a block's output is added to the residual stream; else to the block's normed input times
     * this factor. */
    float residual_scale;
    float block_scale;          /* factor of a block's output; 0: none */
    float embedding_scale;      /* factor of the embedding; 0: none */
    float logit_scale;          /* factor of the logits; 0: none */
    float logit_softcap;        /* then a logit x becomes logit_softcap tanh(x / logit_softcap); 0: none */
    bool has_learned_positions; /* a table of n_ctx rows is added to the embedding */
    int first_position_row;     /* rows of the stored table before that of position 0 */
    /* The last layer's queries come from a table of n_ctx rows, by position. The output norm is
     * before that layer, and no norm after it. */
    bool has_top_query;
    bool tied_output;     /* the embedding is also the output matrix */
    bool is_untied;       /* the configuration says tied, but the file has another output matrix */
    bool has_unit_output; /* rows of the stored output matrix are divided by their lengths */
    /* Of a model with images: so many pairs of rotary dimensions rotate by time, height and width. The
     * three are equal for text, so they change nothing; GGUF files have them. 0: none. */
    int32_t image_sections[3];
    /* Prefix attention: tokens before the first prefix_end_id attend in both directions. After it
     * the rotary position stays at that of the first mask id found, and a second (block) position
     * counts up. */
    bool has_prefix;
    int32_t prefix_end_id, mask_ids[2];
    /* With has_prefix: the whole input is the prefix. A step gives hidden states, or with has_score a number for each
     * of its outputs. */
    bool is_encoder;
    /* There is no output matrix, so that a step gives no logits: an encoder, or a decoder for embeddings that was saved
     * without it. */
    bool is_headless;
    bool has_score;         /* the hidden state goes through a head (SLOT_POOLER, tanh, SLOT_SCORE) */
    bool has_raw_score;     /* the score is used as it is; else users want its sigmoid */
    int n_segments;         /* a vector of a row's segment (0 or 1) is added to the embedding; 0: none */
    int32_t bos_id, pad_id; /* -1: none */
    /* Ids that end an answer: first n_stop_ids that the checkpoint's files list, then
     * n_chat_stop_ids that end an answer in chats only. */
    int32_t stop_ids[MAX_STOP_IDS];
    int n_stop_ids, n_chat_stop_ids;
    int n_usable_vocab; /* ids from here on are padding rows, never sampled */
};

/* Layers that are loaded: those of a step, and that of multi-token prediction. */
static inline int model_n_loaded(const struct model_desc *d)
{
    return d->n_layers + d->uses_mtp;
}

/* layer: 0 to model_n_loaded() - 1. */
static inline const struct layer_desc *model_layer(const struct model_desc *d, int layer)
{
    return &d->kinds[d->kind_of[layer]];
}

/* Whether any layer has experts. */
bool model_has_experts(const struct model_desc *desc);

/* Whether rows without outputs end with their keys and values in this layer: in the last one, unless a layer of multi-token
 * prediction needs all hidden states, or the feed-forward layer has the input of attention. */
static inline bool model_ends_rows(const struct model_desc *d, int layer)
{
    return layer == d->n_layers - 1 && !d->uses_mtp && d->ffn_place != FFN_PARALLEL_ONE_NORM;
}

/* The widest window of any layer; 0: no layer has one. */
int model_window(const struct model_desc *desc);

/* Keys and values of one position in a layer. */
uint64_t model_layer_kv_bytes(const struct attn_desc *attn, enum dtype kv_type);

/* Keys and values of one position in all layers that are loaded. */
uint64_t model_kv_bytes(const struct model_desc *desc, enum dtype kv_type);

/* Slots that a sequence needs at most in the layers with this window, during a step with step_tokens
 * of its rows. */
int64_t model_window_slots(int window, int step_tokens, int page_tokens);

enum { MODEL_STEP_TOKENS = 256 }; /* default of --max-batch-tokens */

/* The same of a context of n_tokens, in whole pages: layers with a window keep only the slots that
 * their rows see. */
uint64_t model_context_kv_bytes(const struct model_desc *desc, enum dtype kv_type, int page_tokens,
                                int n_tokens);
/* Its parts: of the layers from begin to end, and the hidden states that multi-token prediction stores. */
uint64_t model_layers_kv_bytes(const struct model_desc *desc, enum dtype kv_type, int page_tokens,
                               int n_tokens, int begin, int end);
uint64_t model_context_hidden_bytes(const struct model_desc *desc, int page_tokens, int n_tokens);

/* Adapts the description to sequences of at most n tokens (0: of any length): a model with LongRoPE
 * whose original context is long enough uses its short factors, and n_ctx becomes that context. */
void model_limit_context(struct model_desc *desc, int n);

/* Whether positions from n_ctx on cannot be computed. Other models can run beyond n_ctx, with
 * falling quality. */
bool model_desc_ends_at_context(const struct model_desc *desc);

/* The number of stop_ids that end an answer. */
static inline int model_desc_n_stops(const struct model_desc *d, bool is_chat)
{
    return d->n_stop_ids + (is_chat ? d->n_chat_stop_ids : 0);
}

struct chat_call;
struct chat_template;

/* A chat format renders messages to ids and defines how a reply becomes text. See
 * model/chat/chat.h. */
struct chat_format {
    const char *name;
    /* Adds the ids of the whole prompt, ready for the assistant's answer. TUTTI_E_ARGUMENT: an
     * unknown role (param names messages[i].role), or a message that the format cannot express;
     * TUTTI_E_MEMORY. */
    enum tutti_status (*render)(const struct chat_call *call, struct ids *out, struct tutti_error *err);
    bool is_own_template;   /* chat_add_own_template() has its text */
    bool takes_tools;       /* of formats that are code */
    bool has_metadata_line; /* a reply's first line is metadata: hidden if it is blank */
    bool trims_reply;       /* blanks and newlines around the reply are removed */
    bool fills_in_time;     /* a reply's "[[训练时间]]", the time of training, is shown as "2023年" */
    bool widens_marks; /* , ! : ; ? next to a Chinese character are shown full-width; fills_in_time too */
};

struct family;
struct adapters; /* model/adapters/adapter.h */
struct group;    /* model/ranks/group.h */

/* A weight in the backend's memory: a matrix; or floats, a norm's with their bias; or a number in the host's. All
 * NULL: the model has no such weight. */
struct model_weight {
    struct matrix *matrix;
    struct floats values, bias;
    float number; /* of SLOT_NUMBER */
};

/* How a checkpoint's files make an embedding of hidden states. */
struct model_pooling {
    enum tutti_embedding kind; /* TUTTI_EMBEDDING_NONE: they do not say */
    bool keeps_length;         /* vectors are not normalized to length 1 */
};

struct model {
    char name[128];
    struct model_desc desc; /* of the whole model */
    /* Of the part that this rank holds: with several ranks it has fewer heads, columns and ids
     * (split.h). */
    struct model_desc local;
    struct group *group; /* the tensor-parallel ranks; NULL: a single process */
    enum dtype weight_type, kv_type;
    struct backend *backend;
    bool is_divided; /* between a card and the CPU, by placement */
    struct placement placement;
    struct model_weight *weights;        /* [model_n_loaded()][SLOT_COUNT]: model_weight() */
    struct tokenizer *tokenizer;         /* NULL: none */
    struct adapters *adapters;           /* NULL: none */
    bool is_gguf;                        /* rows of q and k are in GGUF's order */
    const struct family *family;         /* NULL: random weights */
    const struct chat_format *chat;      /* NULL: none */
    struct chat_template *chat_template; /* of a format that is a template */
    struct chat_marks marks;             /* of reasoning and tool calls in its answers */
    struct infill_tokens infill;
    struct tutti_sampling sampling; /* defaults */
    struct model_pooling pooling;
    uint64_t n_params, weight_bytes;
    uint64_t memory_bytes;              /* as in struct tutti_model_options */
    float *rope_freqs[MAX_LAYER_KINDS]; /* host, [rotary_dim / 2] of each kind of layers */
    struct workspace *workspace;        /* activations for max_rows rows, by model_reserve() */
    bool in_use;                        /* an engine is open on it */
};

/* layer: 0 for weights outside of layers. */
static inline struct model_weight *model_weight(const struct model *model, enum weight_slot slot, int layer)
{
    return &model->weights[(size_t)layer * SLOT_COUNT + (size_t)slot];
}

/* The output matrix, which may be the embedding. */
static inline const struct matrix *model_output(const struct model *model)
{
    return model_weight(model, model->desc.tied_output ? SLOT_EMBEDDING : SLOT_OUTPUT, 0)->matrix;
}

MUST_CHECK enum tutti_status model_load(struct model **out, const char *path,
                                        const struct tutti_model_options *options, struct tutti_error *err);

/* Makes a model of a known shape ("chatglm3-6b", ...) with random weights and no tokenizer, for
 * benchmarks. n_layers: of its first layers only; 0: of all. */
MUST_CHECK enum tutti_status model_make(struct model **out, const char *shape, int n_layers, enum dtype type,
                                        const struct tutti_model_options *options, struct tutti_error *err);

/* The name of the i-th known shape; NULL: there are only i. */
const char *model_shape_name(int i);

/* The description of a known shape; NULL: not found. */
const struct model_desc *model_shape(const char *name);

/* The type of a known shape's matrices where none is given. */
enum dtype model_shape_type(const char *name);
/* The type of one of them where type is given: that of routers is float32, and of MXFP4 other matrices
 * than those of experts are Q8_0 (weight_type.h). */
enum dtype model_shape_weight_type(enum weight_slot slot, enum dtype type);

void model_free(struct model *model); /* NULL is allowed */

/* Adds the ids before a text that the model is to continue (bos, or [gMASK] sop). */
MUST_CHECK enum tutti_status model_text_prefix(const struct model *model, struct ids *out,
                                               struct tutti_error *err);

/* The bidirectional prefix of a sequence (desc.has_prefix); its ids must all be rows of one step. */
struct prefix {
    int n, mask_position;
    int second;        /* of an encoder: positions from this one on are segment 1; 0: none are */
    bool has_no_end;   /* prefix_end_id is missing, or the model has no prefixes: attention is causal */
    int n_before_zero; /* the first positions have no rotary positions: these begin at 0 after them */
};
struct prefix model_find_prefix(const struct model_desc *desc, const int32_t *ids, int n_ids);

/* Floats that a step gives for each output whose hidden state is requested. */
static inline int model_hidden_width(const struct model_desc *d)
{
    return d->has_score ? 1 : d->d_model;
}

/* TUTTI_E_ARGUMENT with param model: it gives no logits and generates nothing (is_headless). */
MUST_CHECK enum tutti_status model_check_generates(const struct model *model, struct tutti_error *err);

/* Counts the virtual tokens of an adapter, whose rotary positions do not count, before the prefix. */
void model_prefix_shift(struct prefix *prefix, int n_virtual);

/* The rope_positions and block_positions of a step's row, for models with prefixes and for sequences
 * with positions before zero. The block position of an encoder's row is its segment. */
void model_prefix_positions(const struct prefix *prefix, int position, int32_t *rope, int32_t *block);

/* Adds the ids after such a text. */
MUST_CHECK enum tutti_status model_text_suffix(const struct model *model, struct ids *out,
                                               struct tutti_error *err);

/* A prompt that is plain text. */
struct model_text {
    const char *bytes;
    size_t n_bytes;
    bool add_special;   /* with the ids that the model expects before and after a text */
    bool parse_special; /* recognize special tokens in the text: only for trusted text */
};

/* Adds the text's ids to out, which is empty. The model has a tokenizer. */
MUST_CHECK enum tutti_status model_encode_text(const struct model *model, const struct model_text *text,
                                               struct ids *out, struct tutti_error *err);

/* The same for a pair of texts, of which the second is pair [n_pair_bytes]. *second: where its ids begin.
 * TUTTI_E_UNSUPPORTED: the tokenizer's files do not say how pairs are joined. */
MUST_CHECK enum tutti_status model_encode_pair(const struct model *model, const struct model_text *text,
                                               const char *pair, size_t n_pair_bytes, struct ids *out,
                                               int *second, struct tutti_error *err);

/* Checks that every id has a row in the embedding. TUTTI_E_ARGUMENT with param: the text spelled
 * a special token that has none. */
MUST_CHECK enum tutti_status model_check_rows(const struct model *model, const struct ids *ids,
                                              const char *param, struct tutti_error *err);

/* Sizes activations and scratch memory for steps of up to max_rows rows, max_outputs of them with
 * logits (any with hidden states). May be called again with another size. */
MUST_CHECK enum tutti_status model_reserve(struct model *model, int max_rows, int max_outputs,
                                           struct tutti_error *err);

/* Submits a forward pass over the rows of step, which must not change until model_wait(). Returns
 * the logits [n_outputs - n_hidden][n_vocab] in the backend's memory, valid from model_wait() until
 * the next pass; on ranks above 0: none. Hidden states are taken after the last norm, as the input
 * of the output matrix. n_rows and n_outputs: at most what was reserved. Allocates nothing. */
struct floats model_submit(struct model *model, struct kv_memory *kv, const struct step *step);
void model_wait(struct model *model);

static inline struct floats model_forward(struct model *model, struct kv_memory *kv, const struct step *step)
{
    struct floats logits = model_submit(model, kv, step);
    model_wait(model);
    return logits;
}

/* ---- multi-token prediction, of a model with desc.uses_mtp. A row of its layer is a token and the normed
 * hidden state of the position before it, and gives the logits of the token after it. Its keys and
 * values are computed by model_submit(), for every row of a step. The page of a position has a row for
 * the hidden state of the last position that was computed in it ---- */

/* Submits a pass of the MTP layer over the rows of step, which are all outputs; previous [n_rows]: the
 * row of the preceding pass that has the hidden state of the position before, or -1: its page has it.
 * Returns the logits [n_rows][n_vocab], as model_submit(). */
struct floats model_submit_mtp(struct model *model, struct kv_memory *kv, const struct step *step,
                               const int32_t *previous);

/* After model_wait(), before the next pass: page page_ids[i] gets the hidden state of row rows[i] of the
 * step. Both: [n]. */
void model_store_hidden(struct model *model, struct kv_memory *kv, const int32_t *rows,
                        const int32_t *page_ids, int n);

/* Copies the first n_rows rows of logits to host [n_rows][n_vocab]. */
void model_read_logits(const struct model *model, struct floats logits, int n_rows, float *host);

/* ---- KV memory for model_forward(). A model on several ranks has at most one at a time ---- */

static inline int model_page_tokens(const struct model *model)
{
    return model->backend->caps->page_tokens;
}

/* Pages that n_tokens take. */
static inline int model_pages_of(const struct model *model, int64_t n_tokens)
{
    return (int)kv_pages_of(n_tokens, model_page_tokens(model));
}

/* Allocates n_pages pages for every layer, n_window_pages for those with a window, of the model's
 * kv_type, on every rank. On success *out is the caller's. */
MUST_CHECK enum tutti_status model_kv_new(struct model *model, struct kv_memory **out, int n_pages,
                                          int n_window_pages, struct tutti_error *err);
void model_kv_free(struct model *model, struct kv_memory *kv); /* NULL is allowed */
void model_kv_copy_page(struct model *model, struct kv_memory *kv, const struct page_copy *copy);

/* Bytes that this process may still allocate for pages: with several ranks, the minimum over
 * them. */
uint64_t model_memory_left(struct model *model);

/* The same of this rank only. */
uint64_t model_own_memory_left(const struct model *model);

/* Resident memory of each rank (memory_resident()). n_bytes: [LIMIT_RANKS]. Returns the number of
 * ranks filled in; 0: a rank was lost. */
int model_memory_taken(struct model *model, uint64_t *n_bytes);

/* ---- ranks. A single process is rank 0 ---- */

int model_rank(const struct model *model);

/* For ranks above 0: repeats what rank 0 does with the model, until rank 0 frees it. TUTTI_E_IO:
 * a rank was lost. */
MUST_CHECK enum tutti_status model_follow(struct model *model, struct tutti_error *err);

/* Reserves the message that broadcasts a step to the other ranks, and the device's tables: up to max_rows rows of
 * max_seqs sequences with page tables of max_pages. Without this call, the memory is allocated when it is
 * needed. */
MUST_CHECK enum tutti_status model_reserve_tables(struct model *model, int max_rows, int max_seqs,
                                                  int max_pages, struct tutti_error *err);

/* True: a rank was lost or the device failed, and results of model_forward() since then are invalid. model_check()
 * then returns TUTTI_E_IO (TUTTI_E_MEMORY: the device's memory ran out); the error names the rank or the device. */
bool model_is_lost(const struct model *model);
enum tutti_status model_check(const struct model *model, struct tutti_error *err);

/* As cluster_on_loss(). */
void model_on_loss(struct model *model, void (*fn)(void *user), void *user);

#endif
