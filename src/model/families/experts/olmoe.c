/* OLMoE: LLaMA's layers with norms of q and k over all heads together, and in every layer experts with the weights of
 * a softmax over all of them. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

#define COMMON NAMES_TRANSFORMERS, .of[SLOT_ROUTER] = { "model.layers.%d.mlp.gate.weight" }, NAMES_QK_NORMS

static const struct tensor_names LAYOUTS[] = {
    { COMMON, NAMES_EXPERTS("mlp", "gate_proj", "up_proj", "down_proj") },
    { COMMON, NAMES_EXPERTS_MERGED },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_EXPERTS, .of[SLOT_ROUTER] = { "blk.%d.ffn_gate_inp.weight" },
                 NAMES_GGUF_QK_NORMS),
};

static const struct config_key KEYS[] = {
    { "output_router_logits", NULL },
    { "router_aux_loss_coef", NULL }, /* of training */
    { "clip_qkv", "null" },
    CONFIG_WHOLE_HEADS,
    { NULL, NULL },
};

static bool olmoe_is_mine(const json_t *config)
{
    return describe_has_type(config, "olmoe");
}

static void olmoe_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    static const struct transformers_defaults DEFAULTS = {
        .n_heads = 16, .n_ctx = 4096, .n_vocab = 50304, .norm_eps = 1e-5
    };
    struct attn_desc *a = &d->kinds[0].attn;
    struct expert_desc *e = &d->kinds[0].ffn.experts;
    if (is_gguf) {
        describe_gguf_experts(d, c);
        describe_gguf(d, c);
        a->rope = ROPE_HALF;
    } else {
        describe_transformers(d, c, &DEFAULTS);
        describe_layer_types(d, c, 0, 0);
        a->has_qkv_bias = a->has_out_bias = config_bool_or(c, "attention_bias", false);
        const char *n = describe_either(c, "num_experts", "num_local_experts");
        e->routing.n_experts = config_int_or(c, n, 1, LIMIT_EXPERTS, 64);
        e->routing.n_chosen = config_int_or(c, "num_experts_per_tok", 1, LIMIT_EXPERTS, 8);
        e->routing.is_normed = config_bool_or(c, "norm_topk_prob", false);
    }
    a->has_qk_norm = a->norms_all_heads = true;
    struct expert_desc experts = *e;
    experts.d_ff = d->kinds[0].ffn.d_ff;
    describe_expert_layers(d, &experts, NULL);
}

static void olmoe_put_metadata(struct gguf_writer *w, const struct model_desc *d)
{
    const struct routing *r = &d->kinds[0].ffn.experts.routing;
    gguf_writer_u32(w, "olmoe.expert_count", (uint32_t)r->n_experts);
    gguf_writer_u32(w, "olmoe.expert_used_count", (uint32_t)r->n_chosen);
}

/* What llama.cpp's graph does not do, and no key says. */
static const char *olmoe_find_fault(const struct model_desc *d)
{
    const struct attn_desc *a = &d->kinds[0].attn;
    if (d->kinds[0].ffn.experts.routing.is_normed)
        return "norm_topk_prob: true";
    if (a->n_kv_heads != a->n_heads)
        return "num_key_value_heads: another number than num_attention_heads";
    if (a->n_heads * a->head_dim != d->d_model)
        return "head_dim: another number than hidden_size / num_attention_heads";
    if (d->tied_output)
        return "tie_word_embeddings: true";
    return a->has_qkv_bias ? "attention_bias: true" : NULL;
}

const struct family FAMILY_OLMOE = {
    .name = "olmoe",
    .gguf_architecture = "olmoe",
    .has_experts = true,
    .is_mine = olmoe_is_mine,
    .keys = KEYS,
    .describe = olmoe_describe,
    .put_metadata = olmoe_put_metadata,
    .find_gguf_fault = olmoe_find_fault,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
