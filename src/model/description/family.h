/* What a family of models tells about itself. A family is one file: a description from the configuration, names of
 * tensors, what it adds to the tokenizer, chat formats. It holds no arithmetic. */
#ifndef TUTTI_MODEL_DESCRIPTION_FAMILY_H
#define TUTTI_MODEL_DESCRIPTION_FAMILY_H

#include "checkpoint/gguf/gguf.h"
#include "model/description/config.h"
#include "model/model.h"

/* Matrices that a checkpoint stores as [in][out]. */
enum { TRANSPOSED_QKV = 1, TRANSPOSED_ATTN_OUT = 2, TRANSPOSED_MLP = 4, TRANSPOSED_ALL = 7 };

/* Names of tensors; "%d" stands for the layer. A bias has the name of its weight with "bias" at the end in place of
 * "weight", or "beta" in place of "gamma". NULL: the description tells that there is none. */
struct tensor_names {
    const char *embedding, *embedding_norm, *positions;
    const char *output, *output_norm;
    const char *attn_norm, *attn_post_norm, *ffn_norm, *ffn_post_norm;
    const char *qkv[3];          /* one fused tensor and NULLs, or q, k, v */
    const char *q_norm, *k_norm; /* of each head */
    const char *attn_out;
    /* One fused tensor (gate rows first) and NULL, or gate, up; up and NULL without a gate. */
    const char *gate_up[2];
    const char *down;
    const char *top_query;          /* the table of has_top_query */
    const struct tensor_names *top; /* names of that last layer */
    unsigned transposed;            /* TRANSPOSED_... */
    bool is_by_head;                /* a fused qkv is stored as [n_heads][q, k, v][head_dim] */
    bool is_gguf;
};

struct family {
    const char *name;
    /* general.architecture. Where llama.cpp knows none that computes the same it is a name of ours, which it refuses. */
    const char *gguf_architecture;
    /* GGUF rotates interleaved pairs where the configuration says half-split: rows of q and k change their order. */
    bool is_permuted_in_gguf;
    bool (*is_mine)(const json_t *config); /* of a Hugging Face config.json */
    /* Settings that describe() does not read, in addition to those of config_keys.h: of config.json, and of GGUF's metadata under the
     * architecture's prefix. NULL: none. */
    const struct config_key *keys, *gguf_keys;
    const char *code; /* how classes of the authors' own code begin (auto_map); NULL: they published none */
    /* Fills desc; errors go into c. */
    void (*describe)(struct model_desc *desc, struct config *c, bool is_gguf);
    /* Adds to a GGUF file's metadata what describe() reads there beyond what all have. NULL: nothing. */
    void (*put_metadata)(struct gguf_writer *w, const struct model_desc *desc);
    const struct tensor_names *layouts; /* family_layout() chooses; at least one is_gguf */
    int n_layouts;
    const char *const *ignored; /* [n_ignored] ends of names of tensors that hold no weights to run */
    int n_ignored;
    /* Appends special tokens to the tokenizer.model of a Hugging Face folder. NULL: none. */
    enum tutti_status (*extend_tokenizer)(struct tokenizer *tok, const struct model_desc *desc,
                                          struct tutti_error *err);
    /* The built-in chat format of such a checkpoint: a name that chat.c knows, or "": none. It makes the prompts where the
     * checkpoint has no template. template: the checkpoint's; NULL: none. */
    const char *(*choose_chat)(const struct model_desc *desc, const struct tokenizer *tok,
                               const json_t *config, const json_t *tokenizer_config, const char *template);
    void (*defaults)(struct tutti_sampling *sampling, const char *chat_format);
    /* Ids that stand before a text that is to be continued. */
    enum tutti_status (*text_prefix)(const struct tokenizer *tok, struct ids *out, struct tutti_error *err);
    /* Ids that stand behind it. NULL: none. */
    enum tutti_status (*text_suffix)(const struct model_desc *desc, struct ids *out, struct tutti_error *err);
};

extern const struct family FAMILY_CHATGLM_6B, FAMILY_CHATGLM, FAMILY_GLM, FAMILY_GLM4, FAMILY_LLAMA,
    FAMILY_QWEN2, FAMILY_QWEN3, FAMILY_GPT2, FAMILY_BLOOM, FAMILY_BLOOM_POST, FAMILY_PANGU;

/* All families, then NULL; the first one that a configuration fits is taken. */
extern const struct family *const FAMILIES[];

/* For families without a chat format, and without a prefix. */
const char *family_no_chat(const struct model_desc *desc, const struct tokenizer *tok, const json_t *config,
                           const json_t *tokenizer_config, const char *template);
enum tutti_status family_no_prefix(const struct tokenizer *tok, struct ids *out, struct tutti_error *err);

/* What the GLM families share: [gMASK] sop before a text, temperature and top_p of 0.8. */
enum tutti_status family_glm_prefix(const struct tokenizer *tok, struct ids *out, struct tutti_error *err);
void family_glm_defaults(struct tutti_sampling *sampling, const char *chat_format);

/* Fills *desc from the checkpoint's configuration and checks it. TUTTI_E_UNSUPPORTED names a family that is none of FAMILIES. */
MUST_CHECK enum tutti_status model_desc_read(struct model_desc *desc, const struct family **family,
                                             const struct checkpoint *ck, struct tutti_error *err);

/* Every range and relation that forward.c relies on. file is for messages. */
MUST_CHECK enum tutti_status model_desc_check(const struct model_desc *desc, const char *file,
                                              struct tutti_error *err);

/* The layout of a checkpoint's tensor names; NULL: none of the family's. */
const struct tensor_names *family_layout(const struct family *family, const struct checkpoint *ck);

/* Says that there is none, and what there is instead, where that is known. */
enum tutti_status family_no_layout(const struct family *family, const struct checkpoint *ck,
                                   struct tutti_error *err);

/* Rotary frequencies [rotary_dim / 2] (of ROPE_2D [rotary_dim / 4]), as transformers computes them in float32. */
void model_rope_freqs(const struct model_desc *desc, float *freqs);

/* ALiBi's slopes [n_heads]. */
void model_alibi_slopes(const struct model_desc *desc, float *slopes);

/* What YaRN usually multiplies cos and sin by; and what a description does. */
double model_yarn_scale(double factor);
float model_rope_scale(const struct model_desc *desc);

/* The tokenizer of a checkpoint, or NULL in *out where it has none that tutti reads; then *why (size bytes) says it. */
MUST_CHECK enum tutti_status model_tokenizer_load(struct tokenizer **out, const struct family *family,
                                                  const struct model_desc *desc, const struct checkpoint *ck,
                                                  char *why, size_t size, struct tutti_error *err);

/* Adds a special token by its spelling. TUTTI_E_UNSUPPORTED: the vocabulary lacks it. */
MUST_CHECK enum tutti_status chat_add_special(const struct tokenizer *tok, const char *spelling,
                                              struct ids *out, struct tutti_error *err);
/* TUTTI_E_ARGUMENT with param messages[i].role. */
enum tutti_status chat_bad_role(const struct tutti_message *message, size_t index, const char *expected,
                                struct tutti_error *err);
enum tutti_status chat_out_of_memory(struct tutti_error *err);

#endif
