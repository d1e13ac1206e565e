/* ERNIE 4.5: LLaMA's layers with interleaved rotary positions and a tied output; and the mixtures of experts, which are chosen by the
 * scores of a softmax with a correction bias, next to shared ones. GGUF does not permute q and k. Layers for multi-token prediction
 * are not used. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

static const struct tensor_names LAYOUTS[] = {
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_GATE_UP),
};

#define ROUTER(bias)                                                                                         \
    .of[SLOT_ROUTER] = { "model.layers.%d.mlp.gate.weight" },                                                \
    .of[SLOT_ROUTER_BIAS] = { "model.layers.%d.mlp." bias ".e_score_correction_bias" }
#define HF_NAMES(bias)                                                                                       \
    NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP, NAMES_SHARED("shared_experts"), ROUTER(bias)

static const struct tensor_names MOE_LAYOUTS[] = {
    { HF_NAMES("moe_statics"), NAMES_EXPERTS("mlp", "gate_proj", "up_proj", "down_proj") },
    { HF_NAMES("gate.moe_statics"), NAMES_EXPERTS_MERGED },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_GATE_UP, NAMES_GGUF_EXPERTS, NAMES_GGUF_SHARED,
                 .of[SLOT_ROUTER] = { "blk.%d.ffn_gate_inp.weight" },
                 .of[SLOT_ROUTER_BIAS] = { "blk.%d.exp_probs_b.bias" }),
};

/* Layers for multi-token prediction. */
static const char *const IGNORED[] = { "model.mtp_block.", "model.mtp_emb_norm.", "model.mtp_hidden_norm.",
                                       "model.mtp_linear_proj." };

static const struct config_key KEYS[] = {
    { "compression_ratio", "1.0" },
    CONFIG_WHOLE_HEADS,
    { NULL, NULL },
};

static const struct config_key MOE_KEYS[] = {
    { "use_bias", "false" },
    { "moe_norm_min", "1e-12" },
    { "moe_gate", "\"topk\"" },
    { "moe_use_aux_free", "true" },
    { "moe_capacity", NULL },         /* of training */
    { "output_router_logits", NULL }, /* of training, and the next one */
    { "router_aux_loss_coef", NULL },
    { "num_nextn_predict_layers", NULL }, /* not used */
    { "compression_ratio", "1.0" },
    CONFIG_WHOLE_HEADS,
    { NULL, NULL },
};

static bool ernie_is_mine(const json_t *config)
{
    return describe_has_type(config, "ernie4_5");
}

static bool ernie_moe_is_mine(const json_t *config)
{
    return describe_has_type(config, "ernie4_5_moe");
}

/* The layers without experts. */
static void describe_dense(struct model_desc *d, struct config *c, bool is_gguf,
                           const struct transformers_defaults *defaults)
{
    struct attn_desc *a = &d->kinds[0].attn;
    if (is_gguf) {
        describe_gguf(d, c);
    } else {
        describe_transformers(d, c, defaults);
        describe_layer_types(d, c, 0, 0);
        a->has_qkv_bias = a->has_out_bias = d->kinds[0].ffn.has_bias = config_bool_or(c, "use_bias", false);
    }
    a->rope = ROPE_INTERLEAVED;
}

#define DEFAULTS .n_ctx = 131072, .n_vocab = 103424, .norm_eps = 1e-5, .rope_theta = 500000, .is_tied = true

static void ernie_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    describe_dense(
        d, c, is_gguf,
        &(struct transformers_defaults){ .n_heads = 16, .n_kv_heads = 2, .head_dim = 128, DEFAULTS });
}

/* Layer i of first to last has experts if i + 1 is a multiple of interval. */
static void describe_layers(struct model_desc *d, const struct expert_desc *e, int first, int last,
                            int interval)
{
    uint8_t is_dense[LIMIT_LAYERS] = { 0 };
    for (int i = 0; i < d->n_layers; i++)
        is_dense[i] = i < first || i > last || (i + 1) % interval != 0;
    describe_expert_layers(d, e, is_dense);
}

