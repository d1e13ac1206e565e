/* Gemma 4, the language part of its dense model and of that with experts: Gemma 3's layers with norms stored as they are.
 * Layers without a window have another head dimension and number of KV heads, often no matrix of values (these are the
 * keys before their norm), and rotate only the first pairs of a head. Values are normed, scores are not scaled, and the
 * stream is multiplied by a number after each layer. Experts are parallel with the dense block, with norms of their own.
 * Checkpoints with parts for images and sound are unwrapped by checkpoint/text_part.h. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAYER        "model.layers.%d."
#define NAMES_GEMMA4 NAMES_GEMMA_BUT_MLP, NAMES_QK_NORMS, .of[SLOT_LAYER_SCALE] = { LAYER "layer_scalar" }
#define NAMES_GEMMA4_GGUF                                                                                    \
    NAMES_GGUF, NAMES_GGUF_QK_NORMS, NAMES_GGUF_POST_NORMS,                                                  \
        .of[SLOT_LAYER_SCALE] = { "blk.%d.layer_output_scale.weight" }
#define NAMES_GEMMA4_GGUF_MOE                                                                                \
    NAMES_GEMMA4_GGUF, .of[SLOT_ROUTER] = { "blk.%d.ffn_gate_inp.weight" },                                  \
                       .of[SLOT_ROUTER_NORM] = { "blk.%d.ffn_gate_inp.scale" },                              \
                       .of[SLOT_EXPERT_FACTORS] = { "blk.%d.ffn_down_exps.scale" },                          \
                       .of[SLOT_EXPERT_NORM] = { "blk.%d.pre_ffw_norm_2.weight" },                           \
                       .of[SLOT_SHARED_POST_NORM] = { "blk.%d.post_ffw_norm_1.weight" },                     \
                       .of[SLOT_EXPERT_POST_NORM] = { "blk.%d.post_ffw_norm_2.weight" },                     \
                       .of[SLOT_SHARED_GATE_UP] = { "blk.%d.ffn_gate.weight", "blk.%d.ffn_up.weight" },      \
                       .of[SLOT_SHARED_DOWN] = { "blk.%d.ffn_down.weight" }

static const struct tensor_names LAYOUTS[] = {
    { NAMES_GEMMA4, NAMES_TRANSFORMERS_GATE_UP, NAMES_TRANSFORMERS_DOWN },
    LAYOUTS_GGUF(NAMES_GEMMA4_GGUF, NAMES_GGUF_GATE_UP),
};

static const struct tensor_names MOE_LAYOUTS[] = {
    { NAMES_GEMMA4, .of[SLOT_SHARED_GATE_UP] = { LAYER "mlp.gate_proj.weight", LAYER "mlp.up_proj.weight" },
      .of[SLOT_SHARED_DOWN] = { LAYER "mlp.down_proj.weight" },
      .of[SLOT_ROUTER] = { LAYER "router.proj.weight" }, .of[SLOT_ROUTER_NORM] = { LAYER "router.scale" },
      .of[SLOT_EXPERT_FACTORS] = { LAYER "router.per_expert_scale" },
      .of[SLOT_EXPERT_GATE_UP] = { LAYER "experts.gate_up_proj" },
      .of[SLOT_EXPERT_DOWN] = { LAYER "experts.down_proj" },
      .of[SLOT_EXPERT_NORM] = { LAYER "pre_feedforward_layernorm_2.weight" },
      .of[SLOT_SHARED_POST_NORM] = { LAYER "post_feedforward_layernorm_1.weight" },
      .of[SLOT_EXPERT_POST_NORM] = { LAYER "post_feedforward_layernorm_2.weight" } },
    LAYOUTS_GGUF(NAMES_GEMMA4_GGUF_MOE, NAMES_GGUF_EXPERTS_FUSED),
    LAYOUTS_GGUF(NAMES_GEMMA4_GGUF_MOE, NAMES_GGUF_EXPERTS),
};

/* Layers whose number + 1 is a multiple of it have no window. */
enum { PERIOD = 6 };

