/* What distinguishes a family of models (LLaMA, GLM, ...). Each family is one file: it builds the
 * description from the configuration, and names tensors, extra tokens and chat formats. It holds
 * no arithmetic. */
#ifndef TUTTI_MODEL_DESCRIPTION_FAMILY_H
#define TUTTI_MODEL_DESCRIPTION_FAMILY_H

#include "checkpoint/gguf/gguf.h"
#include "model/description/config.h"
#include "model/model.h"

/* Matrices that a checkpoint stores as [in][out]: bits 1 << slot. */
enum {
    TRANSPOSED_QKV = 1 << SLOT_QKV,
    TRANSPOSED_ATTN_OUT = 1 << SLOT_ATTN_OUT,
    TRANSPOSED_MLP = 1 << SLOT_GATE_UP | 1 << SLOT_DOWN,
    TRANSPOSED_EXPERTS = 1 << SLOT_EXPERT_GATE_UP | 1 << SLOT_EXPERT_DOWN, /* except tensors of blocks */
    TRANSPOSED_ALL = TRANSPOSED_QKV | TRANSPOSED_ATTN_OUT | TRANSPOSED_MLP
};

/* Names of tensors; "%d" is the layer's number. A bias has the name of its weight with "bias"
 * instead of "weight" at the end, or "beta" instead of "gamma". */
struct tensor_names {
    /* By slot: a name for each part, or one fused tensor of all parts (q, k, v; gate, up) and NULLs.
     * NULL: no such tensor, by the model's description. The top query and its keys and values have
     * the names of SLOT_QKV. */
    const char *of[SLOT_COUNT][MAX_PARTS];
    const struct tensor_names *top; /* of the last layer, with has_top_query */
    uint64_t transposed;            /* TRANSPOSED_... */
    bool is_by_head;                /* a fused qkv is stored as [n_kv_heads][its queries, k, v][head_dim] */
    bool has_norms_less_one;        /* norms are stored minus 1 */
    bool alternates;                /* rows of the experts' gate and up alternate in one tensor */
    /* The up-projections of latent attention are one tensor [n_heads][keys, values][n_latent], in which
     * that of keys is not transposed; else each is one of three dimensions. */
    bool has_fused_up;
    bool is_gguf;
    bool is_only_read; /* of GGUF layouts: conversions do not write it */
};

/* The name of a tensor that every layer has, which no other layout names so. */
static inline const char *tensor_names_of_attention(const struct tensor_names *names)
{
    return names->of[SLOT_K_UP][0] ? names->of[SLOT_K_UP][0] : names->of[SLOT_QKV][0];
}

/* The names of a slot's parts; those that are missing are NULL. */
static inline const char *const *tensor_names_of(const struct tensor_names *names, enum weight_slot slot)
{
    return names->of[slot_named_as(slot)] + (slot == SLOT_TOP_KV ? 1 : 0);
}

static inline bool tensor_names_transposes(const struct tensor_names *names, enum weight_slot slot)
{
    return names->transposed >> slot_named_as(slot) & 1;
}