static void ernie_moe_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    if (is_gguf)
        describe_gguf_experts(d, c);
    describe_dense(d, c, is_gguf,
                   &(struct transformers_defaults){ .n_heads = 20, .n_kv_heads = 4, DEFAULTS });
    struct expert_desc e = d->kinds[0].ffn.experts;
    d->kinds[0].ffn.experts = (struct expert_desc){ 0 };
    e.routing.kind = ROUTE_SOFTMAX;
    e.routing.is_normed = true;
    if (is_gguf) {
        e.d_ff = config_int(c, "expert_feed_forward_length", 1, LIMIT_DIMENSION);
        e.d_shared = config_int_or(c, "expert_shared_feed_forward_length", 0, LIMIT_DIMENSION, 0);
        config_skip(c, "expert_shared_count"); /* e.d_shared says it */
        describe_layers(d, &e, config_int_or(c, "leading_dense_block_count", 0, LIMIT_LAYERS, 0), d->n_layers,
                        config_int(c, "interleave_moe_layer_step", 1, LIMIT_LAYERS));
        return;
    }
    e.has_choice_bias = true;
    e.routing.n_experts = config_int_or(c, describe_either(c, "moe_num_experts", "num_experts"), 1,
                                        LIMIT_EXPERTS, 64);
    e.routing.n_chosen = config_int_or(c, describe_either(c, "moe_k", "num_experts_per_tok"), 1,
                                       LIMIT_EXPERTS, 6);
    e.d_ff = config_int_or(c, "moe_intermediate_size", 1, LIMIT_DIMENSION, 1536);
    e.d_shared = describe_shared_width(config_int_or(c, "moe_num_shared_experts", 0, LIMIT_EXPERTS, 2),
                                       e.d_ff);
    int first = config_int_or(c, "moe_layer_start_index", 0, LIMIT_LAYERS, 1);
    int last = config_int_or(c, "moe_layer_end_index", -1, LIMIT_LAYERS, -1);
    describe_layers(d, &e, first, last < 0 ? d->n_layers : last,
                    config_int_or(c, "moe_layer_interval", 1, LIMIT_LAYERS, 1));
}

static void ernie_moe_put_metadata(struct gguf_writer *w, const struct model_desc *d)
{
    const struct expert_desc *e = &describe_find_kind(d, true)->ffn.experts;
#define PUT(name, value) gguf_writer_u32(w, "ernie4_5-moe." name, (uint32_t)(value))
    PUT("expert_count", e->routing.n_experts);
    PUT("expert_used_count", e->routing.n_chosen);
    PUT("expert_feed_forward_length", e->d_ff);
    PUT("expert_shared_count", e->d_shared / e->d_ff);
    if (e->d_shared > 0)
        PUT("expert_shared_feed_forward_length", e->d_shared);
    PUT("leading_dense_block_count", describe_count_dense(d));
    PUT("interleave_moe_layer_step", 1);
#undef PUT
}

static const char *ernie_find_fault(const struct model_desc *d)
{
    return d->kinds[0].attn.has_qkv_bias ? "use_bias: true" : NULL;
}

static const char *ernie_moe_find_fault(const struct model_desc *d)
{
    for (int i = describe_count_dense(d); i < d->n_layers; i++)
        if (!ffn_has_experts(&model_layer(d, i)->ffn))
            return "moe_layer_interval: layers without experts after layers with experts";
    return describe_find_kind(d, true) ? NULL : "moe_layer_start_index: no layer with experts";
}

#define FAMILY                                                                                               \
    .ignored = IGNORED, .n_ignored = sizeof IGNORED / sizeof *IGNORED, .choose_chat = family_no_chat,        \
    .text_prefix = family_no_prefix

const struct family FAMILY_ERNIE = {
    .name = "ernie4_5",
    .gguf_architecture = "ernie4_5",
    .is_mine = ernie_is_mine,
    .keys = KEYS,
    .describe = ernie_describe,
    .find_gguf_fault = ernie_find_fault,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    FAMILY,
};

const struct family FAMILY_ERNIE_MOE = {
    .name = "ernie4_5_moe",
    .gguf_architecture = "ernie4_5-moe",
    .has_experts = true,
    .has_first_dense = true,
    .is_mine = ernie_moe_is_mine,
    .keys = MOE_KEYS,
    .describe = ernie_moe_describe,
    .find_parts = describe_find_choice_bias,
    .put_metadata = ernie_moe_put_metadata,
    .find_gguf_fault = ernie_moe_find_fault,
    .layouts = MOE_LAYOUTS,
    .n_layouts = sizeof MOE_LAYOUTS / sizeof *MOE_LAYOUTS,
    FAMILY,
};
