/* GLM-4 in transformers' layouts: "glm" (GLM-4-9B), and "glm4" (the 0414 series) with norms behind both blocks as well.
 * LLaMA's names, but ChatGLM's interleaved rotary positions on a part of each head, and gate and up in one tensor. */
#include "model/describe.h"

#define HF_LAYER "model.layers.%d."

static const struct tensor_names GLM_LAYOUTS[] = {
    {
        .embedding = "model.embed_tokens.weight",
        .output = "lm_head.weight",
        .output_norm = "model.norm.weight",
        .attn_norm = HF_LAYER "input_layernorm.weight",
        .ffn_norm = HF_LAYER "post_attention_layernorm.weight",
        .qkv = { HF_LAYER "self_attn.q_proj.weight", HF_LAYER "self_attn.k_proj.weight",
                 HF_LAYER "self_attn.v_proj.weight" },
        .attn_out = HF_LAYER "self_attn.o_proj.weight",
        .gate_up = { HF_LAYER "mlp.gate_up_proj.weight" },
        .down = HF_LAYER "mlp.down_proj.weight",
    },
    {
        .embedding = "token_embd.weight",
        .output = "output.weight",
        .output_norm = "output_norm.weight",
        .attn_norm = "blk.%d.attn_norm.weight",
        .ffn_norm = "blk.%d.ffn_norm.weight",
        .qkv = { "blk.%d.attn_q.weight", "blk.%d.attn_k.weight", "blk.%d.attn_v.weight" },
        .attn_out = "blk.%d.attn_output.weight",
        .gate_up = { "blk.%d.ffn_up.weight" },
        .down = "blk.%d.ffn_down.weight",
        .is_gguf = true,
    },
};

static const struct tensor_names GLM4_LAYOUTS[] = {
    {
        .embedding = "model.embed_tokens.weight",
        .output = "lm_head.weight",
        .output_norm = "model.norm.weight",
        .attn_norm = HF_LAYER "input_layernorm.weight",
        .attn_post_norm = HF_LAYER "post_self_attn_layernorm.weight",
        .ffn_norm = HF_LAYER "post_attention_layernorm.weight",
        .ffn_post_norm = HF_LAYER "post_mlp_layernorm.weight",
        .qkv = { HF_LAYER "self_attn.q_proj.weight", HF_LAYER "self_attn.k_proj.weight",
                 HF_LAYER "self_attn.v_proj.weight" },
        .attn_out = HF_LAYER "self_attn.o_proj.weight",
        .gate_up = { HF_LAYER "mlp.gate_up_proj.weight" },
        .down = HF_LAYER "mlp.down_proj.weight",
    },
    {
        .embedding = "token_embd.weight",
        .output = "output.weight",
        .output_norm = "output_norm.weight",
        .attn_norm = "blk.%d.attn_norm.weight",
        .attn_post_norm = "blk.%d.post_attention_norm.weight",
        .ffn_norm = "blk.%d.ffn_norm.weight",
        .ffn_post_norm = "blk.%d.post_ffw_norm.weight",
        .qkv = { "blk.%d.attn_q.weight", "blk.%d.attn_k.weight", "blk.%d.attn_v.weight" },
        .attn_out = "blk.%d.attn_output.weight",
        .gate_up = { "blk.%d.ffn_up.weight" },
        .down = "blk.%d.ffn_down.weight",
        .is_gguf = true,
    },
};

static const char *const IGNORED[] = { "rotary_emb.inv_freq" };

static bool is_glm(const json_t *config)
{
    return describe_has_type(config, "glm");
}

static bool is_glm4(const json_t *config)
{
    return describe_has_type(config, "glm4");
}

static void describe_glm(struct model_desc *d, struct config *c, bool is_gguf)
{
    if (is_gguf)
        describe_gguf(d, c);
    else
        describe_transformers(d, c);
    d->rope = ROPE_INTERLEAVED;
    if (is_gguf)
        return;
    d->has_qkv_bias = config_bool_or(c, "attention_bias", true);
    d->head_dim = config_int_or(c, "head_dim", 1, LIMIT_DIMENSION, 128);
    const char *nested = "rope_parameters.partial_rotary_factor";
    const char *key = config_find(c, nested) ? nested : "partial_rotary_factor";
    d->rotary_dim = (int)(d->head_dim * config_float_or(c, key, 0, 1, 0.5));
}

static void describe_glm4(struct model_desc *d, struct config *c, bool is_gguf)
{
    describe_glm(d, c, is_gguf);
    d->has_post_norms = true;
    if (is_gguf && config_find(c, "rope.dimension_sections"))
        config_unsupported(c, "rope.dimension_sections", "rotation by several positions");
}

/* Reading a GGUF file of architecture "chatglm" is the business of chatglm.c, whose layouts hold these names too. */
const struct family FAMILY_GLM = {
    .name = "glm",
    .gguf_architecture = "chatglm",
    .is_mine = is_glm,
    .describe = describe_glm,
    .layouts = GLM_LAYOUTS,
    .n_layouts = sizeof GLM_LAYOUTS / sizeof *GLM_LAYOUTS,
    .ignored = IGNORED,
    .n_ignored = sizeof IGNORED / sizeof *IGNORED,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};

const struct family FAMILY_GLM4 = {
    .name = "glm4",
    .gguf_architecture = "glm4",
    .is_mine = is_glm4,
    .describe = describe_glm4,
    .layouts = GLM4_LAYOUTS,
    .n_layouts = sizeof GLM4_LAYOUTS / sizeof *GLM4_LAYOUTS,
    .ignored = IGNORED,
    .n_ignored = sizeof IGNORED / sizeof *IGNORED,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
