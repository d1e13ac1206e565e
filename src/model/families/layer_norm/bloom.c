/* BLOOM: LayerNorm, also on the embedding, ALiBi instead of positions, GELU without a gate,
 * biases everywhere. Hugging Face stores q, k and v interleaved by head, with or without
 * "transformer." before every name; GGUF stores them one after the other. */
#include "model/description/describe.h"
#include "model/families/names.h"

#define HF_NAMES(prefix)                                                                                     \
    {                                                                                                        \
        .of[SLOT_EMBEDDING] = { prefix "word_embeddings.weight" },                                           \
        .of[SLOT_EMBEDDING_NORM] = { prefix "word_embeddings_layernorm.weight" },                            \
        .of[SLOT_OUTPUT] = { "lm_head.weight" }, .of[SLOT_OUTPUT_NORM] = { prefix "ln_f.weight" },           \
        .of[SLOT_ATTN_NORM] = { prefix "h.%d.input_layernorm.weight" },                                      \
        .of[SLOT_FFN_NORM] = { prefix "h.%d.post_attention_layernorm.weight" },                              \
        .of[SLOT_QKV] = { prefix "h.%d.self_attention.query_key_value.weight" },                             \
        .of[SLOT_ATTN_OUT] = { prefix "h.%d.self_attention.dense.weight" },                                  \
        .of[SLOT_GATE_UP] = { prefix "h.%d.mlp.dense_h_to_4h.weight" },                                      \
        .of[SLOT_DOWN] = { prefix "h.%d.mlp.dense_4h_to_h.weight" }, .is_by_head = true,                     \
    }

#define MINDFORMERS_NAMES(prefix)                                                                            \
    {                                                                                                        \
        NAMES_MINDFORMERS_BLOCK(prefix "blocks.%d."),                                                        \
            .of[SLOT_EMBEDDING] = { prefix "embedding.word_embedding.embedding_table" },                     \
            .of[SLOT_EMBEDDING_NORM] = { prefix "embedding.norm.gamma" },                                    \
            .of[SLOT_OUTPUT] = { "head.weight" }, .of[SLOT_OUTPUT_NORM] = { prefix "ln_f.gamma" },           \
    }

static const struct tensor_names LAYOUTS[] = {
    HF_NAMES("transformer."),
    HF_NAMES(""),
    MINDFORMERS_NAMES("transformer."),
    MINDFORMERS_NAMES(""),
    { NAMES_GGUF, NAMES_GGUF_FUSED_QKV, NAMES_GGUF_UP,
      .of[SLOT_EMBEDDING_NORM] = { "token_embd_norm.weight" } },
};

static bool is_bloom(const json_t *config)
{
    return describe_has_type(config, "bloom");
}

/* The variant in which a block's output is added to its normed input. */
static bool is_bloom_post(const json_t *config)
{
    return is_bloom(config) &&
           json_is_true(json_object_get(config, "apply_residual_connection_post_layernorm"));
}

static const struct config_key KEYS[] = {
    { "hidden_size", NULL }, /* n_embed has priority */
    { "n_inner", NULL },     /* the class always uses four times the width */
    /* The same results, computed differently. */
    { "slow_but_exact", NULL },
    { "attention_softmax_in_fp32", NULL },
    { "masked_softmax_fusion", NULL },
    { "bias_dropout_fusion", NULL },
    { "skip_bias_add", NULL },
    { "skip_bias_add_qkv", NULL },
    { "offset_alibi", NULL }, /* of training */
    { NULL, NULL },
};

static const struct config_key GGUF_KEYS[] = {
    { "attention.max_alibi_bias", "8" },
    { NULL, NULL },
};

static void bloom_describe_hf(struct model_desc *d, struct config *c)
{
    struct attn_desc *a = &d->kinds[0].attn;
    config_bool_or(c, "apply_residual_connection_post_layernorm", false); /* chose the family */
    d->n_layers = config_int(c, describe_either(c, "num_hidden_layers", "n_layer"), 1, LIMIT_LAYERS);
    d->d_model = config_int(c, config_find(c, "n_embed") ? "n_embed" : "hidden_size", 1, LIMIT_DIMENSION / 4);
    a->n_heads = config_int(c, describe_either(c, "num_attention_heads", "n_head"), 1, LIMIT_DIMENSION);
    d->n_vocab = config_int(c, "vocab_size", 1, LIMIT_VOCAB);
    d->n_ctx = config_int_or(c, "seq_length", 1, LIMIT_CONTEXT, 2048); /* as trained; no hard limit */
    d->norm_eps = (float)config_float_or(c, "layer_norm_epsilon", 0, 1, 1e-5);
    d->tied_output = config_bool_or(c, "tie_word_embeddings", true);
    a->n_kv_heads = a->n_heads;
    a->head_dim = d->d_model / a->n_heads;
    d->kinds[0].ffn.d_ff = 4 * d->d_model;
    if (a->head_dim * a->n_heads != d->d_model)
        config_unsupported(c, "num_attention_heads", "a width that is no multiple of the heads");
}

static void bloom_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    struct ffn_desc *f = &d->kinds[0].ffn;
    d->norm = NORM_LAYER;
    if (is_gguf)
        describe_gguf(d, c);
    else
        bloom_describe_hf(d, c);
    d->has_embedding_norm = true;
    a->has_alibi = true;
    a->rope = ROPE_NONE;
    a->rotary_dim = 0;
    f->has_gate = false;
    f->activation = ACT_GELU_TANH;
    a->has_qkv_bias = a->has_out_bias = f->has_bias = true;
}

static void describe_post(struct model_desc *d, struct config *c, bool is_gguf)
{
    bloom_describe(d, c, is_gguf);
    d->residual_scale = 1;
}

const struct family FAMILY_BLOOM = {
    .name = "bloom",
    .gguf_architecture = "bloom",
    .is_mine = is_bloom,
    .keys = KEYS,
    .gguf_keys = GGUF_KEYS,
    .describe = bloom_describe,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};

/* GGUF's "bloom" has no key for where residuals are taken. */
const struct family FAMILY_BLOOM_POST = {
    .name = "bloom-post",
    .gguf_architecture = "bloom-post",
    .is_mine = is_bloom_post,
    .keys = KEYS,
    .gguf_keys = GGUF_KEYS,
    .describe = describe_post,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
