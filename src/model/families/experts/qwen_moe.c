/* Qwen2-MoE (also Qwen1.5-MoE): Qwen2's attention, experts, and a shared expert with a gate. Qwen3-MoE:
 * Qwen3's attention, and experts only; the language part of Qwen3-VL's models with experts is the same,
 * with all experts of a layer in one tensor. Some layers may have no experts. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

#include <stdio.h>

#define ROUTER .of[SLOT_ROUTER] = { "model.layers.%d.mlp.gate.weight" }
#define ROUTER_AND_GATE                                                                                      \
    .of[SLOT_ROUTER] = { "model.layers.%d.mlp.gate.weight", "model.layers.%d.mlp.shared_expert_gate."        \
                                                            "weight" }

static const struct tensor_names QWEN2_LAYOUTS[] = {
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP, ROUTER_AND_GATE,
      NAMES_EXPERTS("mlp", "gate_proj", "up_proj", "down_proj"), NAMES_SHARED("shared_expert") },
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP, ROUTER_AND_GATE, NAMES_EXPERTS_MERGED,
      NAMES_SHARED("shared_expert") },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_GATE_UP, NAMES_GGUF_EXPERTS, NAMES_GGUF_SHARED,
                 .of[SLOT_ROUTER] = { "blk.%d.ffn_gate_inp.weight", "blk.%d.ffn_gate_inp_shexp.weight" }),
};

static const struct tensor_names QWEN3_LAYOUTS[] = {
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP, ROUTER, NAMES_QK_NORMS,
      NAMES_EXPERTS("mlp", "gate_proj", "up_proj", "down_proj") },
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP, ROUTER, NAMES_QK_NORMS, NAMES_EXPERTS_MERGED },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_GATE_UP, NAMES_GGUF_EXPERTS,
                 .of[SLOT_ROUTER] = { "blk.%d.ffn_gate_inp.weight" }, NAMES_GGUF_QK_NORMS),
};

/* Published files have the experts' matrices as [in][out], those that transformers 5 saves as [out][in]. */
static const struct tensor_names QWEN3_VL_LAYOUTS[] = {
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP, ROUTER, NAMES_QK_NORMS, NAMES_EXPERTS_MERGED,
      .transposed = 1 << SLOT_EXPERT_GATE_UP | 1 << SLOT_EXPERT_DOWN },
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP, ROUTER, NAMES_QK_NORMS, NAMES_EXPERTS_MERGED },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_GATE_UP, NAMES_GGUF_EXPERTS,
                 .of[SLOT_ROUTER] = { "blk.%d.ffn_gate_inp.weight" }, NAMES_GGUF_QK_NORMS),
};

static const struct config_key VL_GGUF_KEYS[] = {
    { GGUF_IMAGE_SECTIONS, NULL },
    { "n_deepstack_layers", NULL }, /* layers to which rows of images are added */
    { NULL, NULL },
};

#define SHARED_KEYS                                                                                          \
    { "output_router_logits", NULL }, { "router_aux_loss_coef", NULL }, /* of training */                    \
        CONFIG_WHOLE_HEADS

static const struct config_key KEYS[] = {
    SHARED_KEYS,
    { NULL, NULL },
};

/* Qwen3-Coder's files say what the class computes in any case. */
static const struct config_key QWEN3_KEYS[] = {
    SHARED_KEYS,
    { "use_qk_norm", "true" },
    { "shared_expert_intermediate_size", "0" },
    { NULL, NULL },
};

static bool is_qwen2(const json_t *config)
{
    return describe_has_type(config, "qwen2_moe");
}

static bool is_qwen3(const json_t *config)
{
    return describe_has_type(config, "qwen3_moe");
}

static bool is_qwen3_vl(const json_t *config)
{
    return describe_has_type(config, "qwen3_vl_moe_text");
}

/* Files contain a window although no published model uses it. */
static void refuse_window(struct model_desc *d, struct config *c)
{
    if (config_bool_or(c, "use_sliding_window", false))
        config_unsupported(c, "use_sliding_window", "a window of attention");
    (void)config_int_or(c, "sliding_window", 0, INT32_MAX, 0);
    (void)config_int_or(c, "max_window_layers", 0, INT32_MAX, 0);
    describe_layer_types(d, c, 0, 0);
}

/* Marks the layers without experts: those of mlp_only_layers, and with decoder_sparse_step n all but
 * every n-th. */
