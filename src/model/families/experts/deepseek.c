/* DeepSeek-V2, V3 and R1, Kimi-K2 and GLM-4.7-Flash: latent attention, and after the first layers experts
 * next to a shared one. V2 chooses experts by softmax; the others by sigmoid scores with a correction
 * bias, within the best groups. A layer for multi-token prediction may follow the others. */
#include "model/description/describe.h"
#include "model/families/names.h"
#include "tokenizer/json/byte_files.h"

#include <math.h>
#include <string.h>

#define NAMES_ROUTER                                                                                         \
    .of[SLOT_ROUTER] = { "model.layers.%d.mlp.gate.weight" },                                                \
    .of[SLOT_ROUTER_BIAS] = { "model.layers.%d.mlp.gate.e_score_correction_bias" }
#define NAMES_GGUF_ROUTER                                                                                    \
    .of[SLOT_ROUTER] = { "blk.%d.ffn_gate_inp.weight" }, .of[SLOT_ROUTER_BIAS] = { "blk.%d.exp_probs_b."     \
                                                                                   "bias" }

static const struct tensor_names LAYOUTS[] = {
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP, NAMES_LATENT, NAMES_ROUTER, NAMES_MTP,
      NAMES_EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"), NAMES_SHARED("shared_experts") },
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP, NAMES_LATENT, NAMES_ROUTER, NAMES_MTP,
      NAMES_EXPERTS_MERGED, NAMES_SHARED("shared_experts") },
    { NAMES_GGUF, NAMES_GGUF_LATENT, NAMES_GGUF_GATE_UP, NAMES_GGUF_ROUTER, NAMES_GGUF_EXPERTS,
      NAMES_GGUF_SHARED, .of[SLOT_K_UP] = { "blk.%d.attn_k_b.weight" },
      .of[SLOT_V_UP] = { "blk.%d.attn_v_b.weight" } },
    { NAMES_GGUF, NAMES_GGUF_LATENT, NAMES_GGUF_GATE_UP, NAMES_GGUF_ROUTER, NAMES_GGUF_EXPERTS_FUSED,
      NAMES_GGUF_SHARED, .of[SLOT_K_UP] = { "blk.%d.attn_k_b.weight" },
      .of[SLOT_V_UP] = { "blk.%d.attn_v_b.weight" }, .is_only_read = true },
    /* Written before llama.cpp absorbed the up-projections. */
    { NAMES_GGUF, NAMES_GGUF_LATENT, NAMES_GGUF_GATE_UP, NAMES_GGUF_ROUTER, NAMES_GGUF_EXPERTS,
      NAMES_GGUF_SHARED, .of[SLOT_K_UP] = { "blk.%d.attn_kv_b.weight" },
      .of[SLOT_V_UP] = { "blk.%d.attn_kv_b.weight" }, .has_fused_up = true },
};

#define KEYS_ALL                                                                                             \
    { "output_router_logits", NULL }, { "aux_loss_alpha", NULL }, { "seq_aux", NULL }, { "ep_size", NULL },  \
        { "moe_layer_freq", "1" }, { "rope_interleave", "true" }, { "partial_rotary_factor", "1.0" },        \
        { "rope_parameters.partial_rotary_factor", "1.0" },                                                  \
    {                                                                                                        \
        "rope_scaling.partial_rotary_factor", "1.0"                                                          \
    }

static const struct config_key V2_KEYS[] = {
    KEYS_ALL,
    { "scoring_func", "\"softmax\"" },
    { "norm_topk_prob", "false" },
    { NULL, NULL },
};

static const struct config_key V3_KEYS[] = {
    KEYS_ALL,
    { "scoring_func", "\"sigmoid\"" },
    { "topk_method", "\"noaux_tc\"" },
    { NULL, NULL },
};

/* The defaults of a class in transformers, where they are not those of the other classes. */
struct deepseek_defaults {
    struct transformers_defaults decoder;
    struct latent_defaults latent;
    int n_experts, n_chosen, d_expert, n_shared, n_dense, n_groups, n_chosen_groups;
    double scale;
};