struct family {
    const char *name;
    /* general.architecture. If llama.cpp has no architecture that computes the same, this is a
     * name of tutti's own, which llama.cpp refuses. */
    const char *gguf_architecture;
    /* GGUF rotates interleaved pairs, the configuration half-split ones: rows of q and k change
     * their order. */
    bool is_permuted_in_gguf;
    bool expands_latents; /* GGUF counts a KV head for each head of latent attention */
    bool has_joint_width; /* GGUF's feed_forward_length counts gate and up together */
    bool has_experts;     /* of two families of one GGUF architecture, that whose files have experts */
    bool has_first_dense; /* GGUF can express that the first layers have no experts */
    bool (*is_mine)(const json_t *config); /* of a Hugging Face config.json */
    /* Keys that describe() does not read, in addition to those of config_keys.h: of config.json,
     * and of GGUF's metadata under the architecture's prefix. NULL: none. */
    const struct config_key *keys, *gguf_keys;
    const char *
        code; /* prefixes of class names in the authors' own code (auto_map), with "|" between them; NULL: none published */
    /* Fills desc; errors go into c. */
    void (*describe)(struct model_desc *desc, struct config *c, bool is_gguf);
    /* Completes the description by the tensors of a GGUF file, where no key says it. NULL: nothing. */
    void (*find_parts)(struct model_desc *desc, const struct checkpoint *ck);
    /* Adds the GGUF metadata that describe() reads in addition to the shared keys. NULL: nothing. */
    void (*put_metadata)(struct gguf_writer *w, const struct model_desc *desc);
    /* The setting that GGUF's architecture cannot express; NULL: it can express all. The function may
     * be NULL. */
    const char *(*find_gguf_fault)(const struct model_desc *desc);
    bool has_window_layers; /* its architecture has layers with and layers without a window */
    bool has_exact_yarn;    /* its architecture means YaRN with an exact ramp */
    /* The divisors of rotary frequencies in GGUF are those of the layers without a window, and must be there; else they
     * are those of all layers. */
    bool has_global_divisors;
    /* transformers scales the embeddings after its embedding module, and so PEFT's soft prompts; else within it. */
    bool scales_soft_prompts;
    const struct tensor_names *layouts; /* family_layout() chooses; at least one is_gguf */
    int n_layouts;
    /* [n_ignored] Ends of tensor names that hold no weights to run, or beginnings that end with ".", besides those of
     * any family (weights/unused.c). */
    const char *const *ignored;
    int n_ignored;
    /* Appends special tokens to the tokenizer.model of a Hugging Face folder. NULL: none. */
    enum tutti_status (*extend_tokenizer)(struct tokenizer *tok, const struct model_desc *desc,
                                          struct tutti_error *err);
    /* The name of the built-in chat format of such a checkpoint; "": none. It renders the prompts
     * if the checkpoint has no template. generation: generation_config.json; template: the checkpoint's;
     * each NULL: none. */
    const char *(*choose_chat)(const struct model_desc *desc, const struct tokenizer *tok,
                               const json_t *config, const json_t *tokenizer_config, const json_t *generation,
                               const char *template);
    void (*defaults)(struct tutti_sampling *sampling, const char *chat_format);
    /* Adds the ids before a text to be continued. */
    enum tutti_status (*text_prefix)(const struct tokenizer *tok, struct ids *out, struct tutti_error *err);
    /* Adds the ids after such a text. NULL: none. */
    enum tutti_status (*text_suffix)(const struct model_desc *desc, struct ids *out, struct tutti_error *err);
};

/* Every family; the first whose is_mine() accepts the configuration is used. */
#define FOR_EACH_FAMILY(f)                                                                                   \
    f(CHATGLM_6B) f(CHATGLM) f(GLM) f(GLM4) f(LLAMA) f(MINISTRAL3) f(INTERNLM2) f(INTERNLM3) f(BAICHUAN)     \
        f(PANGU_EMBEDDED) f(GRANITE) f(GRANITE_DENSE) f(GRANITE_MOE) f(PHI3) f(GEMMA) f(GEMMA2) f(GEMMA3)    \
            f(GEMMA4) f(GEMMA4_MOE) f(SEED_OSS) f(SMOLLM3) f(MINICPM3) f(STABLELM) f(STARCODER2) f(OLMO2)    \
                f(EXAONE) f(ERNIE) f(ERNIE_MOE) f(EXAONE4) f(PHI2) f(GPT_NEOX) f(GPTJ) f(COHERE) f(COHERE2)  \
                    f(FALCON) f(OPT) f(QWEN1) f(QWEN2) f(QWEN3) f(QWEN2_VL) f(QWEN3_VL) f(QWEN2_MOE)         \
                        f(QWEN3_MOE) f(QWEN3_VL_MOE) f(GLM4_MOE) f(DEEPSEEK_V2) f(DEEPSEEK_V3)               \
                            f(GLM4_MOE_LITE) f(MIXTRAL) f(GPT_OSS) f(MINIMAX_M2) f(OLMOE) f(BERT) f(ROBERTA) \
                                f(GPT2) f(GPT_BIGCODE) f(BLOOM_POST) f(BLOOM) f(PANGU)

