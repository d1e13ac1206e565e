/* Mixtral: Mistral's attention, and in every layer experts with the weights of a softmax over the chosen
 * ones. GGUF: architecture "llama" with experts, whose rows of q and k are permuted. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

#define ROUTER(path) .of[SLOT_ROUTER] = { "model.layers.%d." path ".gate.weight" }

static const struct tensor_names LAYOUTS[] = {
    { NAMES_TRANSFORMERS, ROUTER("block_sparse_moe"), NAMES_EXPERTS("block_sparse_moe", "w1", "w3", "w2") },
    { NAMES_TRANSFORMERS, ROUTER("mlp"), NAMES_EXPERTS_MERGED },
    LAYOUTS_GGUF(NAMES_GGUF, .of[SLOT_ROUTER] = { "blk.%d.ffn_gate_inp.weight" }, NAMES_GGUF_EXPERTS),
    /* files of the first months */
    { NAMES_GGUF, NAMES_GGUF_SPLIT_QKV, .of[SLOT_ROUTER] = { "blk.%d.ffn_gate_inp.weight" },
      .of[SLOT_EXPERT_GATE_UP] = { "blk.%d.ffn_gate.%d.weight", "blk.%d.ffn_up.%d.weight" },
      .of[SLOT_EXPERT_DOWN] = { "blk.%d.ffn_down.%d.weight" } },
};

static const struct config_key KEYS[] = {
    { "output_router_logits", NULL },
    { "router_aux_loss_coef", NULL }, /* of training */
    { "router_jitter_noise", NULL },  /* of training */
    CONFIG_WHOLE_HEADS,
    { NULL, NULL },
};

static bool mixtral_is_mine(const json_t *config)
{
    return describe_has_type(config, "mixtral");
}

static void mixtral_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    static const struct transformers_defaults DEFAULTS = { 8, 0, 131072, 1e-5, 0 };
    struct attn_desc *a = &d->kinds[0].attn;
    if (is_gguf) {
        describe_gguf_experts(d, c);
        describe_gguf(d, c);
        a->rope = ROPE_INTERLEAVED;
        a->window = config_int_or(c, "attention.sliding_window", 0, INT32_MAX, 0);
    } else {
        describe_transformers(d, c, &DEFAULTS);
        if (!config_find(c, "rope_theta") && !config_find(c, "rope_parameters.rope_theta") &&
            !config_find(c, "rope_scaling.rope_theta"))
            a->rope_theta = 1e6;
        describe_window_of_all(d, c, config_int_or(c, "sliding_window", 1, INT32_MAX, 0));
        const char *n = describe_either(c, "num_local_experts", "num_experts");
        d->kinds[0].ffn.experts.routing.n_experts = config_int_or(c, n, 1, LIMIT_EXPERTS, 8);
        d->kinds[0].ffn.experts.routing.n_chosen = config_int_or(c, "num_experts_per_tok", 1, LIMIT_EXPERTS,
                                                                 2);
    }
    struct expert_desc experts = d->kinds[0].ffn.experts;
    experts.d_ff = d->kinds[0].ffn.d_ff;
    experts.routing.is_normed = true;
    describe_expert_layers(d, &experts, NULL);
}

static void mixtral_put_metadata(struct gguf_writer *w, const struct model_desc *d)
{
    const struct routing *r = &d->kinds[0].ffn.experts.routing;
    gguf_writer_u32(w, "llama.expert_count", (uint32_t)r->n_experts);
    gguf_writer_u32(w, "llama.expert_used_count", (uint32_t)r->n_chosen);
}

const struct family FAMILY_MIXTRAL = {
    .name = "mixtral",
    .gguf_architecture = "llama",
    .is_permuted_in_gguf = true,
    .has_experts = true,
    .is_mine = mixtral_is_mine,
    .keys = KEYS,
    .describe = mixtral_describe,
    .put_metadata = mixtral_put_metadata,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
