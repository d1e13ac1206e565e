/* OLMo 2 and EXAONE 4: LLaMA's layers with norms of the outputs instead of the inputs, and of q and k:
 * OLMo's over all heads together, EXAONE's of each head. EXAONE 4's larger models have layers with a
 * window, and the others do not rotate. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

#define LAYER "model.layers.%d."
static const struct tensor_names LAYOUTS[] = {
    { .of[SLOT_EMBEDDING] = { "model.embed_tokens.weight" },
      .of[SLOT_OUTPUT] = { "lm_head.weight" },
      .of[SLOT_OUTPUT_NORM] = { "model.norm.weight" },
      .of[SLOT_QKV] = { LAYER "self_attn.q_proj.weight", LAYER "self_attn.k_proj.weight",
                        LAYER "self_attn.v_proj.weight" },
      .of[SLOT_Q_NORM] = { LAYER "self_attn.q_norm.weight" },
      .of[SLOT_K_NORM] = { LAYER "self_attn.k_norm.weight" },
      .of[SLOT_ATTN_OUT] = { LAYER "self_attn.o_proj.weight" },
      .of[SLOT_ATTN_POST_NORM] = { LAYER "post_attention_layernorm.weight" },
      NAMES_TRANSFORMERS_GATE_UP,
      .of[SLOT_DOWN] = { LAYER "mlp.down_proj.weight" },
      .of[SLOT_FFN_POST_NORM] = { LAYER "post_feedforward_layernorm.weight" } },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_GATE_UP, .of[SLOT_Q_NORM] = { "blk.%d.attn_q_norm.weight" },
                 .of[SLOT_K_NORM] = { "blk.%d.attn_k_norm.weight" },
                 .of[SLOT_ATTN_POST_NORM] = { "blk.%d.post_attention_norm.weight" },
                 .of[SLOT_FFN_POST_NORM] = { "blk.%d.post_ffw_norm.weight" }),
};

static bool is_olmo2(const json_t *config)
{
    return describe_has_type(config, "olmo2");
}

static bool is_exaone4(const json_t *config)
{
    return describe_has_type(config, "exaone4");
}

static void set_common(struct model_desc *d)
{
    d->has_post_norms = d->has_no_pre_norms = true;
    d->kinds[0].attn.has_qk_norm = true;
}

static void describe_olmo2(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    static const struct transformers_defaults DEFAULTS = { .n_ctx = 2048, .norm_eps = 1e-5 };
    set_common(d);
    a->norms_all_heads = true;
    if (is_gguf) {
        describe_gguf(d, c);
        a->rope = ROPE_HALF;
        return;
    }
    describe_transformers(d, c, &DEFAULTS);
    a->has_qkv_bias = a->has_out_bias = config_bool_or(c, "attention_bias", false);
}

static const char *find_olmo2_fault(const struct model_desc *d)
{
    return d->kinds[0].attn.has_qkv_bias ? "attention_bias: true" : NULL;
}

enum { EXAONE4_PERIOD = 4, EXAONE4_32B_LAYERS = 64 }; /* GGUF: a model of so many layers has windows */

static const struct config_key EXAONE4_KEYS[] = {
    { "partial_rotary_factor", "1.0" },
    { "cache_implementation", NULL },
    { NULL, NULL },
};

#define PATTERN_KEY "attention.sliding_window_pattern"
static const struct config_key EXAONE4_GGUF_KEYS[] = {
    { PATTERN_KEY, NULL }, /* the number of layers says it: expect_exaone4_pattern() */
    { NULL, NULL },
};

/* GGUF says the layers with windows as a period, or layer by layer; both only matter where there are windows. has_windows: the model
 * has so many layers as the one with windows. */
static void expect_exaone4_pattern(const struct model_desc *d, struct config *c, bool has_windows)
{
    char key[96];
    snprintf(key, sizeof key, "%s" PATTERN_KEY, c->prefix);
    const struct gguf_array *array = c->gguf ? gguf_find_array(c->gguf, key) : NULL;
    bool is_right = array
                        ? gguf_array_n(array) == (size_t)d->n_layers && gguf_array_type(array) != GGUF_STRING
                        : config_int_or(c, PATTERN_KEY, 1, LIMIT_LAYERS, EXAONE4_PERIOD) == EXAONE4_PERIOD;
    for (int i = 0; array && is_right && i < d->n_layers; i++)
        is_right = (gguf_array_int(array, (size_t)i) != 0) == (has_windows && (i + 1) % EXAONE4_PERIOD != 0);
    if (!is_right)
        config_unsupported(c, PATTERN_KEY, "windows in other layers than those of the 32B model");
}

static int read_exaone4_window(struct model_desc *d, struct config *c, bool is_gguf)
{
    if (!is_gguf)
        return config_int_or(c, "sliding_window", 1, INT32_MAX, config_has(c, "sliding_window") ? 0 : 4096);
    int window = config_int_or(c, "attention.sliding_window", 0, INT32_MAX, 4096);
    bool has_windows = d->n_layers == EXAONE4_32B_LAYERS;
    expect_exaone4_pattern(d, c, has_windows);
    return has_windows ? window : 0;
}

static void describe_exaone4(struct model_desc *d, struct config *c, bool is_gguf)
{
    static const struct transformers_defaults DEFAULTS = { .n_kv_heads = 32,
                                                           .n_ctx = 2048,
                                                           .norm_eps = 1e-5 };
    int period = EXAONE4_PERIOD;
    set_common(d);
    if (is_gguf) {
        describe_gguf(d, c);
        d->kinds[0].attn.rope = ROPE_HALF;
    } else {
        describe_transformers(d, c, &DEFAULTS);
        if (config_find(c, "layer_types"))
            config_skip(c, "sliding_window_pattern"); /* a text such as "LLLG" says the same */
        else
            period = config_int_or(c, "sliding_window_pattern", 1, LIMIT_LAYERS, EXAONE4_PERIOD);
    }
    int window = read_exaone4_window(d, c, is_gguf);
    describe_layer_periods(d, c, window, period);
    for (int i = 0; window > 0 && i < d->n_kinds; i++)
        if (d->kinds[i].attn.window == 0)
            d->kinds[i].attn.rope = ROPE_NONE;
}

static const char *find_exaone4_fault(const struct model_desc *d)
{
    bool is_hybrid = d->n_layers == EXAONE4_32B_LAYERS;
    for (int i = 0; i < d->n_layers; i++)
        if ((model_layer(d, i)->attn.window > 0) != (is_hybrid && (i + 1) % EXAONE4_PERIOD != 0))
            return "layer_types: windows in other layers than those of the 32B model";
    return NULL;
}

const struct family FAMILY_OLMO2 = {
    .name = "olmo2",
    .gguf_architecture = "olmo2",
    .is_mine = is_olmo2,
    .keys = CONFIG_KEYS_ROTARY,
    .find_gguf_fault = find_olmo2_fault,
    .describe = describe_olmo2,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};

const struct family FAMILY_EXAONE4 = {
    .name = "exaone4",
    .gguf_architecture = "exaone4",
    .is_mine = is_exaone4,
    .keys = EXAONE4_KEYS,
    .gguf_keys = EXAONE4_GGUF_KEYS,
    .find_gguf_fault = find_exaone4_fault,
    .has_window_layers = true,
    .describe = describe_exaone4,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
