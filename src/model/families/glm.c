/* GLM-4 in transformers' layouts: "glm" (GLM-4-9B), and "glm4" (the 0414 series, and the language part of
 * GLM-4.1V) with norms also after both blocks. LLaMA's names, but ChatGLM's interleaved rotary positions on a part of each
 * head, and gate and up in one tensor. */
#include "model/description/describe.h"
#include "model/families/names.h"

static const struct tensor_names GLM_LAYOUTS[] = {
    { NAMES_TRANSFORMERS, .of[SLOT_GATE_UP] = { "model.layers.%d.mlp.gate_up_proj.weight" } },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_UP),
};

static const struct tensor_names GLM4_LAYOUTS[] = {
    { NAMES_TRANSFORMERS, .of[SLOT_GATE_UP] = { "model.layers.%d.mlp.gate_up_proj.weight" },
      .of[SLOT_ATTN_POST_NORM] = { "model.layers.%d.post_self_attn_layernorm.weight" },
      .of[SLOT_FFN_POST_NORM] = { "model.layers.%d.post_mlp_layernorm.weight" } },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_UP, NAMES_GGUF_POST_NORMS),
};

static bool is_glm(const json_t *config)
{
    return describe_has_type(config, "glm");
}

static bool is_glm4(const json_t *config)
{
    return describe_has_type(config, "glm4") || describe_has_type(config, "glm4v_text");
}

static void describe_glm(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    static const struct transformers_defaults DEFAULTS = { 2, 128, 131072, 1.5625e-7, 0.5 };
    if (is_gguf) {
        describe_gguf(d, c);
    } else {
        describe_transformers(d, c, &DEFAULTS);
        a->has_qkv_bias = config_bool_or(c, "attention_bias", true);
        describe_layer_types(d, c, 0, 0);
    }
    a->rope = ROPE_INTERLEAVED;
}

static const struct config_key GLM4_GGUF_KEYS[] = {
    { GGUF_IMAGE_SECTIONS, NULL },
    { NULL, NULL },
};

static void describe_glm4v(struct model_desc *d, struct config *c)
{
    static const struct transformers_defaults DEFAULTS = {
        .n_kv_heads = 2, .n_ctx = 32768, .norm_eps = 1e-5, .rotary_part = 1, .has_image_sections = true
    };
    describe_transformers(d, c, &DEFAULTS);
    d->kinds[0].attn.has_qkv_bias = config_bool_or(c, "attention_bias", true);
    d->kinds[0].attn.rope = ROPE_INTERLEAVED;
}

/* Files of GLM-4.1V that llama.cpp's converter wrote have sections, and q and k for half-split rotation. */
static void describe_glm4(struct model_desc *d, struct config *c, bool is_gguf)
{
    if (!is_gguf && describe_has_type(c->root, "glm4v_text"))
        describe_glm4v(d, c);
    else
        describe_glm(d, c, is_gguf);
    if (is_gguf)
        describe_gguf_image_sections(d, c);
    if (is_gguf && d->image_sections[0] > 0)
        d->kinds[0].attn.rope = ROPE_HALF;
    d->has_post_norms = true;
}

static void put_glm4(struct gguf_writer *w, const struct model_desc *d)
{
    if (d->kinds[0].attn.rope == ROPE_HALF)
        describe_put_image_sections(w, "glm4", d);
}

static bool has_turns(const struct tokenizer *tok)
{
    return tokenizer_find_control(tok, "[gMASK]") >= 0 && tokenizer_find_control(tok, "<|user|>") >= 0;
}

static const char *glm_choose_chat(const struct model_desc *desc, const struct tokenizer *tok,
                                   const json_t *config, const json_t *tokenizer_config,
                                   const json_t *generation, const char *template)
{
    (void)desc, (void)config, (void)tokenizer_config, (void)generation, (void)template;
    return has_turns(tok) ? "glm4" : "";
}

/* GGUF files of architecture "chatglm" are read by chatglm.c, whose layouts include these names. */
const struct family FAMILY_GLM = {
    .name = "glm",
    .gguf_architecture = "chatglm",
    .is_mine = is_glm,
    .describe = describe_glm,
    .layouts = GLM_LAYOUTS,
    .n_layouts = sizeof GLM_LAYOUTS / sizeof *GLM_LAYOUTS,
    .choose_chat = glm_choose_chat,
    .defaults = family_glm_defaults,
    .text_prefix = family_glm_prefix,
};

const struct family FAMILY_GLM4 = {
    .name = "glm4",
    .gguf_architecture = "glm4",
    .is_mine = is_glm4,
    .gguf_keys = GLM4_GGUF_KEYS,
    .describe = describe_glm4,
    .put_metadata = put_glm4,
    .layouts = GLM4_LAYOUTS,
    .n_layouts = sizeof GLM4_LAYOUTS / sizeof *GLM4_LAYOUTS,
    .choose_chat = glm_choose_chat,
    .defaults = family_glm_defaults,
    .text_prefix = family_glm_prefix,
};
