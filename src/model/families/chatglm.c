/* ChatGLM2-6B, ChatGLM3-6B and GLM-4-9B in their authors' layout, and GGUF's architecture
 * "chatglm". RMSNorm, grouped attention with biases on q, k, v, interleaved rotary positions on
 * the first half of each head, SwiGLU. */
#include "model/description/describe.h"
#include "model/families/names.h"

#include <stdio.h>
#include <string.h>

#define LAYER "transformer.encoder.layers.%d."
#define NAMES(table)                                                                                         \
    .of[SLOT_EMBEDDING] = { "transformer.embedding." table },                                                \
    .of[SLOT_OUTPUT] = { "transformer.output_layer.weight" },                                                \
    .of[SLOT_OUTPUT_NORM] = { "transformer.encoder.final_layernorm.weight" },                                \
    .of[SLOT_ATTN_NORM] = { LAYER "input_layernorm.weight" },                                                \
    .of[SLOT_FFN_NORM] = { LAYER "post_attention_layernorm.weight" },                                        \
    .of[SLOT_ATTN_OUT] = { LAYER "self_attention.dense.weight" },                                            \
    .of[SLOT_DOWN] = { LAYER "mlp.dense_4h_to_h.weight" }
#define FUSED_QKV .of[SLOT_QKV] = { LAYER "self_attention.query_key_value.weight" }
#define SPLIT_QKV                                                                                            \
    .of[SLOT_QKV] = { LAYER "self_attention.wq.weight", LAYER "self_attention.wk.weight",                    \
                      LAYER "self_attention.wv.weight" }
#define FUSED_GATE_UP .of[SLOT_GATE_UP] = { LAYER "mlp.dense_h_to_4h.weight" }
#define SPLIT_GATE_UP .of[SLOT_GATE_UP] = { LAYER "mlp.dense_left.weight", LAYER "mlp.dense_right.weight" }

/* The authors' names; MindFormers' names, fused or split. */
static const struct tensor_names LAYOUTS[] = {
    { NAMES("word_embeddings.weight"), FUSED_QKV, FUSED_GATE_UP },
    { NAMES("embedding_weight"), FUSED_QKV, FUSED_GATE_UP },
    { NAMES("embedding_weight"), FUSED_QKV, SPLIT_GATE_UP },
    { NAMES("embedding_weight"), SPLIT_QKV, FUSED_GATE_UP },
    { NAMES("embedding_weight"), SPLIT_QKV, SPLIT_GATE_UP },
    { NAMES_GGUF, NAMES_GGUF_FUSED_QKV, NAMES_GGUF_UP },
    { NAMES_GGUF, NAMES_GGUF_SPLIT_QKV, NAMES_GGUF_UP },
};

static const char *const IGNORED[] = { ".weight_scale" };

static bool chatglm_is_mine(const json_t *config)
{
    return describe_has_type(config, "chatglm");
}

static const struct config_key KEYS[] = {
    { "rmsnorm", "true" },
    { "post_layer_norm", "true" },
    { "apply_residual_connection_post_layernorm", "false" },
    { "add_bias_linear", "false" },
    { "multi_query_attention", "true" },
    { "interleaved_qkv", "false" },
    /* The same results, computed differently. */
    { "apply_query_key_layer_scaling", NULL }, /* divides by a factor, then multiplies with it */
    { "attention_softmax_in_fp32", NULL },
    { "fp32_residual_connection", NULL },
    { "bias_dropout_fusion", NULL },
    { "original_rope", NULL },     /* unused by the code */
    { "prefix_projection", NULL }, /* of pre_seq_len */
    { "num_hidden_layers", NULL }, /* num_layers again, for transformers */
    { "vocab_size", NULL },        /* padded_vocab_size is used */
    { NULL, NULL },
};

