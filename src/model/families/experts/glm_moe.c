/* GLM-4.5, 4.5-Air, 4.6, 4.7 and the language part of GLM-4.5V: half-split rotary positions on a part of
 * each head, and after the first layers experts: chosen by sigmoid scores with a correction bias, within
 * the best groups, next to a shared expert. A layer for multi-token prediction follows the others. */
#include "model/description/describe.h"
#include "model/families/names.h"

#define ROUTER                                                                                               \
    .of[SLOT_ROUTER] = { "model.layers.%d.mlp.gate.weight" },                                                \
    .of[SLOT_ROUTER_BIAS] = { "model.layers.%d.mlp.gate.e_score_correction_bias" }

static const struct tensor_names LAYOUTS[] = {
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP, ROUTER, NAMES_QK_NORMS, NAMES_MTP,
      NAMES_EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"), NAMES_SHARED("shared_experts") },
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP, ROUTER, NAMES_QK_NORMS, NAMES_MTP, NAMES_EXPERTS_MERGED,
      NAMES_SHARED("shared_experts") },
    LAYOUTS_GGUF(NAMES_GGUF_BUT_FFN_NORM, NAMES_GGUF_GATE_UP, NAMES_GGUF_EXPERTS, NAMES_GGUF_SHARED,
                 NAMES_GGUF_MTP, .of[SLOT_FFN_NORM] = { "blk.%d.post_attention_norm.weight" },
                 .of[SLOT_ROUTER] = { "blk.%d.ffn_gate_inp.weight" },
                 .of[SLOT_ROUTER_BIAS] = { "blk.%d.exp_probs_b.bias" }, NAMES_GGUF_QK_NORMS),
};

static const struct config_key KEYS[] = {
    { "output_router_logits", NULL },
    { "router_aux_loss_coef", NULL }, /* of training */
    { NULL, NULL },
};

/* The language part of GLM-4.5V. */
static bool is_of_vision(const json_t *config)
{
    return describe_has_type(config, "glm4v_moe_text");
}

static bool glm_moe_is_mine(const json_t *config)
{
    return describe_has_type(config, "glm4_moe") || is_of_vision(config);
}

static const struct config_key GGUF_KEYS[] = {
    { GGUF_IMAGE_SECTIONS, NULL },
    { NULL, NULL },
};

static void glm_moe_read_gguf(struct model_desc *d, struct config *c)
{
    struct expert_desc *e = &d->kinds[0].ffn.experts;
    describe_gguf_experts(d, c);
    describe_gguf(d, c);
    describe_gguf_image_sections(d, c);
    d->n_mtp_layers = config_int_or(c, "nextn_predict_layers", 0, d->n_layers - 1, 0);
    d->n_layers -= d->n_mtp_layers;
    e->d_ff = config_int(c, "expert_feed_forward_length", 1, LIMIT_DIMENSION);
    e->d_shared = describe_shared_width(config_int_or(c, "expert_shared_count", 0, LIMIT_EXPERTS, 0),
                                        e->d_ff);
    e->routing.scale = (float)config_float_or(c, "expert_weights_scale", 0, 1e6, 1);
    e->routing.is_normed = config_bool_or(c, "expert_weights_norm", false);
    enum { GATING_SIGMOID = 2 };
    if (config_int_or(c, "expert_gating_func", 0, INT32_MAX, GATING_SIGMOID) != GATING_SIGMOID)
        config_unsupported(c, "expert_gating_func", "another function than sigmoid (2)");
    e->routing.n_groups = config_int_or(c, "expert_group_count", 0, LIMIT_EXPERTS, 1);
    e->routing.n_chosen_groups = config_int_or(c, "expert_group_used_count", 0, LIMIT_EXPERTS, 1);
}

