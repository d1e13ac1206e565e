/* GPT-NeoX and Pythia: attention and feed-forward layer in parallel, each with a norm of its own, or
 * sequential; LayerNorm, biases, partial rotary positions, q, k and v stored by head. GGUF
 * stores them one after the other. */
#include "model/description/describe.h"
#include "model/families/names.h"

#include <stdio.h>

#define LAYER "gpt_neox.layers.%d."
#define HF_NAMES(output)                                                                                     \
    {                                                                                                        \
        .of[SLOT_EMBEDDING] = { "gpt_neox.embed_in.weight" }, .of[SLOT_OUTPUT] = { output },                 \
        .of[SLOT_OUTPUT_NORM] = { "gpt_neox.final_layer_norm.weight" },                                      \
        .of[SLOT_ATTN_NORM] = { LAYER "input_layernorm.weight" },                                            \
        .of[SLOT_FFN_NORM] = { LAYER "post_attention_layernorm.weight" },                                    \
        .of[SLOT_QKV] = { LAYER "attention.query_key_value.weight" },                                        \
        .of[SLOT_ATTN_OUT] = { LAYER "attention.dense.weight" },                                             \
        .of[SLOT_GATE_UP] = { LAYER "mlp.dense_h_to_4h.weight" },                                            \
        .of[SLOT_DOWN] = { LAYER "mlp.dense_4h_to_h.weight" }, .is_by_head = true                            \
    }

static const struct tensor_names LAYOUTS[] = {
    HF_NAMES("embed_out.weight"),
    HF_NAMES("lm_head.weight"),
    { NAMES_GGUF, NAMES_GGUF_FUSED_QKV, NAMES_GGUF_UP },
};

static const char *const IGNORED[] = { ".attention.bias" }; /* the causal mask */

static bool gpt_neox_is_mine(const json_t *config)
{
    return describe_has_type(config, "gpt_neox");
}

static const struct config_key KEYS[] = {
    { "num_key_value_heads", "null" },
    { NULL, NULL },
};

/* Whether the object of rotary settings that is used has the setting. */
static bool has_inner(struct config *c, const char *name)
{
    char key[64];
    bool has_old = config_has_object(c, "rope_scaling");
    snprintf(key, sizeof key, "%s.%s", has_old ? "rope_scaling" : "rope_parameters", name);
    return config_find(c, key);
}

/* The class has names of its own for these settings at top level, and does not read the usual ones. */
static void expect_own_names(const struct attn_desc *a, struct config *c,
                             const struct transformers_defaults *defaults)
{
    if (!has_inner(c, "rope_theta") && a->rope_theta != defaults->rope_theta)
        config_unsupported(c, "rope_theta", "another number than rotary_emb_base's (10000 without it)");
    if (!has_inner(c, "partial_rotary_factor") && a->rotary_dim != (int)(a->head_dim * defaults->rotary_part))
        config_unsupported(c, "partial_rotary_factor", "another number than rotary_pct's (0.25 without it)");
}

static void gpt_neox_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    struct ffn_desc *f = &d->kinds[0].ffn;
    d->norm = NORM_LAYER;
    f->has_gate = false;
    a->has_qkv_bias = a->has_out_bias = f->has_bias = true;
    if (is_gguf) {
        describe_gguf(d, c);
        a->rope = ROPE_HALF;
        describe_gguf_activation(d, c);
    } else {
        const struct transformers_defaults defaults = {
            .n_ctx = 2048,
            .norm_eps = 1e-5,
            .norm_key = "layer_norm_eps",
            /* Older keys: rope_parameters and rope_scaling have priority. */
            .rope_theta = config_float_or(c, "rotary_emb_base", 1e-6, 1e12, 10000),
            .rotary_part = config_float_or(c, "rotary_pct", 1e-6, 1, 0.25),
            .activation = ACT_GELU_ERF,
        };
        describe_transformers(d, c, &defaults);
        expect_own_names(a, c, &defaults);
        a->has_qkv_bias = a->has_out_bias = config_bool_or(c, "attention_bias", true);
    }
    d->ffn_place = config_bool_or(c, "use_parallel_residual", true) ? FFN_PARALLEL : FFN_SEQUENTIAL;
}

static const char *gpt_neox_find_gguf_fault(const struct model_desc *d)
{
    if (!d->kinds[0].attn.has_qkv_bias)
        return "attention_bias: false";
    return d->tied_output ? "tie_word_embeddings: true" : NULL;
}

static void gpt_neox_put_metadata(struct gguf_writer *w, const struct model_desc *d)
{
    gguf_writer_bool(w, "gptneox.use_parallel_residual", d->ffn_place == FFN_PARALLEL);
    describe_put_activation(w, "gptneox", d);
}

const struct family FAMILY_GPT_NEOX = {
    .name = "gpt_neox",
    .gguf_architecture = "gptneox",
    .is_mine = gpt_neox_is_mine,
    .keys = KEYS,
    .put_metadata = gpt_neox_put_metadata,
    .find_gguf_fault = gpt_neox_find_gguf_fault,
    .ignored = IGNORED,
    .n_ignored = sizeof IGNORED / sizeof *IGNORED,
    .describe = gpt_neox_describe,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
