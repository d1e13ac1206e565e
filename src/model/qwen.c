/* Qwen2 and Qwen2.5: LLaMA's block with biases on q, k, v. GGUF keeps q and k for half-split rotation. */
#include "model/describe.h"

static const struct tensor_names LAYOUTS[] = {
    {
        .embedding = "model.embed_tokens.weight",
        .output = "lm_head.weight",
        .output_norm = "model.norm.weight",
        .attn_norm = "model.layers.%d.input_layernorm.weight",
        .ffn_norm = "model.layers.%d.post_attention_layernorm.weight",
        .qkv = { "model.layers.%d.self_attn.q_proj.weight", "model.layers.%d.self_attn.k_proj.weight",
                 "model.layers.%d.self_attn.v_proj.weight" },
        .attn_out = "model.layers.%d.self_attn.o_proj.weight",
        .gate_up = { "model.layers.%d.mlp.gate_proj.weight", "model.layers.%d.mlp.up_proj.weight" },
        .down = "model.layers.%d.mlp.down_proj.weight",
    },
    {
        .embedding = "token_embd.weight",
        .output = "output.weight",
        .output_norm = "output_norm.weight",
        .attn_norm = "blk.%d.attn_norm.weight",
        .ffn_norm = "blk.%d.ffn_norm.weight",
        .qkv = { "blk.%d.attn_q.weight", "blk.%d.attn_k.weight", "blk.%d.attn_v.weight" },
        .attn_out = "blk.%d.attn_output.weight",
        .gate_up = { "blk.%d.ffn_gate.weight", "blk.%d.ffn_up.weight" },
        .down = "blk.%d.ffn_down.weight",
        .is_gguf = true,
    },
};

static const char *const IGNORED[] = { "rotary_emb.inv_freq" };

static bool is_qwen2(const json_t *config)
{
    return describe_has_type(config, "qwen2");
}

static void describe_qwen2(struct model_desc *d, struct config *c, bool is_gguf)
{
    if (is_gguf) {
        describe_gguf(d, c);
        d->rope = ROPE_HALF;
    } else {
        describe_transformers(d, c);
        /* Files give a window's size also where it is not used. */
        if (config_bool_or(c, "use_sliding_window", false))
            config_unsupported(c, "use_sliding_window", "a window of attention in some layers");
    }
    d->has_qkv_bias = true;
}

const struct family FAMILY_QWEN2 = {
    .name = "qwen2",
    .gguf_architecture = "qwen2",
    .is_mine = is_qwen2,
    .describe = describe_qwen2,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .ignored = IGNORED,
    .n_ignored = sizeof IGNORED / sizeof *IGNORED,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
