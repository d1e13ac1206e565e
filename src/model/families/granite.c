/* Granite 3, and the models of Granite 4 without Mamba's layers: LLaMA's layers with factors of the embedding, of
 * q . k, of every block's output and of the logits; and the variant with experts in every layer, with the weights of
 * a softmax over the chosen ones. GGUF stores q and k permuted for interleaved rotation, as for LLaMA. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct tensor_names LAYOUTS[] = {
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_GATE_UP),
};

/* Granite 4: what would be the shared expert is the only feed-forward block. */
static const struct tensor_names DENSE_LAYOUTS[] = {
    { NAMES_TRANSFORMERS_BUT_MLP, .of[SLOT_GATE_UP] = { "model.layers.%d.shared_mlp.input_linear.weight" },
      .of[SLOT_DOWN] = { "model.layers.%d.shared_mlp.output_linear.weight" } },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_GATE_UP),
};

#define MOE(name) "model.layers.%d.block_sparse_moe." name
static const struct tensor_names MOE_LAYOUTS[] = {
    { NAMES_TRANSFORMERS, .of[SLOT_ROUTER] = { MOE("router.layer.weight") },
      .of[SLOT_EXPERT_GATE_UP] = { MOE("input_linear.weight") },
      .of[SLOT_EXPERT_DOWN] = { MOE("output_linear.weight") } },
    { NAMES_TRANSFORMERS, .of[SLOT_ROUTER] = { MOE("router.weight") },
      .of[SLOT_EXPERT_GATE_UP] = { MOE("experts.gate_up_proj") },
      .of[SLOT_EXPERT_DOWN] = { MOE("experts.down_proj") } },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_EXPERTS, .of[SLOT_ROUTER] = { "blk.%d.ffn_gate_inp.weight" }),
};

static const struct config_key MOE_KEYS[] = {
    { "output_router_logits", NULL },
    { "router_aux_loss_coef", NULL }, /* of training */
    CONFIG_WHOLE_HEADS,
    { NULL, NULL },
};

static const struct config_key DENSE_KEYS[] = {
    { "mamba_*", NULL }, /* of layers that it does not have, and the next ones */
    { "time_step_limit", NULL },
    { "num_experts_per_tok", NULL }, /* of experts that it does not have, and the next ones */
    { "output_router_logits", NULL },
    { "router_aux_loss_coef", NULL },
    { "init_method", NULL },
    { "normalization_function", "\"rmsnorm\"" },
    CONFIG_WHOLE_HEADS,
    { NULL, NULL },
};

#define GGUF_ROTATES                                                                                         \
    {                                                                                                        \
        "rope.scaling.finetuned", "true" /* false: no rotation */                                            \
    }

static const struct config_key GGUF_KEYS[] = {
    GGUF_ROTATES,
    { NULL, NULL },
};

/* llama.cpp's converter writes what Granite 4 says of layers and experts that it does not have. */
static const struct config_key DENSE_GGUF_KEYS[] = {
    GGUF_ROTATES,
    { "ssm.*", NULL },
    { "expert_count", "0" },
    { "expert_used_count", "0" },
    { "expert_shared_feed_forward_length", NULL }, /* also that of the only feed-forward block */
    { NULL, NULL },
};

static bool granite_is_mine(const json_t *config)
{
    return describe_has_type(config, "granite");
}

static bool granite_dense_is_mine(const json_t *config)
{
    return describe_has_type(config, "granitemoehybrid");
}

static bool granite_moe_is_mine(const json_t *config)
{
    return describe_has_type(config, "granitemoe");
}

/* A factor that is positive; key may be missing, then it is 1. */
static float factor(struct config *c, const char *key)
{
    return (float)config_float_or(c, key, 1e-6, 1e6, 1);
}

static void describe_any(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    static const struct transformers_defaults DEFAULTS = { 0, 0, 2048, 1e-6, 0 };
    if (is_gguf) {
        describe_gguf(d, c);
        a->rope = ROPE_INTERLEAVED;
    } else {
        describe_transformers(d, c, &DEFAULTS);
        a->has_qkv_bias = a->has_out_bias = config_bool_or(c, "attention_bias", false);
    }
    d->embedding_scale = factor(c, is_gguf ? "embedding_scale" : "embedding_multiplier");
    d->block_scale = factor(c, is_gguf ? "residual_scale" : "residual_multiplier");
    a->scale = factor(c, is_gguf ? "attention.scale" : "attention_multiplier");
    if (is_gguf && !config_has(c, "attention.scale")) /* as in llama.cpp */
        a->scale = (float)(1 / sqrt(a->head_dim));
    d->logit_scale = 1 / factor(c, is_gguf ? "logit_scale" : "logits_scaling");
}