#define DECLARE_FAMILY(name) extern const struct family FAMILY_##name;
FOR_EACH_FAMILY(DECLARE_FAMILY)
#undef DECLARE_FAMILY

extern const struct family *const FAMILIES[]; /* ends with NULL */

/* Reserved tokens before the messages of Baichuan's chats, in both of its vocabularies. */
enum { BAICHUAN_USER_ID = 195, BAICHUAN_ASSISTANT_ID = 196 };

/* choose_chat and text_prefix of families that have none. */
const char *family_no_chat(const struct model_desc *desc, const struct tokenizer *tok, const json_t *config,
                           const json_t *tokenizer_config, const json_t *generation, const char *template);
enum tutti_status family_no_prefix(const struct tokenizer *tok, struct ids *out, struct tutti_error *err);

/* bos before a text, unless the tokenizer's files say no. */
enum tutti_status family_bos_prefix(const struct tokenizer *tok, struct ids *out, struct tutti_error *err);

/* Shared by the GLM families: [gMASK] sop before a text; temperature and top_p of 0.8. */
enum tutti_status family_glm_prefix(const struct tokenizer *tok, struct ids *out, struct tutti_error *err);
void family_glm_defaults(struct tutti_sampling *sampling, const char *chat_format);

/* Fills *desc from the checkpoint's configuration and checks it. TUTTI_E_UNSUPPORTED: a family
 * that is not in FAMILIES; the error names it. */
MUST_CHECK enum tutti_status model_desc_read(struct model_desc *desc, const struct family **family,
                                             const struct checkpoint *ck, struct tutti_error *err);

/* Checks every range and relation that forward.c relies on. file is for messages. */
MUST_CHECK enum tutti_status model_desc_check(const struct model_desc *desc, const char *file,
                                              struct tutti_error *err);

/* The layout of a checkpoint's tensor names; NULL: none of the family's. */
const struct tensor_names *family_layout(const struct family *family, const struct checkpoint *ck);

/* Sets the error for a missing layout, and names the format that was found instead, if it is
 * known. */
enum tutti_status family_no_layout(const struct family *family, const struct checkpoint *ck,
                                   struct tutti_error *err);

/* Rotary frequencies [rotary_dim / 2] (of ROPE_2D [rotary_dim / 4]), as transformers computes
 * them in float32. */
void model_rope_freqs(const struct attn_desc *attn, float *freqs);

/* ALiBi's slopes [n_heads]. */
void model_alibi_slopes(const struct attn_desc *attn, float *slopes);

/* The factor of YaRN for cos and sin: the usual one, and that of a description. */
double model_yarn_scale(double factor);
float model_rope_scale(const struct attn_desc *attn);

/* Loads the tokenizer of a checkpoint. *out is NULL if it has none that tutti can read; then why
 * (size bytes) has the reason. */
MUST_CHECK enum tutti_status model_tokenizer_load(struct tokenizer **out, const struct family *family,
                                                  const struct model_desc *desc, const struct checkpoint *ck,
                                                  char *why, size_t size, struct tutti_error *err);

/* Adds the id of a special token by its spelling. TUTTI_E_UNSUPPORTED: not in the vocabulary. */
MUST_CHECK enum tutti_status chat_add_special(const struct tokenizer *tok, const char *spelling,
                                              struct ids *out, struct tutti_error *err);
/* TUTTI_E_ARGUMENT with param messages[i].role. */
enum tutti_status chat_bad_role(const struct tutti_message *message, size_t index, const char *expected,
                                struct tutti_error *err);
enum tutti_status chat_out_of_memory(struct tutti_error *err);

#endif
