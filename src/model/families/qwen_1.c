/* Qwen, the first generation (QWenLMHeadModel): LLaMA's layers under names of their own, with biases on q, k, v in one tensor. Of w1
 * and w2 the second is activated. GGUF has the same tensors and, as feed_forward_length, the width of both together.
 *
 * Beyond seq_length, the authors' code changes the frequencies with each sequence's length (use_dynamic_ntk) and multiplies queries
 * by a logarithm of their position (use_logn_attn). The context ends there, so neither has an effect. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

#include <string.h>

#define LAYER "transformer.h.%d."
static const struct tensor_names LAYOUTS[] = {
    { .of[SLOT_EMBEDDING] = { "transformer.wte.weight" },
      .of[SLOT_OUTPUT] = { "lm_head.weight" },
      .of[SLOT_OUTPUT_NORM] = { "transformer.ln_f.weight" },
      .of[SLOT_ATTN_NORM] = { LAYER "ln_1.weight" },
      .of[SLOT_FFN_NORM] = { LAYER "ln_2.weight" },
      .of[SLOT_QKV] = { LAYER "attn.c_attn.weight" },
      .of[SLOT_ATTN_OUT] = { LAYER "attn.c_proj.weight" },
      .of[SLOT_GATE_UP] = { LAYER "mlp.w2.weight", LAYER "mlp.w1.weight" },
      .of[SLOT_DOWN] = { LAYER "mlp.c_proj.weight" } },
    { NAMES_GGUF, NAMES_GGUF_GATE_UP, NAMES_GGUF_FUSED_QKV },
};

static const char *const IGNORED[] = { ".attn.bias" };

static const struct config_key KEYS[] = {
    { "rotary_pct", "1.0" },
    { "pos_emb", "\"rotary\"" },
    { "activation", "\"swiglu\"" },
    { "apply_residual_connection_post_layernorm", "false" },
    { "scale_attn_weights", "true" },
    { "bias_dropout_fusion", NULL }, /* how programs run it; so are the next ones */
    { "softmax_in_fp32", NULL },
    { "bf16", NULL },
    { "fp16", NULL },
    { "fp32", NULL },
    { "onnx_safe", NULL },
    { "use_cache_kernel", NULL },
    { "use_cache_quantization", "false" },
    { "use_dynamic_ntk", NULL }, /* beyond the context */
    { "use_logn_attn", NULL },
    { "max_position_embeddings", NULL },
    { "n_positions", NULL },
    { "padded_vocab_size", NULL }, /* vocab_size has the padding, too */
    { NULL, NULL },
};

static bool qwen1_is_mine(const json_t *config)
{
    return describe_has_type(config, "qwen");
}

/* The first release has GPT-2's names. */
static void describe_folder(struct model_desc *d, struct config *c)
{
    struct attn_desc *a = &d->kinds[0].attn;
    const char *width = describe_either(c, "hidden_size", "n_embd"),
               *both = describe_either(c, "intermediate_size", "ffn_hidden_size");
    d->d_model = config_int_or(c, width, 1, LIMIT_DIMENSION, 4096);
    d->n_layers = config_int_or(c, describe_either(c, "num_hidden_layers", "n_layer"), 1, LIMIT_LAYERS, 32);
    a->n_heads = config_int_or(c, describe_either(c, "num_attention_heads", "n_head"), 1, LIMIT_DIMENSION,
                               32);
    a->n_kv_heads = a->n_heads;
    a->head_dim = config_int_or(c, "kv_channels", 1, LIMIT_DIMENSION, 128);
    if ((int64_t)a->head_dim * a->n_heads != d->d_model)
        config_unsupported(c, "kv_channels", "heads that are not as wide as the model together");
    int d_both = config_int_or(c, both, 2, LIMIT_DIMENSION, 22016);
    if (d_both % 2 != 0)
        config_unsupported(c, both, "an odd width of two matrices together");
    if (config_find(c, "n_inner"))
        config_unsupported(c, "n_inner", "a width in addition to ffn_hidden_size");
    d->kinds[0].ffn.d_ff = d_both / 2;
    d->n_vocab = config_int_or(c, "vocab_size", 1, LIMIT_VOCAB, 151936);
    d->n_ctx = config_int(c, "seq_length", 1, LIMIT_CONTEXT);
    d->norm_eps = (float)config_float_or(c, "layer_norm_epsilon", 0, 1, 1e-6);
    d->tied_output = config_bool_or(c, "tie_word_embeddings", false);
    a->rope = ROPE_HALF;
    a->rope_theta = config_float_or(c, "rotary_emb_base", 1e-6, 1e12, 10000);
    a->rotary_dim = a->head_dim;
    a->has_out_bias = d->kinds[0].ffn.has_bias = !config_bool_or(c, "no_bias", true);
    d->kinds[0].ffn.activation = ACT_SILU;
}

static void qwen1_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    a->has_qkv_bias = true;
    if (!is_gguf) {
        describe_folder(d, c);
        return;
    }
    describe_gguf(d, c);
    a->rope = ROPE_HALF;
    if (d->kinds[0].ffn.d_ff % 2 != 0)
        config_unsupported(c, "feed_forward_length", "an odd width of two matrices together");
    d->kinds[0].ffn.d_ff /= 2;
}

/* Base models have the same tokens of roles; only the chat models' generation_config.json names the format. */
static const char *qwen1_choose_chat(const struct model_desc *desc, const struct tokenizer *tok,
                                     const json_t *config, const json_t *tokenizer_config,
                                     const json_t *generation, const char *template)
{
    (void)desc, (void)tok, (void)config, (void)tokenizer_config;
    const char *format = json_string_value(json_object_get(generation, "chat_format"));
    return !template && format && strcmp(format, "chatml") == 0 ? "qwen2" : "";
}

/* llama.cpp's graph has no other biases. */
static const char *qwen1_find_gguf_fault(const struct model_desc *d)
{
    return d->kinds[0].ffn.has_bias ? "no_bias: false" : NULL;
}

const struct family FAMILY_QWEN1 = {
    .name = "qwen",
    .gguf_architecture = "qwen",
    .has_joint_width = true,
    .is_mine = qwen1_is_mine,
    .keys = KEYS,
    .code = "QWen",
    .describe = qwen1_describe,
    .find_gguf_fault = qwen1_find_gguf_fault,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .ignored = IGNORED,
    .n_ignored = sizeof IGNORED / sizeof *IGNORED,
    .choose_chat = qwen1_choose_chat,
    .text_prefix = family_no_prefix,
};
