/* A made-up family: LLaMA's layers with other names of keys and tensors, and fused q, k, v. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

static const struct tensor_names LAYOUTS[] = {
    { .of[SLOT_EMBEDDING] = { "tokens.weight" },
      .of[SLOT_OUTPUT] = { "head.weight" },
      .of[SLOT_OUTPUT_NORM] = { "norm.weight" },
      .of[SLOT_ATTN_NORM] = { "blocks.%d.norm1.weight" },
      .of[SLOT_QKV] = { "blocks.%d.qkv.weight" },
      .of[SLOT_ATTN_OUT] = { "blocks.%d.out.weight" },
      .of[SLOT_FFN_NORM] = { "blocks.%d.norm2.weight" },
      .of[SLOT_GATE_UP] = { "blocks.%d.gate.weight", "blocks.%d.up.weight" },
      .of[SLOT_DOWN] = { "blocks.%d.down.weight" } },
    { NAMES_GGUF, NAMES_GGUF_FUSED_QKV, NAMES_GGUF_GATE_UP },
};

static bool is_mine(const json_t *config)
{
    return describe_has_type(config, "sketch");
}

static void describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    struct ffn_desc *f = &d->kinds[0].ffn;
    if (is_gguf) {
        describe_gguf(d, c);
    } else {
        d->n_layers = config_int(c, "blocks", 1, LIMIT_LAYERS);
        d->d_model = config_int(c, "width", 1, LIMIT_DIMENSION);
        d->n_vocab = config_int(c, "vocab_size", 1, LIMIT_VOCAB);
        d->n_ctx = config_int(c, "context", 1, LIMIT_CONTEXT);
        d->norm_eps = (float)config_float(c, "epsilon", 0, 1);
        a->n_heads = config_int(c, "heads", 1, LIMIT_DIMENSION);
        a->n_kv_heads = config_int(c, "kv_heads", 1, LIMIT_DIMENSION);
        a->head_dim = a->rotary_dim = d->d_model / a->n_heads;
        a->rope_theta = config_float(c, "theta", 1, 1e9);
        f->d_ff = config_int(c, "hidden", 1, LIMIT_DIMENSION);
    }
    a->rope = ROPE_HALF;
    f->activation = ACT_SILU;
}

const struct family FAMILY_SKETCH = {
    .name = "sketch",
    .gguf_architecture = "sketch",
    .is_mine = is_mine,
    .describe = describe,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .defaults = family_glm_defaults,
    .text_prefix = family_no_prefix,
};