static bool is_gemma4(const json_t *config)
{
    return describe_has_type(config, "gemma4_text") || describe_has_type(config, "gemma4");
}

static bool has_moe_block(const json_t *config)
{
    return json_is_true(json_object_get(config, "enable_moe_block"));
}

static bool is_dense(const json_t *config)
{
    return is_gemma4(config) && !has_moe_block(config);
}

static bool is_moe(const json_t *config)
{
    return is_gemma4(config) && has_moe_block(config);
}

#define SHARED_KEYS                                                                                          \
    { "use_double_wide_mlp", NULL },            /* of layers that share keys and values */                   \
        { "vocab_size_per_layer_input", NULL }, /* of embeddings for each layer */                           \
        { "cache_implementation", NULL },                                                                    \
    {                                                                                                        \
        "hidden_act", NULL                                                                                   \
    } /* hidden_activation is used */

static const struct config_key KEYS[] = {
    SHARED_KEYS,
    { "num_experts", NULL }, /* of experts, which the model does not have, and the next two */
    { "top_k_experts", NULL },
    { "moe_intermediate_size", NULL },
    { NULL, NULL },
};

static const struct config_key MOE_KEYS[] = {
    SHARED_KEYS,
    { "output_router_logits", NULL },
    { NULL, NULL },
};

/* Read as arrays by read_gguf_layers(). */
#define PATTERN_KEY  "attention.sliding_window_pattern"
#define KV_HEADS_KEY "attention.head_count_kv"
static const struct config_key GGUF_KEYS[] = {
    { PATTERN_KEY, NULL },
    { KV_HEADS_KEY, NULL },
    { NULL, NULL },
};

/* ---- kinds of layers ---- */

/* How attention with and without a window differ. */
struct two_kinds {
    struct attn_desc *plain, *windowed; /* NULL: no layer is so */
};

static struct two_kinds find_kinds(struct model_desc *d)
{
    struct two_kinds kinds = { NULL, NULL };
    for (int i = 0; i < d->n_kinds; i++)
        *(d->kinds[i].attn.window > 0 ? &kinds.windowed : &kinds.plain) = &d->kinds[i].attn;
    return kinds;
}

static void set_common(struct model_desc *d)
{
    struct attn_desc *a = &d->kinds[0].attn;
    d->embedding_scale = (float)sqrt(d->d_model);
    d->has_post_norms = true;
    d->kinds[0].ffn.activation = ACT_GELU_TANH;
    a->rope = ROPE_HALF;
    a->scale = 1;
    a->has_qk_norm = a->norms_values = true;
}

/* Experts in all layers, with the dense block of kinds[0] as the shared expert. */
static void set_experts(struct model_desc *d, const struct expert_desc *read)
{
    struct expert_desc experts = *read;
    experts.routing.is_normed = true;
    experts.d_shared = d->kinds[0].ffn.d_ff;
    experts.has_factors = experts.has_norms = true;
    experts.router_scale = (float)(1 / sqrt(d->d_model));
    describe_expert_layers(d, &experts, NULL);
}

/* ---- config.json ---- */

/* Refuses what only the small models have. */
static void refuse_small_models(struct config *c)
{
    static const char LAYER_INPUT[] = "hidden_size_per_layer_input";
    bool is_null = config_has(c, LAYER_INPUT) && !config_find(c, LAYER_INPUT);
    if (!is_null && config_int_or(c, LAYER_INPUT, 0, LIMIT_DIMENSION, 256) > 0)
        config_unsupported(c, LAYER_INPUT, "an embedding for each layer, as Gemma 4 E2B and E4B have it,");
    if (config_int_or(c, "num_kv_shared_layers", 0, LIMIT_LAYERS, 0) > 0)
        config_unsupported(c, "num_kv_shared_layers", "keys and values that layers share");
}

/* "vision" concerns the tokens of images. */
static void expect_causal(struct config *c)
{
    static const char KEY[] = "use_bidirectional_attention";
    const json_t *value = config_find(c, KEY);
    const char *text = json_string_value(value);
    if (value && !json_is_false(value) && (!text || strcmp(text, "vision") != 0))
        config_unsupported(c, KEY, "another value than \"vision\" or null");
}

