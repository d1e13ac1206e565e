/* OLMo 2, OLMo 3 and EXAONE 4: LLaMA's layers with norms of the outputs instead of the inputs, and of q and
 * k: OLMo's over all heads together, EXAONE's of each head. Three of four layers of OLMo 3 and of EXAONE 4's
 * larger models have a window; the others have OLMo's rotary scaling, or do not rotate (EXAONE). */
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
      NAMES_QK_NORMS,
      .of[SLOT_ATTN_OUT] = { LAYER "self_attn.o_proj.weight" },
      .of[SLOT_ATTN_POST_NORM] = { LAYER "post_attention_layernorm.weight" },
      NAMES_TRANSFORMERS_GATE_UP,
      .of[SLOT_DOWN] = { LAYER "mlp.down_proj.weight" },
      .of[SLOT_FFN_POST_NORM] = { LAYER "post_feedforward_layernorm.weight" } },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_GATE_UP, NAMES_GGUF_QK_NORMS, NAMES_GGUF_POST_NORMS),
};

static bool is_olmo2(const json_t *config)
{
    return describe_has_type(config, "olmo2") || describe_has_type(config, "olmo3");
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

/* Every PERIOD-th layer has no window. GGUF: of EXAONE 4, models of so many layers have windows. */
enum { PERIOD = 4, EXAONE4_32B_LAYERS = 64 };

static const struct config_key EXAONE4_KEYS[] = {
    { "partial_rotary_factor", "1.0" },
    { "cache_implementation", NULL },
    { NULL, NULL },
};

#define PATTERN_KEY "attention.sliding_window_pattern"
static const struct config_key GGUF_KEYS[] = {
    { PATTERN_KEY, NULL }, /* always PERIOD: expect_pattern() */
    { NULL, NULL },
};

/* GGUF says the layers with windows as a period, or layer by layer. llama.cpp takes PERIOD if it finds a list, so
 * others are refused. */
static void expect_pattern(const struct model_desc *d, struct config *c, bool has_windows)
{
    char key[96];
    snprintf(key, sizeof key, "%s" PATTERN_KEY, c->prefix);
    const struct gguf_array *array = c->gguf ? gguf_find_array(c->gguf, key) : NULL;
    bool is_right = array
                        ? gguf_array_n(array) == (size_t)d->n_layers && gguf_array_type(array) != GGUF_STRING
                        : config_int_or(c, PATTERN_KEY, 1, LIMIT_LAYERS, PERIOD) == PERIOD;
    for (int i = 0; array && is_right && i < d->n_layers; i++)
        is_right = (gguf_array_int(array, (size_t)i) != 0) == (has_windows && (i + 1) % PERIOD != 0);
    if (!is_right)
        config_unsupported(c, PATTERN_KEY, "windows in other layers than those of the published models");
}

static const char *find_window_fault(const struct model_desc *d, bool has_windows)
{
    for (int i = 0; i < d->n_layers; i++)
        if ((model_layer(d, i)->attn.window > 0) != (has_windows && (i + 1) % PERIOD != 0))
            return "layer_types: windows in other layers than those of the published models";
    return NULL;
}

static void describe_gguf_olmo(struct model_desc *d, struct config *c)
{
    describe_gguf(d, c);
    d->kinds[0].attn.rope = ROPE_HALF;
    int window = config_int_or(c, "attention.sliding_window", 0, INT32_MAX, 0);
    double theta = d->kinds[0].attn.rope_theta;
    expect_pattern(d, c, window > 0);
    if (config_float_or(c, "rope.freq_base_swa", 1e-6, 1e12, theta) != theta) /* llama.cpp does not use it */
        config_unsupported(c, "rope.freq_base_swa", "another base of layers with a window");
    describe_layer_periods(d, c, window, PERIOD);
    describe_window_rope(d, theta);
}

static void describe_olmo(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    bool is_olmo3 = describe_has_type(c->root, "olmo3");
    struct transformers_defaults defaults = { .n_ctx = 2048, .norm_eps = 1e-5 };
    set_common(d);
    a->norms_all_heads = true;
    if (is_gguf) {
        describe_gguf_olmo(d, c);
        return;
    }
    if (is_olmo3)
        defaults.rope_theta = 500000;
    describe_transformers(d, c, &defaults);
    a->has_qkv_bias = a->has_out_bias = config_bool_or(c, "attention_bias", false);
    if (!is_olmo3)
        return;
    double local = describe_kinds_rope(d, c, &defaults, a->rope_theta);
    /* transformers fails with null */
    int window = config_has(c, "sliding_window") ? config_int(c, "sliding_window", 1, INT32_MAX) : 4096;
    describe_layer_periods(d, c, window, PERIOD);
    describe_window_rope(d, local);
}

/* llama.cpp has heads as wide as the model and an output matrix, rotates all layers with one base, and takes no
 * factors of frequencies. */
static const char *find_olmo_fault(const struct model_desc *d)
{
    const struct attn_desc *a = &d->kinds[0].attn;
    for (int i = 0; i < d->n_kinds; i++) {
        const struct attn_desc *of = &d->kinds[i].attn;
        if (of->rope_theta != a->rope_theta)
            return "rope_parameters: another rope_theta in layers with a window";
        if (of->rope_scaling.kind == ROPE_SCALING_LLAMA3 || of->rope_scaling.kind == ROPE_SCALING_LONGROPE)
            return "rope_type: llama3 or longrope";
    }
    if (a->n_heads * a->head_dim != d->d_model)
        return "head_dim: another number than hidden_size / num_attention_heads";
    if (d->tied_output)
        return "tie_word_embeddings: true";
    return a->has_qkv_bias ? "attention_bias: true" : find_window_fault(d, model_window(d) > 0);
}

static void put_olmo(struct gguf_writer *w, const struct model_desc *d)
{
    bool slides[LIMIT_LAYERS];
    for (int i = 0; i < d->n_layers; i++)
        slides[i] = model_layer(d, i)->attn.window > 0;
    if (model_window(d) == 0)
        return;
    gguf_writer_bools(w, "olmo2." PATTERN_KEY, slides, (size_t)d->n_layers);
    gguf_writer_f32(w, "olmo2.rope.freq_base_swa", (float)d->kinds[0].attn.rope_theta);
}

static int read_exaone4_window(struct model_desc *d, struct config *c, bool is_gguf)
{
    if (!is_gguf)
        return config_int_or(c, "sliding_window", 1, INT32_MAX, config_has(c, "sliding_window") ? 0 : 4096);
    int window = config_int_or(c, "attention.sliding_window", 0, INT32_MAX, 4096);
    bool has_windows = d->n_layers == EXAONE4_32B_LAYERS;
    expect_pattern(d, c, has_windows);
    return has_windows ? window : 0;
}

static void describe_exaone4(struct model_desc *d, struct config *c, bool is_gguf)
{
    static const struct transformers_defaults DEFAULTS = { .n_kv_heads = 32,
                                                           .n_ctx = 2048,
                                                           .norm_eps = 1e-5 };
    int period = PERIOD;
    set_common(d);
    if (is_gguf) {
        describe_gguf(d, c);
        d->kinds[0].attn.rope = ROPE_HALF;
    } else {
        describe_transformers(d, c, &DEFAULTS);
        if (config_find(c, "layer_types"))
            config_skip(c, "sliding_window_pattern"); /* a text such as "LLLG" says the same */
        else
            period = config_int_or(c, "sliding_window_pattern", 1, LIMIT_LAYERS, PERIOD);
    }
    int window = read_exaone4_window(d, c, is_gguf);
    describe_layer_periods(d, c, window, period);
    for (int i = 0; window > 0 && i < d->n_kinds; i++)
        if (d->kinds[i].attn.window == 0)
            d->kinds[i].attn.rope = ROPE_NONE;
}

/* With a sliding_window that no layer has, no layer rotates. */
static const char *find_exaone4_fault(const struct model_desc *d)
{
    bool has_windows = d->n_layers == EXAONE4_32B_LAYERS;
    for (int i = 0; !has_windows && i < d->n_layers; i++)
        if (model_layer(d, i)->attn.rope == ROPE_NONE)
            return "sliding_window: layers without rotary embedding, unlike those of the published model";
    return find_window_fault(d, has_windows);
}

const struct family FAMILY_OLMO2 = {
    .name = "olmo2",
    .gguf_architecture = "olmo2",
    .is_mine = is_olmo2,
    .keys = CONFIG_KEYS_ROTARY,
    .gguf_keys = GGUF_KEYS,
    .find_gguf_fault = find_olmo_fault,
    .has_window_layers = true,
    .describe = describe_olmo,
    .put_metadata = put_olmo,
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
    .gguf_keys = GGUF_KEYS,
    .find_gguf_fault = find_exaone4_fault,
    .has_window_layers = true,
    .describe = describe_exaone4,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_no_prefix,
};
