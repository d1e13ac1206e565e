/* Granite 3: LLaMA's layers with factors of the embedding, of q . k, of every block's output and of
 * the logits. GGUF stores q and k permuted for interleaved rotation, as for LLaMA. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

#include <math.h>

static const struct tensor_names LAYOUTS[] = {
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_GATE_UP),
};

static const char *const IGNORED[] = { "rotary_emb.inv_freq" };

static const struct config_key GGUF_KEYS[] = {
    { "rope.scaling.finetuned", "true" }, /* false: no rotation */
    { NULL, NULL },
};

static bool granite_is_mine(const json_t *config)
{
    return describe_has_type(config, "granite");
}

/* A factor that is positive; key may be missing, then it is 1. */
static float factor(struct config *c, const char *key)
{
    return (float)config_float_or(c, key, 1e-6, 1e6, 1);
}

static void granite_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    static const struct transformers_defaults DEFAULTS = { 0, 0, 2048, 1e-6, 0 };
    if (is_gguf) {
        describe_gguf(d, c);
        a->rope = ROPE_INTERLEAVED;
    } else {
        describe_transformers(d, c, &DEFAULTS);
        a->has_qkv_bias = a->has_out_bias = config_bool_or(c, "attention_bias", false);
        d->kinds[0].ffn.has_bias = config_bool_or(c, "mlp_bias", false);
        describe_layer_types(d, c, 0, 0);
    }
    d->embedding_scale = factor(c, is_gguf ? "embedding_scale" : "embedding_multiplier");
    d->block_scale = factor(c, is_gguf ? "residual_scale" : "residual_multiplier");
    a->scale = factor(c, is_gguf ? "attention.scale" : "attention_multiplier");
    if (is_gguf && !config_has(c, "attention.scale")) /* as in llama.cpp */
        a->scale = (float)(1 / sqrt(a->head_dim));
    d->logit_scale = 1 / factor(c, is_gguf ? "logit_scale" : "logits_scaling");
}

static void granite_put_metadata(struct gguf_writer *w, const struct model_desc *d)
{
    gguf_writer_f32(w, "granite.embedding_scale", d->embedding_scale);
    gguf_writer_f32(w, "granite.residual_scale", d->block_scale);
    gguf_writer_f32(w, "granite.attention.scale", d->kinds[0].attn.scale);
    gguf_writer_f32(w, "granite.logit_scale", 1 / d->logit_scale);
}

const struct family FAMILY_GRANITE = {
    .name = "granite",
    .gguf_architecture = "granite",
    .is_permuted_in_gguf = true,
    .scales_soft_prompts = true,
    .is_mine = granite_is_mine,
    .keys = CONFIG_KEYS_ROTARY,
    .gguf_keys = GGUF_KEYS,
    .describe = granite_describe,
    .put_metadata = granite_put_metadata,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .ignored = IGNORED,
    .n_ignored = sizeof IGNORED / sizeof *IGNORED,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
