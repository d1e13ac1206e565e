/* Phi-1.5 and Phi-2: attention and feed-forward layer in parallel on one normed input, LayerNorm,
 * biases everywhere, also on the output matrix, partial rotary positions. */
#include "model/description/describe.h"
#include "model/families/names.h"

#define LAYER "model.layers.%d."
static const struct tensor_names LAYOUTS[] = {
    { .of[SLOT_EMBEDDING] = { "model.embed_tokens.weight" },
      .of[SLOT_OUTPUT] = { "lm_head.weight" },
      .of[SLOT_OUTPUT_NORM] = { "model.final_layernorm.weight" },
      .of[SLOT_ATTN_NORM] = { LAYER "input_layernorm.weight" },
      .of[SLOT_QKV] = { LAYER "self_attn.q_proj.weight", LAYER "self_attn.k_proj.weight",
                        LAYER "self_attn.v_proj.weight" },
      .of[SLOT_ATTN_OUT] = { LAYER "self_attn.dense.weight" },
      .of[SLOT_GATE_UP] = { LAYER "mlp.fc1.weight" },
      .of[SLOT_DOWN] = { LAYER "mlp.fc2.weight" } },
    { NAMES_GGUF, NAMES_GGUF_SPLIT_QKV, NAMES_GGUF_UP },
    { NAMES_GGUF, NAMES_GGUF_FUSED_QKV, NAMES_GGUF_UP },
};

static bool phi2_is_mine(const json_t *config)
{
    return describe_has_type(config, "phi");
}

static void phi2_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    struct ffn_desc *f = &d->kinds[0].ffn;
    static const struct transformers_defaults DEFAULTS = { .n_ctx = 2048,
                                                           .norm_eps = 1e-5,
                                                           .norm_key = "layer_norm_eps",
                                                           .rotary_part = 0.5,
                                                           .activation = ACT_GELU_TANH };
    d->norm = NORM_LAYER;
    d->ffn_place = FFN_PARALLEL_ONE_NORM;
    f->has_gate = false;
    if (is_gguf) {
        describe_gguf(d, c);
        a->rope = ROPE_HALF;
        f->activation = ACT_GELU_TANH;
    } else {
        describe_transformers(d, c, &DEFAULTS);
    }
    a->has_qkv_bias = a->has_out_bias = f->has_bias = d->has_output_bias = true;
}

static const char *phi2_find_gguf_fault(const struct model_desc *d)
{
    return d->kinds[0].ffn.activation == ACT_GELU_TANH ? NULL : "hidden_act: another than gelu_new";
}

const struct family FAMILY_PHI2 = {
    .name = "phi",
    .gguf_architecture = "phi2",
    .is_mine = phi2_is_mine,
    .code = "Phi",
    .find_gguf_fault = phi2_find_gguf_fault,
    .describe = phi2_describe,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