/* The rotation of layers of one kind. Pairs that do not rotate come last in each half of a head. */
static void read_rope(struct attn_desc *a, struct config *c, const char *kind, const char *type, double theta,
                      double part)
{
    char key[96];
#define KEY(name) (snprintf(key, sizeof key, "rope_parameters.%s.%s", kind, name), key)
    bool is_given = config_has_object(c, "rope_parameters");
    if (is_given && !json_is_object(json_object_get(json_object_get(c->root, "rope_parameters"), kind)))
        config_unsupported(c, "rope_parameters", "what has no object for each kind of layers");
    const char *found = config_string_or(c, KEY("rope_type"), is_given ? "default" : type);
    bool is_partial = strcmp(found, "proportional") == 0;
    if (!is_partial && strcmp(found, "default") != 0)
        config_unsupported(c, KEY("rope_type"), found);
    a->rope_theta = config_float_or(c, KEY("rope_theta"), 1e-6, 1e12, is_given ? 10000 : theta);
    a->rotary_dim = a->head_dim;
    if (!is_partial) { /* then these have no effect */
        config_skip(c, KEY("partial_rotary_factor"));
        config_skip(c, KEY("factor"));
        return;
    }
    part = config_float_or(c, KEY("partial_rotary_factor"), 0, 1, is_given ? 1 : part);
    a->n_rotating = (int)floor(part * a->head_dim / 2);
    if (a->n_rotating == 0)
        config_unsupported(c, KEY("partial_rotary_factor"), "a part of a head without a pair");
    double factor = config_float_or(c, KEY("factor"), 1e-3, 1e6, 1);
    if (factor != 1)
        a->rope_scaling = (struct rope_scaling){ .kind = ROPE_SCALING_LINEAR, .factor = factor };
#undef KEY
}

/* What differs between layers. */
struct heads {
    int dim, n_kv;
};

/* What per_layer_config says of a layer; base: where it says nothing. own NULL: it has no entry. */
static struct heads read_heads(struct config *c, const char *key, const json_t *own, struct heads base)
{
    const char *name;
    json_t *value;
    if (own && !json_is_object(own))
        config_unsupported(c, key, "what is no object of a layer");
    json_object_foreach((json_t *)(uintptr_t)own, name, value)
    {
        json_int_t n = json_integer_value(value);
        int *to = strcmp(name, "head_dim") == 0              ? &base.dim
                  : strcmp(name, "num_key_value_heads") == 0 ? &base.n_kv
                                                             : NULL;
        if (!to)
            config_unsupported(c, key, "another setting of a layer than head_dim and num_key_value_heads");
        else if (n < 1 || n > LIMIT_DIMENSION)
            config_unsupported(c, key, "what is no positive number of a layer");
        else
            *to = (int)n;
    }
    return base;
}

/* Settings of single layers, as transformers saves them. Those of one kind must be alike. */
static void read_layer_config(struct model_desc *d, struct config *c, const char *key)
{
    const json_t *all = config_find(c, key);
    const struct heads base = { d->kinds[0].attn.head_dim, d->kinds[0].attn.n_kv_heads };
    size_t n_known = 0;
    bool is_read[MAX_LAYER_KINDS] = { false };
    for (int i = 0; i < d->n_layers; i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i);
        const json_t *own = json_object_get(all, number);
        struct heads heads = read_heads(c, key, own, base);
        struct attn_desc *a = &d->kinds[d->kind_of[i]].attn;
        if (is_read[d->kind_of[i]] && (heads.dim != a->head_dim || heads.n_kv != a->n_kv_heads))
            config_unsupported(c, key, "other heads than those of other layers of the same kind");
        is_read[d->kind_of[i]] = true;
        a->head_dim = heads.dim;
        a->n_kv_heads = heads.n_kv;
        n_known += own != NULL;
    }
    if (n_known != json_object_size(all) || !json_is_object(all))
        config_unsupported(c, key, "what is no object by the numbers of layers");
}