static bool is_v2(const json_t *config)
{
    return describe_has_type(config, "deepseek_v2");
}

static bool is_v3(const json_t *config)
{
    return describe_has_type(config, "deepseek_v3") || describe_has_type(config, "kimi_k2");
}

static bool is_glm(const json_t *config)
{
    return describe_has_type(config, "glm4_moe_lite");
}

/* ---- config.json ---- */

static void read_attention(struct model_desc *d, struct config *c, const struct deepseek_defaults *defaults)
{
    struct attn_desc *a = &d->kinds[0].attn;
    describe_latent(d, c, &defaults->decoder, &defaults->latent);
    describe_layer_types(d, c, 0, 0);
    describe_mtp(d, c);
    if (a->rope_scaling.kind == ROPE_SCALING_LONGROPE)
        config_unsupported(c, "rope_scaling.rope_type", "LongRoPE with interleaved latent attention");
    a->rope = ROPE_INTERLEAVED;
}

static void read_experts(struct expert_desc *e, struct config *c, const struct deepseek_defaults *defaults)
{
    const char *n = describe_either(c, "n_routed_experts", "num_local_experts");
    e->routing.n_experts = config_int_or(c, n, 1, LIMIT_EXPERTS, defaults->n_experts);
    e->routing.n_chosen = defaults->n_chosen > 0
                              ? config_int_or(c, "num_experts_per_tok", 1, LIMIT_EXPERTS, defaults->n_chosen)
                              : config_int(c, "num_experts_per_tok", 1, LIMIT_EXPERTS);
    e->routing.scale = (float)config_float_or(c, "routed_scaling_factor", 1e-6, 1e6, defaults->scale);
    e->routing.n_groups = config_int_or(c, "n_group", 1, LIMIT_EXPERTS, defaults->n_groups);
    e->routing.n_chosen_groups = config_int_or(c, "topk_group", 1, LIMIT_EXPERTS, defaults->n_chosen_groups);
    e->d_ff = config_int_or(c, "moe_intermediate_size", 1, LIMIT_DIMENSION, defaults->d_expert);
    e->d_shared = describe_shared_width(
        config_int_or(c, "n_shared_experts", 0, LIMIT_EXPERTS, defaults->n_shared), e->d_ff);
}

static void by_softmax(struct expert_desc *e)
{
    e->routing.kind = ROUTE_SOFTMAX;
    e->routing.group_best = 1;
}

static void by_sigmoid(struct expert_desc *e)
{
    e->routing.kind = ROUTE_SIGMOID;
    e->routing.group_best = 2;
}

static void read_v2(struct model_desc *d, struct config *c)
{
    static const struct deepseek_defaults DEFAULTS = {
        { 0, 0, 2048, 1e-6, 0, false }, { 1536, 512, 128, 64, 128 }, 64, 0, 1407, 2, 0, 1, 1, 1
    };
    struct expert_desc e = { 0 };
    read_attention(d, c, &DEFAULTS);
    d->kinds[0].ffn.has_bias = config_bool_or(c, "mlp_bias", false);
    read_experts(&e, c, &DEFAULTS);
    by_softmax(&e);
    const char *method = config_string_or(c, "topk_method", "greedy");
    if (strcmp(method, "greedy") == 0)
        e.routing.n_groups = e.routing.n_chosen_groups = 1;
    else if (strcmp(method, "group_limited_greedy") != 0)
        config_unsupported(c, "topk_method", method);
    describe_first_dense(d, &e, config_int_or(c, "first_k_dense_replace", 0, LIMIT_LAYERS, 0));
}

