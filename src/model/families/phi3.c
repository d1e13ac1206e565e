/* Phi-3 and Phi-4: LLaMA's layers with q, k, v and gate, up in one tensor each. The small models
 * rotate only a part of each head, those of long context by LongRoPE; the first ones have a window.
 * GGUF has the same fused tensors under the names of its own. */
#include "model/description/describe.h"
#include "model/families/names.h"

static const struct tensor_names LAYOUTS[] = {
    { NAMES_TRANSFORMERS_BUT_QKV, .of[SLOT_QKV] = { "model.layers.%d.self_attn.qkv_proj.weight" },
      .of[SLOT_GATE_UP] = { "model.layers.%d.mlp.gate_up_proj.weight" } },
    { NAMES_GGUF, NAMES_GGUF_FUSED_QKV, NAMES_GGUF_UP },
};

static bool phi3_is_mine(const json_t *config)
{
    return describe_has_type(config, "phi3");
}

static const struct config_key KEYS[] = {
    { "full_attn_mod", "1" },                     /* every layer has the window */
    { "interpolate_factor", NULL },               /* unused by the authors' code */
    { "original_max_position_embeddings", NULL }, /* without LongRoPE */
    { NULL, NULL },
};

static void phi3_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    static const struct transformers_defaults DEFAULTS = {
        .n_ctx = 4096, .norm_eps = 1e-5, .rotary_part = 1, .has_older_longrope = true, .original_n_ctx = 4096
    };
    if (is_gguf) {
        describe_gguf(d, c);
        a->rope = ROPE_HALF;
        a->window = config_int_or(c, "attention.sliding_window", 0, INT32_MAX, 0);
        return;
    }
    describe_transformers(d, c, &DEFAULTS);
    a->window = config_int_or(c, "sliding_window", 1, INT32_MAX, 0);
}

const struct family FAMILY_PHI3 = {
    .name = "phi3",
    .gguf_architecture = "phi3",
    .is_mine = phi3_is_mine,
    .keys = KEYS,
    .code = "Phi3",
    .describe = phi3_describe,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