static void chatglm_describe_hf(struct model_desc *d, struct config *c)
{
    struct attn_desc *a = &d->kinds[0].attn;
    int n_bits = config_int_or(c, "quantization_bit", 0, 32,
                               0); /* the checkpoint's reader converts the matrices */
    if (n_bits != 0 && n_bits != 4 && n_bits != 8)
        config_unsupported(c, "quantization_bit", "a checkpoint of integers of other than 4 or 8 bits");
    if (config_int_or(c, "pre_seq_len", 0, LIMIT_CONTEXT, 0) != 0)
        config_unsupported(c, "pre_seq_len",
                           "P-Tuning (give the folder of the prefix to --lora, with the base model)");
    d->n_layers = config_int(c, "num_layers", 1, LIMIT_LAYERS);
    d->d_model = config_int(c, "hidden_size", 1, LIMIT_DIMENSION);
    a->n_heads = config_int(c, "num_attention_heads", 1, LIMIT_DIMENSION);
    a->n_kv_heads = config_int(c, "multi_query_group_num", 1, LIMIT_DIMENSION);
    a->head_dim = config_int_or(c, "kv_channels", 1, LIMIT_DIMENSION, d->d_model / a->n_heads);
    d->kinds[0].ffn.d_ff = config_int(c, "ffn_hidden_size", 1, LIMIT_DIMENSION);
    d->n_vocab = config_int(c, "padded_vocab_size", 1, LIMIT_VOCAB);
    d->n_ctx = config_int(c, "seq_length", 1, LIMIT_CONTEXT);
    d->norm_eps = (float)config_float(c, "layernorm_epsilon", 0, 1);
    a->rope_theta = 10000 * config_float_or(c, "rope_ratio", 1e-6, 1e9, 1);
    a->has_qkv_bias = config_bool_or(c, "add_qkv_bias", false);
    d->tied_output = config_bool_or(c, "tie_word_embeddings", false);
    a->rotary_dim = a->head_dim / 2;
}

static void chatglm_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    if (is_gguf) {
        describe_gguf(d, c);
        a->rotary_dim = config_int_or(c, "rope.dimension_count", 0, LIMIT_DIMENSION, a->head_dim / 2);
    } else {
        chatglm_describe_hf(d, c);
    }
    a->rope = ROPE_INTERLEAVED;
    d->kinds[0].ffn.activation = ACT_SILU;
}

/* ---- tokenizer and chat ---- */

static const char *const SPECIALS[] = { "[MASK]",   "[gMASK]",       "[sMASK]",
                                        "sop",      "eop",           "<|system|>",
                                        "<|user|>", "<|assistant|>", "<|observation|>" };

/* ChatGLM2 has the first five; its role tokens' rows are padding that text never reaches, so they
 * do no harm. */
static enum tutti_status extend_tokenizer(struct tokenizer *tok, const struct model_desc *desc,
                                          struct tutti_error *err)
{
    for (size_t i = 0; i < sizeof SPECIALS / sizeof *SPECIALS; i++) {
        int32_t id;
        if (tokenizer_n_pieces(tok) >= desc->n_vocab)
            return error_set(err, TUTTI_E_FORMAT,
                             "tokenizer.model: %d pieces leave no room for %s in a vocabulary of %d",
                             tokenizer_n_pieces(tok), SPECIALS[i], desc->n_vocab);
        enum tutti_status st = tokenizer_add_control(tok, SPECIALS[i], &id, err);
        if (st != TUTTI_OK)
            return st;
    }
    return TUTTI_OK;
}

static bool mentions(const json_t *object, const char *key, const char *what)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text && strstr(text, what);
}

static const char *chatglm_choose_chat(const struct model_desc *desc, const struct tokenizer *tok,
                                       const json_t *config, const json_t *tokenizer_config,
                                       const json_t *generation, const char *template)
{
    (void)desc, (void)generation;
    if (tokenizer_find_control(tok, "[gMASK]") < 0)
        return "";
    if (tokenizer_find_control(tok, "<|endoftext|>") >= 0)
        return "glm4";
    if (mentions(config, "tokenizer.ggml.pre", "chatglm-spm"))
        return "chatglm3";
    bool is_3 = mentions(config, "_name_or_path", "chatglm3") ||
                mentions(tokenizer_config, "name_or_path", "chatglm3") ||
                (template && strstr(template, "<|"));
    return is_3 ? "chatglm3" : "chatglm2";
}

const struct family FAMILY_CHATGLM = {
    .name = "chatglm",
    .gguf_architecture = "chatglm",
    .is_mine = chatglm_is_mine,
    .keys = KEYS,
    .code = "ChatGLM",
    .describe = chatglm_describe,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .ignored = IGNORED,
    .n_ignored = sizeof IGNORED / sizeof *IGNORED,
    .extend_tokenizer = extend_tokenizer,
    .choose_chat = chatglm_choose_chat,
    .defaults = family_glm_defaults,
    .text_prefix = family_glm_prefix,
};
