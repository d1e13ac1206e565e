/* gpt-oss (OpenAI, 2025): attention with sinks, alternately with a window and over the whole context;
 * experts with biases and a clamped SwiGLU in every layer, and the weights of a softmax over the chosen
 * ones. Published with the experts in MXFP4. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

#define NAMES_GGUF_GPT_OSS                                                                                   \
    NAMES_GGUF_BUT_FFN_NORM, .of[SLOT_FFN_NORM] = { "blk.%d.post_attention_norm.weight" },                   \
                             .of[SLOT_SINKS] = { "blk.%d.attn_sinks.weight" },                               \
                             .of[SLOT_ROUTER] = { "blk.%d.ffn_gate_inp.weight" }

static const struct tensor_names LAYOUTS[] = {
    { NAMES_TRANSFORMERS, NAMES_EXPERTS_MERGED, .of[SLOT_SINKS] = { "model.layers.%d.self_attn.sinks" },
      .of[SLOT_ROUTER] = { "model.layers.%d.mlp.router.weight" }, .transposed = TRANSPOSED_EXPERTS,
      .alternates = true },
    LAYOUTS_GGUF(NAMES_GGUF_GPT_OSS, NAMES_GGUF_EXPERTS),
    /* files with gate and up in one tensor */
    LAYOUTS_GGUF(NAMES_GGUF_GPT_OSS, NAMES_GGUF_EXPERTS_FUSED),
};

static const struct config_key KEYS[] = {
    { "output_router_logits", NULL },
    { "router_aux_loss_coef", NULL }, /* of training */
    /* Of OpenAI's own code: num_experts_per_tok and original_max_position_embeddings are read. */
    { "experts_per_token", NULL },
    { "initial_context_length", NULL },
    CONFIG_WHOLE_HEADS,
    { "swiglu_alpha", "1.702" },
    { "swiglu_limit", "7.0" },
    { NULL, NULL },
};

static bool gpt_oss_is_mine(const json_t *config)
{
    return describe_has_type(config, "gpt_oss");
}

/* What the class in transformers has where the file says nothing of the rotation. */
static void set_usual_yarn(struct model_desc *d)
{
    d->kinds[0].attn.rope_scaling = (struct rope_scaling){ .kind = ROPE_SCALING_YARN,
                                                           .factor = 32,
                                                           .beta_fast = 32,
                                                           .beta_slow = 1,
                                                           .original_n_ctx = 4096,
                                                           .is_exact = true };
}

/* Reads config.json into kinds[0], and makes the kinds of layers. */
static void read_config(struct model_desc *d, struct config *c, struct routing *routing)
{
    static const struct transformers_defaults DEFAULTS = { .n_kv_heads = 8,
                                                           .head_dim = 64,
                                                           .n_ctx = 131072,
                                                           .norm_eps = 1e-5,
                                                           .n_heads = 64,
                                                           .n_vocab = 201088,
                                                           .rope_theta = 150000 };
    struct attn_desc *a = &d->kinds[0].attn;
    describe_transformers(d, c, &DEFAULTS);
    bool is_given = json_is_object(json_object_get(c->root, "rope_parameters")); /* an empty one too */
    if (!config_has_object(c, "rope_scaling") && !is_given)
        set_usual_yarn(d);
    a->has_qkv_bias = a->has_out_bias = config_bool_or(c, "attention_bias", true);
    const char *n = describe_either(c, "num_local_experts", "num_experts");
    routing->n_experts = config_int_or(c, n, 1, LIMIT_EXPERTS, 128);
    routing->n_chosen = config_int_or(c, "num_experts_per_tok", 1, LIMIT_EXPERTS, 4);
    if (config_has(c, "sliding_window") && !config_find(c, "sliding_window"))
        config_unsupported(c, "sliding_window", "null");
    describe_layer_periods(d, c, config_int_or(c, "sliding_window", 1, INT32_MAX, 128), 2);
}

/* GGUF's architecture: every other layer has the window, from the first on. */
static void read_metadata(struct model_desc *d, struct config *c, struct routing *routing)
{
    bool has_window[LIMIT_LAYERS] = { false };
    describe_gguf_experts(d, c);
    describe_gguf(d, c);
    *routing = d->kinds[0].ffn.experts.routing;
    d->kinds[0].ffn.experts = (struct expert_desc){ 0 };
    d->kinds[0].ffn.d_ff = config_int_or(c, "expert_feed_forward_length", 1, LIMIT_DIMENSION,
                                         d->kinds[0].ffn.d_ff);
    d->kinds[0].attn.rope = ROPE_HALF;
    int window = config_int(c, "attention.sliding_window", 1, INT32_MAX);
    for (int i = 0; i < d->n_layers; i += 2)
        has_window[i] = true;
    struct layer_split split = describe_split(d, has_window);
    if (split.marked >= 0)
        d->kinds[split.marked].attn.window = window;
}

static void gpt_oss_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct expert_desc e = { .has_router_bias = true, .has_bias = true };
    d->kinds[0].attn.has_sinks = true;
    if (is_gguf)
        read_metadata(d, c, &e.routing);
    else
        read_config(d, c, &e.routing);
    e.routing.is_normed = true; /* a softmax over all, divided by the sum of the chosen, is one over these */
    e.d_ff = d->kinds[0].ffn.d_ff;
    for (int i = 0; i < d->n_kinds; i++)
        d->kinds[i].ffn.activation = ACT_SILU_CLAMPED;
    describe_expert_layers(d, &e, NULL);
}

static void gpt_oss_put_metadata(struct gguf_writer *w, const struct model_desc *d)
{
    const struct expert_desc *e = &d->kinds[0].ffn.experts;
    gguf_writer_u32(w, "gpt-oss.expert_count", (uint32_t)e->routing.n_experts);
    gguf_writer_u32(w, "gpt-oss.expert_used_count", (uint32_t)e->routing.n_chosen);
    gguf_writer_u32(w, "gpt-oss.expert_feed_forward_length", (uint32_t)e->d_ff);
}

static const char *gpt_oss_find_gguf_fault(const struct model_desc *d)
{
    for (int i = 0; i < d->n_layers; i++)
        if ((model_layer(d, i)->attn.window > 0) != (i % 2 == 0))
            return "layer_types: not every other layer has a window, from the first on";
    if (!d->kinds[0].attn.has_qkv_bias)
        return "attention_bias: false";
    return d->tied_output ? "tie_word_embeddings: true" : NULL;
}

const struct family FAMILY_GPT_OSS = {
    .name = "gpt_oss",
    .gguf_architecture = "gpt-oss",
    .has_experts = true,
    .is_mine = gpt_oss_is_mine,
    .keys = KEYS,
    .describe = gpt_oss_describe,
    .put_metadata = gpt_oss_put_metadata,
    .find_gguf_fault = gpt_oss_find_gguf_fault,
    .has_window_layers = true,
    .has_exact_yarn = true,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