/* The heads of layers without a window (plain; NULL: none): as the authors' files say it, or as transformers saves it. */
static void read_plain_heads(struct model_desc *d, struct config *c, struct attn_desc *plain)
{
    static const char KEY[] = "per_layer_config";
    bool has_values = !config_bool_or(c, "attention_k_eq_v", false);
    int head_dim = config_int_or(c, "global_head_dim", 1, LIMIT_DIMENSION, 512);
    int n_kv = config_int_or(c, "num_global_key_value_heads", 1, LIMIT_DIMENSION, 0);
    if (config_find(c, KEY)) { /* then the two keys have no effect */
        read_layer_config(d, c, KEY);
    } else if (plain) {
        plain->head_dim = head_dim;
        plain->n_kv_heads = n_kv > 0 && !has_values ? n_kv : plain->n_kv_heads;
    }
    if (plain)
        plain->keys_are_values = !has_values;
}

static void describe_config(struct model_desc *d, struct config *c)
{
    static const struct transformers_defaults DEFAULTS = { .n_heads = 8,
                                                           .n_kv_heads = 4,
                                                           .head_dim = 256,
                                                           .n_ctx = 131072,
                                                           .n_vocab = 262144,
                                                           .norm_eps = 1e-6,
                                                           .is_tied = true,
                                                           .activation_key = "hidden_activation",
                                                           .activation = ACT_GELU_TANH };
    refuse_small_models(c);
    expect_causal(c);
    if (config_has(c, "rope_theta") || config_has_object(c, "rope_scaling"))
        config_unsupported(c, config_has(c, "rope_theta") ? "rope_theta" : "rope_scaling",
                           "a setting of the rotation outside of rope_parameters");
    describe_transformers(d, c, &DEFAULTS);
    set_common(d);
    struct attn_desc *a = &d->kinds[0].attn;
    a->has_qkv_bias = a->has_out_bias = config_bool_or(c, "attention_bias", false);
    d->has_layer_scale = true;
    d->logit_softcap = (float)config_float_or(c, "final_logit_softcapping", 1e-3, 1e6, 0);
    describe_layer_periods(d, c, config_int_or(c, "sliding_window", 1, INT32_MAX, 512), PERIOD);
    if (model_layer(d, d->n_layers - 1)->attn.window > 0) /* transformers takes it away */
        config_unsupported(c, "layer_types", "a window of the last layer");
    struct two_kinds kinds = find_kinds(d);
    read_plain_heads(d, c, kinds.plain);
    if (kinds.plain)
        read_rope(kinds.plain, c, "full_attention", "proportional", 1e6, 0.25);
    if (kinds.windowed)
        read_rope(kinds.windowed, c, "sliding_attention", "default", 1e4, 1);
}

/* ---- GGUF ---- */

/* Which layers have the window, and the KV heads of each kind. */
static struct two_kinds read_gguf_layers(struct model_desc *d, struct config *c)
{
    char key[96];
    bool slides[LIMIT_LAYERS] = { false };
    snprintf(key, sizeof key, "%s" PATTERN_KEY, c->prefix);
    const struct gguf_array *pattern = gguf_find_array(c->gguf, key);
    snprintf(key, sizeof key, "%s" KV_HEADS_KEY, c->prefix);
    const struct gguf_array *heads = gguf_find_array(c->gguf, key);
    size_t n = (size_t)d->n_layers;
    if (!pattern || gguf_array_type(pattern) == GGUF_STRING || gguf_array_n(pattern) != n)
        config_unsupported(c, PATTERN_KEY, "what is no array with an element for each layer");
    else
        for (size_t i = 0; i < n; i++)
            slides[i] = gguf_array_int(pattern, i) != 0;
    struct layer_split split = describe_split(d, slides);
    int window = config_int(c, "attention.sliding_window", 1, INT32_MAX);
    if (split.marked >= 0)
        d->kinds[split.marked].attn.window = window;
    struct two_kinds kinds = find_kinds(d);
    if (heads && (gguf_array_type(heads) == GGUF_STRING || gguf_array_n(heads) != n)) {
        config_unsupported(c, KV_HEADS_KEY, "an array of another length than the number of layers");
        return kinds;
    }
    bool is_read[MAX_LAYER_KINDS] = { false };
    for (size_t i = 0; heads && i < n; i++) {
        struct attn_desc *a = &d->kinds[d->kind_of[i]].attn;
        int64_t n_kv = gguf_array_int(heads, i);
        if (n_kv < 1 || n_kv > LIMIT_DIMENSION || (is_read[d->kind_of[i]] && n_kv != a->n_kv_heads))
            config_unsupported(c, KV_HEADS_KEY, "different numbers of layers of one kind, or one below 1,");
        else
            a->n_kv_heads = (int)n_kv;
        is_read[d->kind_of[i]] = true;
    }
    return kinds;
}