static void granite_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    describe_any(d, c, is_gguf);
    if (is_gguf)
        return;
    d->kinds[0].ffn.has_bias = config_bool_or(c, "mlp_bias", false);
    describe_layer_types(d, c, 0, 0);
}

/* All layers must have attention, and none experts. */
static void granite_dense_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    const json_t *types = config_find(c, "layer_types");
    if (!types)
        types = config_find(c, "layers_block_type");
    describe_any(d, c, is_gguf);
    d->kinds[0].ffn.d_ff = config_int_or(c, "shared_intermediate_size", 1, LIMIT_DIMENSION, 1024);
    if (config_int_or(c, "num_local_experts", 0, LIMIT_EXPERTS, 8) > 0)
        config_unsupported(c, "num_local_experts", "more than 0");
    if (strcmp(config_string_or(c, "position_embedding_type", "null"), "rope") != 0)
        config_unsupported(c, "position_embedding_type", "another kind than \"rope\"");
    for (int i = 0; i < d->n_layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        if (!type || (strcmp(type, "attention") != 0 && strcmp(type, "full_attention") != 0))
            config_unsupported(c, "layer_types", "a layer without attention");
    }
}

static void granite_moe_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct routing *r = &d->kinds[0].ffn.experts.routing;
    if (is_gguf)
        describe_gguf_experts(d, c);
    granite_describe(d, c, is_gguf);
    if (!is_gguf) {
        r->n_experts = config_int_or(c, describe_either(c, "num_local_experts", "num_experts"), 1,
                                     LIMIT_EXPERTS, 8);
        r->n_chosen = config_int_or(c, "num_experts_per_tok", 1, LIMIT_EXPERTS, 2);
    }
    struct expert_desc experts = d->kinds[0].ffn.experts;
    experts.d_ff = d->kinds[0].ffn.d_ff;
    experts.routing.is_normed = true;
    describe_expert_layers(d, &experts, NULL);
}

static void put_factors(struct gguf_writer *w, const char *architecture, const struct model_desc *d)
{
    const struct {
        const char *name;
        float factor;
    } factors[] = { { "embedding_scale", d->embedding_scale },
                    { "residual_scale", d->block_scale },
                    { "attention.scale", d->kinds[0].attn.scale },
                    { "logit_scale", 1 / d->logit_scale } };
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        char key[64];
        snprintf(key, sizeof key, "%s.%s", architecture, factors[i].name);
        gguf_writer_f32(w, key, factors[i].factor);
    }
}

static void granite_put_metadata(struct gguf_writer *w, const struct model_desc *d)
{
    put_factors(w, "granite", d);
}

static void granite_moe_put_metadata(struct gguf_writer *w, const struct model_desc *d)
{
    const struct routing *r = &d->kinds[0].ffn.experts.routing;
    put_factors(w, "granitemoe", d);
    gguf_writer_u32(w, "granitemoe.expert_count", (uint32_t)r->n_experts);
    gguf_writer_u32(w, "granitemoe.expert_used_count", (uint32_t)r->n_chosen);
}

/* llama.cpp's graph has no biases. */
static const char *granite_moe_find_fault(const struct model_desc *d)
{
    return d->kinds[0].attn.has_qkv_bias ? "attention_bias: true" : NULL;
}

const struct family FAMILY_GRANITE = {
    .name = "granite",
    .gguf_architecture = "granite",
    .is_permuted_in_gguf = true,
    .scales_soft_prompts = true,
    .is_mine = granite_is_mine,
    .keys = CONFIG_KEYS_ROTARY,
    .gguf_keys = DENSE_GGUF_KEYS,
    .describe = granite_describe,
    .put_metadata = granite_put_metadata,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};

const struct family FAMILY_GRANITE_DENSE = {
    .name = "granitemoehybrid",
    .gguf_architecture = "granite",
    .is_permuted_in_gguf = true,
    .scales_soft_prompts = true,
    .is_mine = granite_dense_is_mine,
    .keys = DENSE_KEYS,
    .describe = granite_dense_describe,
    .put_metadata = granite_put_metadata,
    .layouts = DENSE_LAYOUTS,
    .n_layouts = sizeof DENSE_LAYOUTS / sizeof *DENSE_LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};

const struct family FAMILY_GRANITE_MOE = {
    .name = "granitemoe",
    .gguf_architecture = "granitemoe",
    .is_permuted_in_gguf = true,
    .has_experts = true,
    .scales_soft_prompts = true,
    .is_mine = granite_moe_is_mine,
    .keys = MOE_KEYS,
    .gguf_keys = GGUF_KEYS,
    .describe = granite_moe_describe,
    .put_metadata = granite_moe_put_metadata,
    .find_gguf_fault = granite_moe_find_fault,
    .layouts = MOE_LAYOUTS,
    .n_layouts = sizeof MOE_LAYOUTS / sizeof *MOE_LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