static void read_sigmoid(struct model_desc *d, struct config *c, const struct deepseek_defaults *defaults)
{
    struct expert_desc e = { .has_choice_bias = true };
    read_attention(d, c, defaults);
    read_experts(&e, c, defaults);
    by_sigmoid(&e);
    e.routing.is_normed = config_bool_or(c, "norm_topk_prob", true);
    int n_dense = config_int_or(c, "first_k_dense_replace", 0, LIMIT_LAYERS, defaults->n_dense);
    const json_t *types = config_find(c, "mlp_layer_types");
    if (!types) {
        describe_first_dense(d, &e, n_dense);
        return;
    }
    uint8_t is_dense[LIMIT_LAYERS] = { 0 };
    if ((int)json_array_size(types) != d->n_layers) {
        config_unsupported(c, "mlp_layer_types", "a list of another length than the number of layers");
        return;
    }
    for (int i = 0; i < d->n_layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        is_dense[i] = type && strcmp(type, "dense") == 0;
        if (!type || (!is_dense[i] && strcmp(type, "sparse") != 0))
            config_unsupported(c, "mlp_layer_types", "a type other than \"dense\" and \"sparse\"");
    }
    describe_expert_layers(d, &e, is_dense);
}

/* ---- GGUF ---- */

#define KEY(name)  "deepseek2." name
#define KEY_GATING "expert_gating_func"
enum { GATING_NONE, GATING_SOFTMAX, GATING_SIGMOID };

/* As in llama.cpp: the scores have the factors of cos and sin, and one of YaRN's. */
static void read_gguf_yarn(struct attn_desc *a, struct config *c)
{
    struct rope_scaling *s = &a->rope_scaling;
    double log_factor = config_float_or(c, "rope.scaling.yarn_log_multiplier", -10, 10, 0);
    bool is_yarn = s->kind == ROPE_SCALING_YARN && s->factor > 1;
    if (is_yarn != (log_factor != 0)) {
        config_unsupported(c, "rope.scaling.yarn_log_multiplier",
                           is_yarn ? "YaRN of latent attention without this key" : "this key without YaRN");
        return;
    }
    if (s->kind != ROPE_SCALING_YARN)
        return;
    s->attention_factor = config_float_or(c, "rope.scaling.attn_factor", 1e-3, 1e3, 1);
    double m = s->attention_factor * (1 + log_factor * log(s->factor));
    a->scale = (float)(m * m / sqrt(a->head_dim));
}

static void read_gguf_attention(struct model_desc *d, struct config *c)
{
    struct attn_desc *a = &d->kinds[0].attn;
    int key_length = a->head_dim; /* of what is stored, if the file says so apart from that of queries */
    bool is_absorbed = config_has(c, "attention.key_length_mla");
    a->head_dim = config_int_or(c, "attention.key_length_mla", 1, LIMIT_DIMENSION, key_length);
    describe_gguf_latent(d, c, key_length);
    a->value_dim = config_int_or(c, "attention.value_length_mla", 1, LIMIT_DIMENSION, a->value_dim);
    if (is_absorbed && key_length != attn_latent_row(a))
        config_unsupported(c, "attention.key_length", "another length than that of latent and rotary part");
    a->rope = ROPE_INTERLEAVED;
    read_gguf_yarn(a, c);
}

static void deepseek_read_gguf(struct model_desc *d, struct config *c)
{
    struct expert_desc *own = &d->kinds[0].ffn.experts, e = { 0 };
    d->kinds[0].attn.n_latent = config_int(c, "attention.kv_lora_rank", 1, LIMIT_DIMENSION);
    bool has_experts = config_find(c, "expert_count") != NULL;
    if (has_experts)
        describe_gguf_experts(d, c);
    describe_gguf(d, c);
    d->n_layers -= config_int_or(c, "nextn_predict_layers", 0, d->n_layers - 1, 0);
    read_gguf_attention(d, c);
    int n_dense = config_int_or(c, "leading_dense_block_count", 0, LIMIT_LAYERS, 0);
    if (!has_experts)
        return;
    e = *own;
    *own = (struct expert_desc){ 0 };
    e.d_ff = config_int(c, "expert_feed_forward_length", 1, LIMIT_DIMENSION);
    e.d_shared = describe_shared_width(config_int_or(c, "expert_shared_count", 0, LIMIT_EXPERTS, 0), e.d_ff);
    e.routing.scale = (float)config_float_or(c, "expert_weights_scale", 0, 1e6, 1);
    e.routing.is_normed = config_bool_or(c, "expert_weights_norm", false);
    e.routing.n_groups = config_int_or(c, "expert_group_count", 0, LIMIT_EXPERTS, 1);
    e.routing.n_chosen_groups = config_int_or(c, "expert_group_used_count", 0, LIMIT_EXPERTS, 1);
    int gating = config_int_or(c, KEY_GATING, GATING_NONE, INT32_MAX, GATING_NONE);
    if (gating > GATING_SIGMOID)
        config_unsupported(c, KEY_GATING, "another function than softmax (1) and sigmoid (2)");
    if (gating == GATING_SIGMOID)
        by_sigmoid(&e);
    else
        by_softmax(&e);
    describe_first_dense(d, &e, n_dense);
}

