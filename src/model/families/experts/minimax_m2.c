/* MiniMax-M2, M2.1, M2.5 and M2.7: half-split rotary positions on a part of each head, norms of q and k over all
 * heads together, and in every layer experts chosen by sigmoid scores with a correction bias. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

#define ATTENTION NAMES_TRANSFORMERS, NAMES_QK_NORMS
#define ROUTER(path)                                                                                         \
    .of[SLOT_ROUTER] = { "model.layers.%d." path ".gate.weight" },                                           \
    .of[SLOT_ROUTER_BIAS] = { "model.layers.%d." path ".e_score_correction_bias" }

static const struct tensor_names LAYOUTS[] = {
    { ATTENTION, ROUTER("block_sparse_moe"), NAMES_EXPERTS("block_sparse_moe", "w1", "w3", "w2") },
    { ATTENTION, ROUTER("mlp"), NAMES_EXPERTS_MERGED },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_EXPERTS, .of[SLOT_ROUTER] = { "blk.%d.ffn_gate_inp.weight" },
                 .of[SLOT_ROUTER_BIAS] = { "blk.%d.exp_probs_b.bias" }, NAMES_GGUF_QK_NORMS),
};

static const struct config_key KEYS[] = {
    { "output_router_logits", NULL },
    { "router_aux_loss_coef", NULL }, /* of training */
    { "router_jitter_noise", NULL },  /* of training */
    { "scoring_func", "\"sigmoid\"" },
    { "use_routing_bias", "true" },
    { "use_qk_norm", "true" },
    { "qk_norm_type", "\"per_layer\"" }, /* one norm for the heads of a layer */
    { "shared_intermediate_size", "0" },
    { "shared_moe_mode", NULL },       /* of shared experts */
    { "mlp_intermediate_size", NULL }, /* of layers without experts, which no model has */
    { "layernorm_full_attention_beta", "1.0" },
    { "layernorm_linear_attention_beta", NULL }, /* of layers of another attention */
    { "layernorm_mlp_beta", "1.0" },
    { "attention_bias", "false" },
    { "sliding_window", "null" },
    /* Layers for multi-token prediction, which the published checkpoints do not contain. */
    { "use_mtp", NULL },
    { "num_mtp_modules", NULL },
    { "mtp_transformer_layers", NULL },
    { NULL, NULL },
};

static bool minimax_is_mine(const json_t *config)
{
    return describe_has_type(config, "minimax_m2");
}

/* Each layer's kind of attention: 1 is full attention. */
static void expect_full_attention(struct config *c)
{
    const json_t *types = config_find(c, "attn_type_list"), *type;
    size_t i;
    if (types && !json_is_array(types))
        config_unsupported(c, "attn_type_list", "what is no list of layers");
    json_array_foreach(types, i, type) if (json_integer_value(type) != 1)
        config_unsupported(c, "attn_type_list", "another kind of attention than 1 (full)");
}

/* The authors' files have rotary_dim; those that transformers saved may have a part of the heads, too. */
static void read_rotary_dim(struct attn_desc *a, struct config *c)
{
    static const char *const PARTS[] = { "rope_scaling.partial_rotary_factor",
                                         "rope_parameters.partial_rotary_factor", "partial_rotary_factor" };
    int from_part = a->rotary_dim;
    bool has_part = false;
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++)
        has_part = has_part || config_has(c, PARTS[i]);
    a->rotary_dim = config_int_or(c, "rotary_dim", 2, a->head_dim, from_part);
    if (has_part && a->rotary_dim != from_part)
        config_unsupported(c, "rotary_dim", "another part of the heads than partial_rotary_factor");
}

static void minimax_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    static const struct transformers_defaults DEFAULTS = { .n_kv_heads = 8,
                                                           .head_dim = 128,
                                                           .n_ctx = 196608,
                                                           .norm_eps = 1e-6,
                                                           .rope_theta = 5e6,
                                                           .rotary_part = 1 };
    struct attn_desc *a = &d->kinds[0].attn;
    struct expert_desc *e = &d->kinds[0].ffn.experts;
    if (is_gguf) {
        enum { GATING_SIGMOID = 2 };
        describe_gguf_experts(d, c);
        describe_gguf(d, c);
        a->rope = ROPE_HALF;
        e->d_ff = config_int(c, "expert_feed_forward_length", 1, LIMIT_DIMENSION);
        if (config_int(c, "expert_gating_func", 0, INT32_MAX) != GATING_SIGMOID)
            config_unsupported(c, "expert_gating_func", "another function than sigmoid (2)");
    } else {
        describe_transformers(d, c, &DEFAULTS);
        read_rotary_dim(a, c);
        expect_full_attention(c);
        const char *n = describe_either(c, "num_local_experts", "num_experts");
        e->routing.n_experts = config_int_or(c, n, 1, LIMIT_EXPERTS, 256);
        e->routing.n_chosen = config_int_or(c, "num_experts_per_tok", 1, LIMIT_EXPERTS, 8);
        e->d_ff = d->kinds[0].ffn.d_ff;
    }
    a->has_qk_norm = a->norms_all_heads = true;
    struct expert_desc experts = *e;
    experts.has_choice_bias = experts.routing.is_normed = true;
    experts.routing.kind = ROUTE_SIGMOID;
    experts.routing.scale = 1;
    describe_expert_layers(d, &experts, NULL);
}

static void minimax_put_metadata(struct gguf_writer *w, const struct model_desc *d)
{
    const struct expert_desc *e = &d->kinds[0].ffn.experts;
    gguf_writer_u32(w, "minimax-m2.expert_count", (uint32_t)e->routing.n_experts);
    gguf_writer_u32(w, "minimax-m2.expert_used_count", (uint32_t)e->routing.n_chosen);
    gguf_writer_u32(w, "minimax-m2.expert_feed_forward_length", (uint32_t)e->d_ff);
    gguf_writer_u32(w, "minimax-m2.expert_gating_func", 2);
}

/* llama.cpp's graph has an output matrix of its own. */
static const char *minimax_find_fault(const struct model_desc *d)
{
    return d->tied_output ? "tie_word_embeddings: true" : NULL;
}

const struct family FAMILY_MINIMAX_M2 = {
    .name = "minimax_m2",
    .gguf_architecture = "minimax-m2",
    .code = "MiniMaxM2",
    .has_experts = true,
    .is_mine = minimax_is_mine,
    .keys = KEYS,
    .describe = minimax_describe,
    .put_metadata = minimax_put_metadata,
    .find_gguf_fault = minimax_find_fault,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