static void read_dense(uint8_t *is_dense, const struct model_desc *d, struct config *c)
{
    const json_t *only = config_find(c, "mlp_only_layers");
    int step = config_int_or(c, "decoder_sparse_step", 1, LIMIT_LAYERS, 1);
    for (int i = 0; i < d->n_layers; i++)
        is_dense[i] = (i + 1) % step != 0;
    if (only && !json_is_array(only))
        config_unsupported(c, "mlp_only_layers", "what is no list of layers");
    for (size_t i = 0; i < json_array_size(only); i++) {
        const json_t *layer = json_array_get(only, i);
        if (!json_is_integer(layer))
            config_unsupported(c, "mlp_only_layers", "an entry that is no number of a layer");
        else if (json_integer_value(layer) >= 0 && json_integer_value(layer) < d->n_layers)
            is_dense[json_integer_value(layer)] = 1;
    }
}

/* Reads what both have. n_experts, n_chosen, d_ff: of a file that says nothing. */
static void describe_experts(struct model_desc *d, struct config *c, struct expert_desc *e, int n_experts,
                             int n_chosen, int d_ff)
{
    uint8_t is_dense[LIMIT_LAYERS] = { 0 };
    const char *n = describe_either(c, "num_experts", "num_local_experts");
    refuse_window(d, c);
    e->routing.n_experts = config_int_or(c, n, 1, LIMIT_EXPERTS, n_experts);
    e->routing.n_chosen = config_int_or(c, "num_experts_per_tok", 1, LIMIT_EXPERTS, n_chosen);
    e->routing.is_normed = config_bool_or(c, "norm_topk_prob", false);
    e->d_ff = config_int_or(c, "moe_intermediate_size", 1, LIMIT_DIMENSION, d_ff);
    read_dense(is_dense, d, c);
    describe_expert_layers(d, e, is_dense);
}

/* e: what is known of the experts; the rest is read from the file. All layers have experts. */
static void describe_gguf_qwen(struct model_desc *d, struct config *c, struct expert_desc *e)
{
    bool is_normed = e->routing.is_normed;
    describe_gguf_experts(d, c);
    describe_gguf(d, c);
    d->kinds[0].attn.rope = ROPE_HALF;
    e->routing = d->kinds[0].ffn.experts.routing;
    e->routing.is_normed = is_normed;
    e->d_ff = config_int_or(c, "expert_feed_forward_length", 1, LIMIT_DIMENSION,
                            d->kinds[0].ffn.d_ff / e->routing.n_chosen);
    if (e->gates_shared)
        e->d_shared = config_int_or(c, "expert_shared_feed_forward_length", 1, LIMIT_DIMENSION,
                                    d->kinds[0].ffn.d_ff);
    describe_expert_layers(d, e, NULL);
}

static void describe_qwen2(struct model_desc *d, struct config *c, bool is_gguf)
{
    static const struct transformers_defaults DEFAULTS = { 16, 0, 32768, 1e-6, 0 };
    struct expert_desc e = { .gates_shared = true };
    if (is_gguf) {
        d->kinds[0].attn.has_qkv_bias = true;
        describe_gguf_qwen(d, c, &e);
        return;
    }
    describe_transformers(d, c, &DEFAULTS);
    d->kinds[0].attn.has_qkv_bias = config_bool_or(c, "qkv_bias", true);
    e.d_shared = config_int_or(c, "shared_expert_intermediate_size", 1, LIMIT_DIMENSION, 5632);
    describe_experts(d, c, &e, 60, 4, 1408);
}

static void describe_qwen3(struct model_desc *d, struct config *c, bool is_gguf)
{
    static const struct transformers_defaults DEFAULTS = { 4, 0, 32768, 1e-6, 0 };
    struct attn_desc *a = &d->kinds[0].attn;
    struct expert_desc e = { .routing.is_normed = true }; /* of GGUF files */
    a->has_qk_norm = true;
    if (is_gguf) {
        describe_gguf_qwen(d, c, &e);
        return;
    }
    describe_transformers(d, c, &DEFAULTS);
    a->has_qkv_bias = a->has_out_bias = config_bool_or(c, "attention_bias", false);
    describe_experts(d, c, &e, 128, 8, 768);
}