/* GGUF has no key for the bias of the choice: it follows from the tensors. llama.cpp's converter writes
 * no gating function for GLM-4.7-Flash. Only models that choose by sigmoid scores have the bias. */
static void deepseek_find_parts(struct model_desc *d, const struct checkpoint *ck)
{
    bool has_gating = json_integer_value(json_object_get(checkpoint_config(ck), KEY(KEY_GATING))) > 0;
    describe_find_choice_bias(d, ck);
    for (int i = 0; i < d->n_kinds && !has_gating; i++)
        if (d->kinds[i].ffn.experts.has_choice_bias)
            by_sigmoid(&d->kinds[i].ffn.experts);
}

static void describe_v2(struct model_desc *d, struct config *c, bool is_gguf)
{
    if (is_gguf) /* of all three families */
        deepseek_read_gguf(d, c);
    else
        read_v2(d, c);
}

static void describe_v3(struct model_desc *d, struct config *c, bool is_gguf)
{
    static const struct deepseek_defaults DEFAULTS = {
        { 0, 0, 4096, 1e-6, 0, false }, { 1536, 512, 128, 64, 128 }, 256, 8, 2048, 1, 3, 8, 4, 2.5
    };
    (void)is_gguf;
    read_sigmoid(d, c, &DEFAULTS);
}

static void describe_glm(struct model_desc *d, struct config *c, bool is_gguf)
{
    static const struct deepseek_defaults DEFAULTS = {
        { 0, 0, 202752, 1e-5, 0, false }, { 768, 512, 192, 64, 256 }, 64, 4, 1536, 1, 1, 1, 1, 1.8
    };
    (void)is_gguf;
    read_sigmoid(d, c, &DEFAULTS);
}

/* The factor of log(factor) in YaRN's factor of the scores, beyond that of cos and sin. */
static double yarn_log_factor(const struct attn_desc *a)
{
    const struct rope_scaling *s = &a->rope_scaling;
    double m = a->scale > 0 ? sqrt((double)a->scale * sqrt(a->head_dim)) : 1;
    return (m / (double)model_rope_scale(a) - 1) / log(s->factor);
}

static bool has_later_dense(const struct model_desc *d)
{
    for (int i = 1; i < d->n_layers; i++)
        if (ffn_has_experts(&model_layer(d, i - 1)->ffn) && !ffn_has_experts(&model_layer(d, i)->ffn))
            return true;
    return false;
}

static const char *deepseek_find_gguf_fault(const struct model_desc *d)
{
    const struct attn_desc *a = &d->kinds[0].attn;
    if (has_later_dense(d))
        return "mlp_layer_types: layers without experts after layers with experts";
    bool is_yarn = a->rope_scaling.kind == ROPE_SCALING_YARN && a->rope_scaling.factor > 1;
    if (is_yarn)
        return fabs(yarn_log_factor(a)) < 1e-6 ? "rope_scaling: YaRN without mscale_all_dim" : NULL;
    return a->scale > 0 ? "rope_scaling: mscale_all_dim without YaRN" : NULL;
}