static void describe_gguf_config(struct model_desc *d, struct config *c)
{
    struct attn_desc *a = &d->kinds[0].attn;
    if (config_int_or(c, "embedding_length_per_layer_input", 0, INT32_MAX, 0) > 0)
        config_unsupported(c, "embedding_length_per_layer_input",
                           "an embedding for each layer, as Gemma 4 E2B and E4B have it,");
    if (config_int_or(c, "attention.shared_kv_layers", 0, INT32_MAX, 0) > 0)
        config_unsupported(c, "attention.shared_kv_layers", "keys and values that layers share");
    describe_gguf(d, c);
    if (a->rope_scaling.kind != ROPE_SCALING_NONE)
        config_unsupported(c, "rope.scaling.type", "a scaling of the rotation");
    set_common(d);
    d->logit_softcap = (float)config_float_or(c, "final_logit_softcapping", 0, 1e6, 0);
    struct two_kinds kinds = read_gguf_layers(d, c);
    int head_dim = config_int(c, "attention.key_length_swa", 1, LIMIT_DIMENSION);
    int rotary_dim = config_int_or(c, "rope.dimension_count_swa", 0, LIMIT_DIMENSION, head_dim);
    double theta = config_float_or(c, "rope.freq_base_swa", 1e-6, 1e12, 10000);
    if (config_int_or(c, "attention.value_length_swa", 1, LIMIT_DIMENSION, head_dim) != head_dim)
        config_unsupported(c, "attention.value_length_swa", "a head of values unlike the head of keys");
    if (!kinds.windowed)
        return;
    kinds.windowed->head_dim = head_dim;
    kinds.windowed->rotary_dim = rotary_dim;
    kinds.windowed->rope_theta = theta;
}

static bool has_layer_tensor(const struct checkpoint *ck, const char *pattern, int layer)
{
    char name[LIMIT_TENSOR_NAME_BYTES];
    snprintf(name, sizeof name, "blk.%d.%s", layer, pattern);
    return checkpoint_find(ck, name) != NULL;
}

static void find_parts(struct model_desc *d, const struct checkpoint *ck)
{
    d->has_layer_scale = has_layer_tensor(ck, "layer_output_scale.weight", 0);
    for (int i = d->n_layers - 1; i >= 0; i--)
        d->kinds[d->kind_of[i]].attn.keys_are_values = !has_layer_tensor(ck, "attn_v.weight", i) &&
                                                       !has_layer_tensor(ck, "attn_qkv.weight", i);
}