/* Its class always divides the weights of a row's experts by their sum. */
static void describe_qwen3_vl(struct model_desc *d, struct config *c, bool is_gguf)
{
    static const struct transformers_defaults DEFAULTS = {
        .n_kv_heads = 16, .n_ctx = 128000, .norm_eps = 1e-6, .rope_theta = 5e5, .has_image_sections = true
    };
    struct attn_desc *a = &d->kinds[0].attn;
    struct expert_desc e = { .routing.is_normed = true };
    a->has_qk_norm = true;
    if (is_gguf) {
        describe_gguf_qwen(d, c, &e);
        describe_gguf_image_sections(d, c);
        return;
    }
    describe_transformers(d, c, &DEFAULTS);
    a->has_qkv_bias = a->has_out_bias = config_bool_or(c, "attention_bias", false);
    describe_experts(d, c, &e, 60, 4, 1408);
    for (int i = 0; i < d->n_kinds; i++)
        if (ffn_has_experts(&d->kinds[i].ffn))
            d->kinds[i].ffn.experts.routing.is_normed = true;
}

static void put_experts(struct gguf_writer *w, const struct model_desc *d, const char *arch)
{
    const struct expert_desc *e = &describe_find_kind(d, true)->ffn.experts;
    char key[64];
#define PUT(name, value)                                                                                     \
    gguf_writer_u32(w, (snprintf(key, sizeof key, "%s." name, arch), key), (uint32_t)(value))
    PUT("expert_count", e->routing.n_experts);
    PUT("expert_used_count", e->routing.n_chosen);
    PUT("expert_feed_forward_length", e->d_ff);
    if (e->d_shared > 0)
        PUT("expert_shared_feed_forward_length", e->d_shared);
#undef PUT
}

static void put_qwen2(struct gguf_writer *w, const struct model_desc *d)
{
    put_experts(w, d, "qwen2moe");
}

static void put_qwen3(struct gguf_writer *w, const struct model_desc *d)
{
    put_experts(w, d, "qwen3moe");
}

static void put_qwen3_vl(struct gguf_writer *w, const struct model_desc *d)
{
    put_experts(w, d, "qwen3vlmoe");
    describe_put_image_sections(w, "qwen3vlmoe", d);
}

static const char *find_qwen3_vl_fault(const struct model_desc *d)
{
    return d->image_sections[0] == 0 ? "no mrope_section" : NULL;
}

/* llama.cpp's graphs of the two architectures differ in this, and no key says it. */
static const char *find_qwen2_fault(const struct model_desc *d)
{
    const struct layer_desc *l = describe_find_kind(d, true);
    if (!d->kinds[0].attn.has_qkv_bias)
        return "qkv_bias: false";
    return l && l->ffn.experts.routing.is_normed ? "norm_topk_prob: true" : NULL;
}

static const char *find_qwen3_fault(const struct model_desc *d)
{
    const struct layer_desc *l = describe_find_kind(d, true);
    return l && !l->ffn.experts.routing.is_normed ? "norm_topk_prob: false" : NULL;
}

const struct family FAMILY_QWEN2_MOE = {
    .name = "qwen2_moe",
    .gguf_architecture = "qwen2moe",
    .has_experts = true,
    .is_mine = is_qwen2,
    .keys = KEYS,
    .describe = describe_qwen2,
    .put_metadata = put_qwen2,
    .find_gguf_fault = find_qwen2_fault,
    .layouts = QWEN2_LAYOUTS,
    .n_layouts = sizeof QWEN2_LAYOUTS / sizeof *QWEN2_LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};

const struct family FAMILY_QWEN3_MOE = {
    .name = "qwen3_moe",
    .gguf_architecture = "qwen3moe",
    .has_experts = true,
    .is_mine = is_qwen3,
    .keys = QWEN3_KEYS,
    .describe = describe_qwen3,
    .put_metadata = put_qwen3,
    .find_gguf_fault = find_qwen3_fault,
    .layouts = QWEN3_LAYOUTS,
    .n_layouts = sizeof QWEN3_LAYOUTS / sizeof *QWEN3_LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};

const struct family FAMILY_QWEN3_VL_MOE = {
    .name = "qwen3_vl_moe",
    .gguf_architecture = "qwen3vlmoe",
    .has_experts = true,
    .is_mine = is_qwen3_vl,
    .keys = KEYS,
    .gguf_keys = VL_GGUF_KEYS,
    .describe = describe_qwen3_vl,
    .put_metadata = put_qwen3_vl,
    .find_gguf_fault = find_qwen3_vl_fault,
    .layouts = QWEN3_VL_LAYOUTS,
    .n_layouts = sizeof QWEN3_VL_LAYOUTS / sizeof *QWEN3_VL_LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
