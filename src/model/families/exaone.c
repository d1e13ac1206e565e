/* EXAONE 3 and 3.5: LLaMA's layers under names of their own. GGUF stores q and k for half-split rotation. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

#define LAYER "transformer.h.%d."
static const struct tensor_names LAYOUTS[] = {
    { .of[SLOT_EMBEDDING] = { "transformer.wte.weight" },
      .of[SLOT_OUTPUT] = { "lm_head.weight" },
      .of[SLOT_OUTPUT_NORM] = { "transformer.ln_f.weight" },
      .of[SLOT_ATTN_NORM] = { LAYER "ln_1.weight" },
      .of[SLOT_FFN_NORM] = { LAYER "ln_2.weight" },
      .of[SLOT_QKV] = { LAYER "attn.attention.q_proj.weight", LAYER "attn.attention.k_proj.weight",
                        LAYER "attn.attention.v_proj.weight" },
      .of[SLOT_ATTN_OUT] = { LAYER "attn.attention.out_proj.weight" },
      .of[SLOT_GATE_UP] = { LAYER "mlp.c_fc_0.weight", LAYER "mlp.c_fc_1.weight" },
      .of[SLOT_DOWN] = { LAYER "mlp.c_proj.weight" } },
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_GATE_UP),
};

static const char *const IGNORED[] = { "attention.rotary.inv_freq" };

static const struct config_key KEYS[] = {
    { "embed_dropout", NULL }, /* of training */
    CONFIG_WHOLE_HEADS,
    { NULL, NULL },
};

static bool exaone_is_mine(const json_t *config)
{
    return describe_has_type(config, "exaone");
}

static void exaone_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    if (is_gguf) {
        describe_gguf(d, c);
        a->rope = ROPE_HALF;
        return;
    }
    const struct transformers_defaults defaults = {
        .n_kv_heads = 8,
        .n_ctx = 4096,
        .n_heads = 32,
        .n_vocab = 102400,
        .norm_eps = 1e-5,
        .rope_theta = 500000,
        .layers_key = describe_either(c, "num_layers", "num_hidden_layers"),
        .norm_key = describe_either(c, "layer_norm_epsilon", "rms_norm_eps"),
        .activation_key = describe_either(c, "activation_function", "hidden_act"),
    };
    describe_transformers(d, c, &defaults);
    describe_layer_types(d, c, 0, 0);
    a->has_qkv_bias = a->has_out_bias = config_bool_or(c, "attention_bias", false);
    d->kinds[0].ffn.has_bias = config_bool_or(c, "mlp_bias", false);
}

/* llama.cpp's graph has no biases. */
static const char *exaone_find_fault(const struct model_desc *d)
{
    if (d->kinds[0].attn.has_qkv_bias)
        return "attention_bias: true";
    return d->kinds[0].ffn.has_bias ? "mlp_bias: true" : NULL;
}

const struct family FAMILY_EXAONE = {
    .name = "exaone",
    .gguf_architecture = "exaone",
    .is_mine = exaone_is_mine,
    .keys = KEYS,
    .code = "Exaone",
    .describe = exaone_describe,
    .find_gguf_fault = exaone_find_fault,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .ignored = IGNORED,
    .n_ignored = sizeof IGNORED / sizeof *IGNORED,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
