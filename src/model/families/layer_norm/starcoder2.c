/* StarCoder2: LayerNorm, biases, GELU without a gate, rotary positions, a window. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

#define LAYER "model.layers.%d."
static const struct tensor_names LAYOUTS[] = {
    { .of[SLOT_EMBEDDING] = { "model.embed_tokens.weight" },
      .of[SLOT_OUTPUT] = { "lm_head.weight" },
      .of[SLOT_OUTPUT_NORM] = { "model.norm.weight" },
      .of[SLOT_ATTN_NORM] = { LAYER "input_layernorm.weight" },
      .of[SLOT_FFN_NORM] = { LAYER "post_attention_layernorm.weight" },
      .of[SLOT_QKV] = { LAYER "self_attn.q_proj.weight", LAYER "self_attn.k_proj.weight",
                        LAYER "self_attn.v_proj.weight" },
      .of[SLOT_ATTN_OUT] = { LAYER "self_attn.o_proj.weight" },
      .of[SLOT_GATE_UP] = { LAYER "mlp.c_fc.weight" },
      .of[SLOT_DOWN] = { LAYER "mlp.c_proj.weight" } },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_UP),
};

static bool starcoder2_is_mine(const json_t *config)
{
    return describe_has_type(config, "starcoder2");
}

static const struct config_key KEYS[] = {
    { "layer_norm_epsilon", NULL }, /* norm_epsilon is used */
    { "mlp_type", "\"default\"" },
    { "norm_type", "\"layer_norm\"" },
    { "scale_attn_weights", "true" },
    { "attention_softmax_in_fp32", NULL }, /* the precision of scores, which are float32 here */
    { "scale_attention_softmax_in_fp32", NULL },
    { "partial_rotary_factor", "1.0" },
    { NULL, NULL },
};

static void starcoder2_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    struct ffn_desc *f = &d->kinds[0].ffn;
    static const struct transformers_defaults DEFAULTS = { .n_kv_heads = 2,
                                                           .n_ctx = 4096,
                                                           .norm_eps = 1e-5,
                                                           .norm_key = "norm_epsilon",
                                                           .is_tied = true,
                                                           .activation = ACT_GELU_TANH };
    d->norm = NORM_LAYER;
    f->has_gate = false;
    if (is_gguf) {
        describe_gguf(d, c);
        a->rope = ROPE_HALF;
        f->activation = ACT_GELU_TANH;
        a->has_qkv_bias = a->has_out_bias = f->has_bias = true;
        a->window = config_int_or(c, "attention.sliding_window", 0, INT32_MAX, 0);
        return;
    }
    describe_transformers(d, c, &DEFAULTS);
    a->has_qkv_bias = a->has_out_bias = f->has_bias = config_bool_or(c, "use_bias", true);
    a->window = config_int_or(c, "sliding_window", 1, INT32_MAX, 0);
}

static const char *starcoder2_find_gguf_fault(const struct model_desc *d)
{
    if (!d->kinds[0].ffn.has_bias)
        return "use_bias: false";
    return d->kinds[0].ffn.activation == ACT_GELU_TANH ? NULL : "hidden_act: another than gelu_pytorch_tanh";
}

const struct family FAMILY_STARCODER2 = {
    .name = "starcoder2",
    .gguf_architecture = "starcoder2",
    .is_mine = starcoder2_is_mine,
    .keys = KEYS,
    .find_gguf_fault = starcoder2_find_gguf_fault,
    .describe = starcoder2_describe,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
