/* Falcon with one head of keys and values (7B): attention and feed-forward layer in parallel on one
 * normed input, LayerNorm, no biases, GELU; q, k, v in one tensor. */
#include "model/description/describe.h"
#include "model/families/names.h"

#include <string.h>

#define LAYER "transformer.h.%d."
static const struct tensor_names LAYOUTS[] = {
    { .of[SLOT_EMBEDDING] = { "transformer.word_embeddings.weight" },
      .of[SLOT_OUTPUT] = { "lm_head.weight" },
      .of[SLOT_OUTPUT_NORM] = { "transformer.ln_f.weight" },
      .of[SLOT_ATTN_NORM] = { LAYER "input_layernorm.weight" },
      .of[SLOT_QKV] = { LAYER "self_attention.query_key_value.weight" },
      .of[SLOT_ATTN_OUT] = { LAYER "self_attention.dense.weight" },
      .of[SLOT_GATE_UP] = { LAYER "mlp.dense_h_to_4h.weight" },
      .of[SLOT_DOWN] = { LAYER "mlp.dense_4h_to_h.weight" } },
    { NAMES_GGUF, NAMES_GGUF_FUSED_QKV, NAMES_GGUF_UP },
};

#define OWN_ACTIVATION_KEY "hidden_act" /* tutti's own in GGUF, where llama.cpp computes GELU by tanh */

static bool falcon_is_mine(const json_t *config)
{
    return describe_has_type(config, "falcon");
}

static const struct config_key KEYS[] = {
    { "new_decoder_architecture", "false" }, /* 40B and 180B store q, k, v by group, with two norms */
    { "multi_query", "true" },
    { "parallel_attn", "true" },
    { "alibi", "false" },
    { "num_ln_in_parallel_attn", "null" },
    { "apply_residual_connection_post_layernorm", "false" },
    { "partial_rotary_factor", "1.0" },
    { NULL, NULL },
};

static void falcon_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    struct ffn_desc *f = &d->kinds[0].ffn;
    d->norm = NORM_LAYER;
    d->ffn_place = FFN_PARALLEL_ONE_NORM;
    f->has_gate = false;
    if (is_gguf) {
        describe_gguf(d, c);
        a->rope = ROPE_HALF;
        f->activation = describe_activation(c, OWN_ACTIVATION_KEY, "gelu_new", ACTIVATIONS_WITHOUT_GATE);
        return;
    }
    d->n_layers = config_int(c, describe_either(c, "num_hidden_layers", "n_layer"), 1, LIMIT_LAYERS);
    d->d_model = config_int(c, describe_either(c, "hidden_size", "n_embed"), 1, LIMIT_DIMENSION / 4);
    a->n_heads = config_int(c, describe_either(c, "num_attention_heads", "n_head"), 1, LIMIT_DIMENSION);
    if (config_find(c, "num_kv_heads"))
        config_skip(c, "num_kv_heads"); /* of the other architecture; this one has one */
    a->n_kv_heads = 1;
    a->head_dim = d->d_model / a->n_heads;
    f->d_ff = config_int_or(c, "ffn_hidden_size", 1, LIMIT_DIMENSION, 4 * d->d_model);
    d->n_vocab = config_int(c, "vocab_size", 1, LIMIT_VOCAB);
    d->n_ctx = config_int_or(c, "max_position_embeddings", 1, LIMIT_CONTEXT, 2048);
    d->norm_eps = (float)config_float_or(c, "layer_norm_epsilon", 0, 1, 1e-5);
    d->tied_output = config_bool_or(c, "tie_word_embeddings", true);
    f->activation = describe_activation(c, "activation", "gelu", ACTIVATIONS_WITHOUT_GATE);
    a->has_qkv_bias = a->has_out_bias = f->has_bias = config_bool_or(c, "bias", false);
    a->rope = ROPE_HALF;
    a->rotary_dim = a->head_dim;
    a->rope_theta = config_float_or(c, "rope_theta", 1e-6, 1e12, 10000);
    if (a->head_dim * a->n_heads != d->d_model)
        config_unsupported(c, "num_attention_heads", "a width that is no multiple of the heads");
}

static const char *falcon_find_gguf_fault(const struct model_desc *d)
{
    return d->kinds[0].ffn.has_bias ? "bias: true" : NULL;
}

static void falcon_put_metadata(struct gguf_writer *w, const struct model_desc *d)
{
    static const char *const NAMES[] = {
        [ACT_GELU_SIGMOID] = "quick_gelu", [ACT_GELU_ERF] = "gelu", [ACT_RELU] = "relu"
    };
    if (d->kinds[0].ffn.activation == ACT_GELU_TANH)
        return;
    const char *name = NAMES[d->kinds[0].ffn.activation];
    gguf_writer_string(w, "falcon." OWN_ACTIVATION_KEY, name, strlen(name));
}

const struct family FAMILY_FALCON = {
    .name = "falcon",
    .gguf_architecture = "falcon",
    .is_mine = falcon_is_mine,
    .keys = KEYS,
    .code = "Falcon",
    .put_metadata = falcon_put_metadata,
    .find_gguf_fault = falcon_find_gguf_fault,
    .describe = falcon_describe,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