static void put_metadata(struct gguf_writer *w, const struct model_desc *d)
{
    bool slides[LIMIT_LAYERS];
    const struct attn_desc *plain = &model_layer(d, d->n_layers - 1)->attn, *windowed = plain;
    for (int i = 0; i < d->n_layers; i++) {
        slides[i] = model_layer(d, i)->attn.window > 0;
        windowed = slides[i] ? &model_layer(d, i)->attn : windowed;
    }
    gguf_writer_bools(w, "gemma4." PATTERN_KEY, slides, (size_t)d->n_layers);
    gguf_writer_u32(w, "gemma4.attention.key_length_swa", (uint32_t)windowed->head_dim);
    gguf_writer_u32(w, "gemma4.attention.value_length_swa", (uint32_t)windowed->head_dim);
    gguf_writer_u32(w, "gemma4.rope.dimension_count_swa", (uint32_t)windowed->rotary_dim);
    if (windowed->rope_theta == plain->rope_theta) /* else it is there already */
        gguf_writer_f32(w, "gemma4.rope.freq_base_swa", (float)windowed->rope_theta);
    gguf_writer_u32(w, "gemma4.attention.shared_kv_layers", 0);
    gguf_writer_u32(w, "gemma4.embedding_length_per_layer_input", 0);
    if (d->logit_softcap > 0)
        gguf_writer_f32(w, "gemma4.final_logit_softcapping", d->logit_softcap);
}

static void put_moe_metadata(struct gguf_writer *w, const struct model_desc *d)
{
    const struct expert_desc *e = &d->kinds[0].ffn.experts;
    put_metadata(w, d);
    gguf_writer_u32(w, "gemma4.expert_count", (uint32_t)e->routing.n_experts);
    gguf_writer_u32(w, "gemma4.expert_used_count", (uint32_t)e->routing.n_chosen);
    gguf_writer_u32(w, "gemma4.expert_feed_forward_length", (uint32_t)e->d_ff);
}

/* llama.cpp's graph has no biases. Its converter knows no factor of the rotation. */
static const char *find_fault(const struct model_desc *d)
{
    for (int i = 0; i < d->n_kinds; i++)
        if (d->kinds[i].attn.rope_scaling.kind != ROPE_SCALING_NONE)
            return "rope_parameters: a factor";
    if (model_window(d) == 0)
        return "layer_types: no layer with a window";
    return d->kinds[0].attn.has_qkv_bias ? "attention_bias: true" : NULL;
}

/* ---- families ---- */

static void gemma4_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    if (is_gguf)
        describe_gguf_config(d, c);
    else
        describe_config(d, c);
    (void)config_bool_or(c, "enable_moe_block", false);
}

static void gemma4_moe_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct expert_desc experts = { 0 };
    if (is_gguf) {
        describe_gguf_experts(d, c);
        experts.routing = d->kinds[0].ffn.experts.routing;
        experts.d_ff = config_int(c, "expert_feed_forward_length", 1, LIMIT_DIMENSION);
    } else {
        experts.routing.n_experts = config_int(c, "num_experts", 1, LIMIT_EXPERTS);
        experts.routing.n_chosen = config_int(c, "top_k_experts", 1, LIMIT_EXPERTS);
        experts.d_ff = config_int(c, "moe_intermediate_size", 1, LIMIT_DIMENSION);
    }
    gemma4_describe(d, c, is_gguf);
    set_experts(d, &experts);
}

const struct family FAMILY_GEMMA4 = {
    .name = "gemma4",
    .gguf_architecture = "gemma4",
    .is_mine = is_dense,
    .keys = KEYS,
    .gguf_keys = GGUF_KEYS,
    .describe = gemma4_describe,
    .find_parts = find_parts,
    .put_metadata = put_metadata,
    .find_gguf_fault = find_fault,
    .has_window_layers = true,
    .has_global_divisors = true,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_bos_prefix,
};

const struct family FAMILY_GEMMA4_MOE = {
    .name = "gemma4_moe",
    .gguf_architecture = "gemma4",
    .has_experts = true,
    .is_mine = is_moe,
    .keys = MOE_KEYS,
    .gguf_keys = GGUF_KEYS,
    .describe = gemma4_moe_describe,
    .find_parts = find_parts,
    .put_metadata = put_moe_metadata,
    .find_gguf_fault = find_fault,
    .has_window_layers = true,
    .has_global_divisors = true,
    .layouts = MOE_LAYOUTS,
    .n_layouts = sizeof MOE_LAYOUTS / sizeof *MOE_LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_bos_prefix,
};
