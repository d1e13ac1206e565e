/* Adapters: small changes of a model's weights, each for the requests that name it. One loaded model can
 * have several.
 *
 * Low-rank updates (LoRA; Hu et al., 2021), their weight-decomposed form (DoRA; Liu et al., 2024), trained
 * biases, weights that replace the model's own, trained tokens, soft prompts (Lester et al., 2021), and
 * prefixes of keys and values (Li and Liang, 2021; P-Tuning v2, Liu et al., 2022).
 *
 * On disk: a folder as PEFT writes it, adapter_config.json and adapter_model.safetensors, with tensor names
 * of PEFT or MindFormers; or one of ChatGLM's P-Tuning, config.json and pytorch_model.bin. */
#ifndef TUTTI_MODEL_ADAPTERS_ADAPTER_H
#define TUTTI_MODEL_ADAPTERS_ADAPTER_H

#include "model/description/family.h"

/* One pair of factors: scale * B . A is added to rows out_begin.. of a matrix of the forward
 * pass. Rows are in the order of the loaded model (q's heads, then k's, then v's; gate, then up)
 * and in its rotary order. */
struct adapter_update {
    enum weight_slot slot; /* of a slot that can_adapt */
    int layer;             /* of SLOT_OUTPUT: 0 */
    int out_begin, n_out, n_in, rank;
    float scale;
    float *a; /* [rank][n_in] */
    float *b; /* [n_out][rank] */
    /* DoRA: [n_out]: each row of the sum gets this length; NULL: the length that it has. */
    float *magnitudes;
};

/* A trained bias of rows of a matrix, in the same order. */
struct adapter_bias {
    enum weight_slot slot;
    int layer, out_begin, n_out;
    float *values; /* [n_out] */
    bool is_added; /* to the model's own bias; else it replaces that */
};

/* A weight that replaces the model's own: rows of a matrix, of the embedding or the router, in the same
 * order; or a norm, of one row. */
struct adapter_module {
    enum weight_slot slot;
    int layer, out_begin, n_out, n_in;
    enum dtype dtype; /* of rows */
    uint8_t *rows;    /* [n_out][n_in]; NULL: of a norm that only has another bias */
    float *bias;      /* of a norm: [n_in]; NULL: the model's */
    bool is_shared;   /* a tied output or embedding changes with it */
};

/* Rows of the embedding or the output matrix that replace the model's own. */
struct adapter_tokens {
    int n;        /* 0: none */
    int32_t *ids; /* [n], ascending */
    float *rows;  /* [n][d_model] */
};

/* The content of an adapter's folder, checked against a model. */
struct adapter_file {
    struct adapter_update *updates; /* [n], by layer, slot and row */
    int n;
    struct adapter_bias *biases; /* [n_biases], likewise */
    int n_biases;
    struct adapter_module *modules; /* [n_modules], likewise */
    int n_modules;
    struct adapter_tokens tokens, output_tokens;
    /* Added to the embedding of id: scale * B . A[:, id]. */
    struct {
        int rank; /* 0: nothing */
        int n_vocab;
        float scale;
        float *a; /* [rank][n_vocab] */
        float *b; /* [d_model][rank] */
    } embedding;
    /* Virtual tokens before each sequence: their embeddings, or their keys and values. */
    struct {
        int n;       /* 0: none */
        float *rows; /* [n][d_model]; NULL: they have keys and values */
        /* [layers][n][keys, values][n_kv_heads * head_dim]; keys as pages store them */
        float *keys;
        /* The rotary positions of the sequence begin at 0 after them, as ChatGLM counts; else at n. */
        bool is_before_zero;
    } virtual;
};

/* Reads and checks the whole folder. is_gguf: the model's weights have GGUF's order of rows.
 * Errors name file and tensor. TUTTI_E_UNSUPPORTED: a kind of adapter that the forward pass lacks. */
MUST_CHECK enum tutti_status adapter_file_open(struct adapter_file *out, const char *path,
                                               const struct model_desc *desc, const struct family *family,
                                               bool is_gguf, struct tutti_error *err);
void adapter_file_clear(struct adapter_file *file); /* a zeroed one is allowed */

/* Whether it is nothing but low-rank updates. */
bool adapter_file_is_plain(const struct adapter_file *file);

/* The adapters of a loaded model. */
struct adapters;

/* Loads the folder at path as an adapter called name: 1 to 127 bytes, no ':' and no control
 * characters, not in use yet. model_reserve() must be called before the next step, to grow the
 * scratch memory. */
MUST_CHECK enum tutti_status model_add_adapter(struct model *model, const char *name, const char *path,
                                               struct tutti_error *err);
/* Adds an adapter with random weights for every linear layer, for benchmarks. */
MUST_CHECK enum tutti_status model_make_adapter(struct model *model, const char *name, int rank,
                                                struct tutti_error *err);
void adapters_free(struct adapters *adapters, struct backend *be); /* NULL is allowed */

int model_n_adapters(const struct model *model);
const char *model_adapter_name(const struct model *model, int adapter);
int model_find_adapter(const struct model *model, const char *name); /* -1: there is none */

/* The changes of a matrix, of a norm, of the embedding; and the prefixes: indexed by adapter. NULL: no
 * adapter has one. */
const struct lora *const *model_loras(const struct model *model, enum weight_slot slot, int layer);
const struct norm_update *const *model_norms(const struct model *model, enum weight_slot slot, int layer);
const struct embedding_update *const *model_embeddings(const struct model *model);
const struct kv_prefix *const *model_prefixes(const struct model *model);

/* The virtual tokens before each sequence of an adapter; -1 is none. They are the first ids of the
 * sequence (any ids), and rows of steps like all others. */
struct adapter_virtual {
    int n;
    bool is_before_zero; /* rotary positions begin at 0 after them; else at n */
};
struct adapter_virtual model_adapter_virtual(const struct model *model, int adapter);
/* Whether any adapter has virtual tokens before zero: steps need rope_positions. */
bool model_shifts_positions(const struct model *model);

#endif