static void put_experts(struct gguf_writer *w, const struct model_desc *d)
{
    const struct layer_desc *l = describe_find_kind(d, true);
    gguf_writer_u32(w, KEY("leading_dense_block_count"), (uint32_t)describe_count_dense(d));
    if (!l)
        return;
    const struct expert_desc *e = &l->ffn.experts;
    const struct routing *r = &e->routing;
    gguf_writer_u32(w, KEY("expert_count"), (uint32_t)r->n_experts);
    gguf_writer_u32(w, KEY("expert_used_count"), (uint32_t)r->n_chosen);
    gguf_writer_u32(w, KEY("expert_feed_forward_length"), (uint32_t)e->d_ff);
    gguf_writer_u32(w, KEY("expert_shared_count"), (uint32_t)(e->d_shared / e->d_ff));
    gguf_writer_u32(w, KEY(KEY_GATING), r->kind == ROUTE_SOFTMAX ? GATING_SOFTMAX : GATING_SIGMOID);
    gguf_writer_f32(w, KEY("expert_weights_scale"), r->scale);
    gguf_writer_bool(w, KEY("expert_weights_norm"), r->is_normed);
    gguf_writer_u32(w, KEY("expert_group_count"), (uint32_t)r->n_groups);
    gguf_writer_u32(w, KEY("expert_group_used_count"), (uint32_t)r->n_chosen_groups);
}

static void deepseek_put_metadata(struct gguf_writer *w, const struct model_desc *d)
{
    const struct attn_desc *a = &d->kinds[0].attn;
    gguf_writer_u32(w, KEY("attention.key_length"), (uint32_t)attn_latent_row(a));
    gguf_writer_u32(w, KEY("attention.value_length"), (uint32_t)a->n_latent);
    gguf_writer_u32(w, KEY("attention.key_length_mla"), (uint32_t)a->head_dim);
    gguf_writer_u32(w, KEY("attention.value_length_mla"), (uint32_t)a->value_dim);
    gguf_writer_u32(w, KEY("attention.kv_lora_rank"), (uint32_t)a->n_latent);
    if (a->q_rank > 0)
        gguf_writer_u32(w, KEY("attention.q_lora_rank"), (uint32_t)a->q_rank);
    describe_put_latent_epsilon(w, "deepseek2", d);
    if (a->rope_scaling.kind == ROPE_SCALING_YARN && a->rope_scaling.factor > 1) {
        gguf_writer_f32(w, KEY("rope.scaling.yarn_log_multiplier"), (float)yarn_log_factor(a));
        gguf_writer_f32(w, KEY("rope.scaling.attn_factor"), model_rope_scale(a));
    }
    put_experts(w, d);
}

/* GLM-4.7-Flash in a GGUF file is of DeepSeek's architecture; its vocabulary tells. */
static enum tutti_status text_prefix(const struct tokenizer *tok, struct ids *out, struct tutti_error *err)
{
    int32_t bos = tokenizer_bos(tok);
    if (tokenizer_find_control(tok, "[gMASK]") >= 0)
        return family_glm_prefix(tok, out, err);
    return bos < 0 || tokenizer_adds_bos(tok) == 0 || ids_add(out, bos) ? TUTTI_OK : chat_out_of_memory(err);
}

#define FAMILY                                                                                               \
    .gguf_architecture = "deepseek2", .has_first_dense = true, .find_parts = deepseek_find_parts,            \
    .put_metadata = deepseek_put_metadata, .find_gguf_fault = deepseek_find_gguf_fault, .layouts = LAYOUTS,  \
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS, .choose_chat = family_no_chat

/* GGUF files of all three are read as the first. */
const struct family FAMILY_DEEPSEEK_V2 = {
    .name = "deepseek_v2",
    FAMILY,
    .is_mine = is_v2,
    .keys = V2_KEYS,
    .code = "DeepseekV2",
    .describe = describe_v2,
    .text_prefix = text_prefix,
};

const struct family FAMILY_DEEPSEEK_V3 = {
    .name = "deepseek_v3",
    FAMILY,
    .is_mine = is_v3,
    .keys = V3_KEYS,
    .code = "DeepseekV3",
    .describe = describe_v3,
    .text_prefix = text_prefix,
};

const struct family FAMILY_GLM4_MOE_LITE = {
    .name = "glm4_moe_lite",
    FAMILY,
    .is_mine = is_glm,
    .keys = V3_KEYS,
    .describe = describe_glm,
    .text_prefix = family_glm_prefix,
};
