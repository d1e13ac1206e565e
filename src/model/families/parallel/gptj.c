/* GPT-J: attention and feed-forward layer in parallel on one normed input, LayerNorm, interleaved
 * rotary positions on a part of each head, biases in the feed-forward layer and on the output only. */
#include "model/description/describe.h"
#include "model/families/names.h"

#define LAYER "transformer.h.%d."
static const struct tensor_names LAYOUTS[] = {
    { .of[SLOT_EMBEDDING] = { "transformer.wte.weight" },
      .of[SLOT_OUTPUT] = { "lm_head.weight" },
      .of[SLOT_OUTPUT_NORM] = { "transformer.ln_f.weight" },
      .of[SLOT_ATTN_NORM] = { LAYER "ln_1.weight" },
      .of[SLOT_QKV] = { LAYER "attn.q_proj.weight", LAYER "attn.k_proj.weight", LAYER "attn.v_proj.weight" },
      .of[SLOT_ATTN_OUT] = { LAYER "attn.out_proj.weight" },
      .of[SLOT_GATE_UP] = { LAYER "mlp.fc_in.weight" },
      .of[SLOT_DOWN] = { LAYER "mlp.fc_out.weight" } },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_UP),
};

/* The causal mask and the table of angles. */
static const char *const IGNORED[] = { ".attn.bias", ".attn.embed_positions" };

static bool gptj_is_mine(const json_t *config)
{
    return describe_has_type(config, "gptj");
}

static const struct config_key KEYS[] = {
    { "rotary", "true" },
    { "scale_attn_weights", "true" },
    { "summary_*", NULL }, /* of heads that classify */
    { NULL, NULL },
};

static void gptj_describe_hf(struct model_desc *d, struct config *c)
{
    struct attn_desc *a = &d->kinds[0].attn;
    struct ffn_desc *f = &d->kinds[0].ffn;
    d->n_layers = config_int(c, describe_either(c, "n_layer", "num_hidden_layers"), 1, LIMIT_LAYERS);
    d->d_model = config_int(c, describe_either(c, "n_embd", "hidden_size"), 1, LIMIT_DIMENSION / 4);
    a->n_heads = config_int(c, describe_either(c, "n_head", "num_attention_heads"), 1, LIMIT_DIMENSION);
    f->d_ff = config_int_or(c, "n_inner", 1, LIMIT_DIMENSION, 4 * d->d_model);
    d->n_vocab = config_int(c, "vocab_size", 1, LIMIT_VOCAB);
    d->n_ctx = config_int_or(c, describe_either(c, "n_positions", "max_position_embeddings"), 1,
                             LIMIT_CONTEXT, 2048);
    d->norm_eps = (float)config_float_or(c, "layer_norm_epsilon", 0, 1, 1e-5);
    d->tied_output = config_bool_or(c, "tie_word_embeddings", false);
    a->n_kv_heads = a->n_heads;
    a->head_dim = d->d_model / a->n_heads;
    a->rotary_dim = config_int_or(c, "rotary_dim", 0, a->head_dim, 64);
    a->rope_theta = 10000;
    f->activation = describe_activation(c, "activation_function", "gelu_new", ACTIVATIONS_WITHOUT_GATE);
    if (a->head_dim * a->n_heads != d->d_model)
        config_unsupported(c, "n_head", "a width that is no multiple of the heads");
}

static void gptj_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct ffn_desc *f = &d->kinds[0].ffn;
    d->norm = NORM_LAYER;
    d->ffn_place = FFN_PARALLEL_ONE_NORM;
    f->has_gate = false;
    if (is_gguf) {
        describe_gguf(d, c);
        f->activation = ACT_GELU_TANH;
    } else {
        gptj_describe_hf(d, c);
    }
    d->kinds[0].attn.rope = ROPE_INTERLEAVED;
    f->has_bias = d->has_output_bias = true;
}

static const char *gptj_find_gguf_fault(const struct model_desc *d)
{
    return d->kinds[0].ffn.activation == ACT_GELU_TANH ? NULL : "activation_function: another than gelu_new";
}

/* llama.cpp computes no architecture of this kind. */
const struct family FAMILY_GPTJ = {
    .name = "gptj",
    .gguf_architecture = "gpt-j",
    .is_mine = gptj_is_mine,
    .keys = KEYS,
    .find_gguf_fault = gptj_find_gguf_fault,
    .ignored = IGNORED,
    .n_ignored = sizeof IGNORED / sizeof *IGNORED,
    .describe = gptj_describe,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
