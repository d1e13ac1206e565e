/* Seed-OSS: LLaMA's layers with biases on q, k, v, and heads apart from the model's width. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

static const struct tensor_names LAYOUTS[] = {
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP },
    LAYOUTS_GGUF(NAMES_GGUF_BUT_FFN_NORM, NAMES_GGUF_GATE_UP,
                 .of[SLOT_FFN_NORM] = { "blk.%d.post_attention_norm.weight" }),
};

static const struct config_key KEYS[] = {
    { "pretraining_tp", NULL },   /* of training */
    { "residual_dropout", NULL }, /* of training */
    CONFIG_WHOLE_HEADS,
    { NULL, NULL },
};

static bool seed_oss_is_mine(const json_t *config)
{
    return describe_has_type(config, "seed_oss");
}

static void seed_oss_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    static const struct transformers_defaults DEFAULTS = {
        .n_heads = 80, .n_kv_heads = 8, .head_dim = 128, .n_ctx = 524288, .n_vocab = 155136, .norm_eps = 1e-6
    };
    struct attn_desc *a = &d->kinds[0].attn;
    if (is_gguf) {
        describe_gguf(d, c); /* biases: by the tensors */
        a->rope = ROPE_HALF;
        return;
    }
    describe_transformers(d, c, &DEFAULTS);
    describe_layer_types(d, c, 0, 0);
    a->has_qkv_bias = config_bool_or(c, "attention_bias", true);
    a->has_out_bias = config_bool_or(c, "attention_out_bias", false);
    d->kinds[0].ffn.has_bias = config_bool_or(c, "mlp_bias", false);
}

/* llama.cpp's graph adds biases of q, k, v only. */
static const char *seed_oss_find_fault(const struct model_desc *d)
{
    if (d->kinds[0].attn.has_out_bias)
        return "attention_out_bias: true";
    return d->kinds[0].ffn.has_bias ? "mlp_bias: true" : NULL;
}

const struct family FAMILY_SEED_OSS = {
    .name = "seed_oss",
    .gguf_architecture = "seed_oss",
    .is_mine = seed_oss_is_mine,
    .keys = KEYS,
    .describe = seed_oss_describe,
    .find_gguf_fault = seed_oss_find_fault,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