static void read_transformers(struct model_desc *d, struct config *c)
{
    static const struct transformers_defaults DEFAULTS = { 8, 0, 131072, 1e-5, 0.5 };
    static const struct transformers_defaults VISION_DEFAULTS = {
        .n_kv_heads = 8, .n_ctx = 65536, .norm_eps = 1e-5, .rotary_part = 0.5, .has_image_sections = true
    };
    struct expert_desc *e = &d->kinds[0].ffn.experts;
    struct attn_desc *a = &d->kinds[0].attn;
    bool has_vision = is_of_vision(c->root);
    describe_transformers(d, c, has_vision ? &VISION_DEFAULTS : &DEFAULTS);
    describe_layer_types(d, c, 0, 0);
    describe_mtp(d, c);
    a->has_qkv_bias = config_bool_or(c, "attention_bias", has_vision);
    a->has_qk_norm = config_bool_or(c, "use_qk_norm", false);
    if (has_vision && a->has_qk_norm)
        config_unsupported(c, "use_qk_norm", "norms of heads in a glm4v_moe model");
    const char *n = describe_either(c, "n_routed_experts", "num_local_experts");
    e->routing.n_experts = config_int_or(c, n, 1, LIMIT_EXPERTS, 128);
    e->routing.n_chosen = config_int_or(c, "num_experts_per_tok", 1, LIMIT_EXPERTS, 8);
    e->routing.is_normed = config_bool_or(c, "norm_topk_prob", true);
    e->routing.scale = (float)config_float_or(c, "routed_scaling_factor", 1e-6, 1e6, 1);
    e->routing.n_groups = config_int_or(c, "n_group", 1, LIMIT_EXPERTS, 1);
    e->routing.n_chosen_groups = config_int_or(c, "topk_group", 1, LIMIT_EXPERTS, 1);
    const struct routing *r = &e->routing;
    if (r->n_chosen_groups > r->n_groups)
        config_unsupported(c, "topk_group", "a number of groups above n_group");
    else if (r->n_chosen > r->n_chosen_groups * (r->n_experts / r->n_groups))
        config_unsupported(c, "num_experts_per_tok", "a number of experts above that of topk_group groups");
    e->d_ff = config_int_or(c, "moe_intermediate_size", 1, LIMIT_DIMENSION, 1408);
    e->d_shared = describe_shared_width(config_int_or(c, "n_shared_experts", 0, LIMIT_EXPERTS, 1), e->d_ff);
    e->has_choice_bias = true;
}

static void glm_moe_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    if (is_gguf)
        glm_moe_read_gguf(d, c);
    else
        read_transformers(d, c);
    struct expert_desc e = d->kinds[0].ffn.experts;
    e.routing.kind = ROUTE_SIGMOID;
    e.routing.group_best = 2;
    d->kinds[0].ffn.experts = (struct expert_desc){ 0 };
    d->kinds[0].attn.rope = ROPE_HALF;
    int n_dense = is_gguf ? config_int_or(c, "leading_dense_block_count", 0, LIMIT_LAYERS, 0)
                          : config_int_or(c, "first_k_dense_replace", 0, LIMIT_LAYERS, 1);
    describe_first_dense(d, &e, n_dense);
}

/* GGUF has no keys for these: they follow from the tensors. */
static void glm_moe_find_parts(struct model_desc *d, const struct checkpoint *ck)
{
    bool has_norms = checkpoint_find(ck, "blk.0.attn_q_norm.weight");
    for (int i = 0; i < d->n_layers; i++)
        d->kinds[d->kind_of[i]].attn.has_qk_norm = has_norms;
    describe_find_choice_bias(d, ck);
}

static void glm_moe_put_metadata(struct gguf_writer *w, const struct model_desc *d)
{
    const struct expert_desc *e = &describe_find_kind(d, true)->ffn.experts;
    const struct routing *r = &e->routing;
    gguf_writer_u32(w, "glm4moe.expert_count", (uint32_t)r->n_experts);
    gguf_writer_u32(w, "glm4moe.expert_used_count", (uint32_t)r->n_chosen);
    gguf_writer_u32(w, "glm4moe.expert_feed_forward_length", (uint32_t)e->d_ff);
    gguf_writer_u32(w, "glm4moe.expert_shared_count", (uint32_t)(e->d_shared / e->d_ff));
    gguf_writer_u32(w, "glm4moe.expert_gating_func", 2);
    gguf_writer_u32(w, "glm4moe.leading_dense_block_count", (uint32_t)describe_count_dense(d));
    gguf_writer_f32(w, "glm4moe.expert_weights_scale", r->scale);
    gguf_writer_bool(w, "glm4moe.expert_weights_norm", r->is_normed);
    gguf_writer_u32(w, "glm4moe.expert_group_count", (uint32_t)r->n_groups);
    gguf_writer_u32(w, "glm4moe.expert_group_used_count", (uint32_t)r->n_chosen_groups);
}

const struct family FAMILY_GLM4_MOE = {
    .name = "glm4_moe",
    .gguf_architecture = "glm4moe",
    .has_experts = true,
    .has_first_dense = true,
    .is_mine = glm_moe_is_mine,
    .keys = KEYS,
    .gguf_keys = GGUF_KEYS,
    .describe = glm_moe_describe,
    .find_parts = glm_moe_find_parts,
    .put_metadata = glm_moe_put_metadata,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_glm_prefix,
};
