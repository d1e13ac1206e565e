/* Gemma: LLaMA's layers with norms that are stored minus 1, an embedding times the root of the width, and GeGLU.
 * Gemma 2 and Gemma 3 (its text part) also have norms after both blocks, and layers with and without a window. Gemma 2
 * caps scores and logits softly; Gemma 3 norms the heads of q and k, and its layers with a window rotate with
 * another base. Checkpoints of Gemma 3 with a vision part are unwrapped by checkpoint/text_part.h. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

#include <math.h>
#include <string.h>

#define NAMES_GEMMA                                                                                          \
    NAMES_GEMMA_BUT_MLP, NAMES_TRANSFORMERS_GATE_UP, NAMES_TRANSFORMERS_DOWN, .has_norms_less_one = true
#define NAMES_GEMMA_GGUF NAMES_GGUF, NAMES_GGUF_GATE_UP, NAMES_GGUF_POST_NORMS

static const struct tensor_names GEMMA_LAYOUTS[] = {
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP, .has_norms_less_one = true },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_GATE_UP),
};

static const struct tensor_names GEMMA2_LAYOUTS[] = { { NAMES_GEMMA }, LAYOUTS_GGUF(NAMES_GEMMA_GGUF) };

static const struct tensor_names GEMMA3_LAYOUTS[] = {
    { NAMES_GEMMA, NAMES_QK_NORMS },
    LAYOUTS_GGUF(NAMES_GEMMA_GGUF, NAMES_GGUF_QK_NORMS),
};

/* Layers whose number + 1 is a multiple of the period have no window. In GGUF models of so many layers
 * scale scores by the width of a head as if all heads together were as wide as the model. */
enum { GEMMA2_PERIOD = 2, GEMMA3_PERIOD = 6, GEMMA2_27B_LAYERS = 46, GEMMA3_27B_LAYERS = 62 };

static bool is_gemma(const json_t *config)
{
    return describe_has_type(config, "gemma");
}

static bool is_gemma2(const json_t *config)
{
    return describe_has_type(config, "gemma2");
}

static bool is_gemma3(const json_t *config)
{
    return describe_has_type(config, "gemma3_text") || describe_has_type(config, "gemma3");
}

static const struct config_key GEMMA_KEYS[] = {
    { "use_bidirectional_attention", "false" },
    CONFIG_WHOLE_HEADS,
    { NULL, NULL },
};

static const struct config_key KEYS[] = {
    { "hidden_act", NULL }, /* hidden_activation is used */
    { "cache_implementation", NULL },
    { "attn_logit_softcapping", "null" }, /* Gemma 3's class has none */
    { NULL, NULL },
};

static void set_common(struct model_desc *d)
{
    d->embedding_scale = (float)sqrt(d->d_model);
    d->kinds[0].ffn.activation = ACT_GELU_TANH;
    d->kinds[0].attn.rope = ROPE_HALF;
}

static float gguf_scale(const struct model_desc *d, int n_layers_27b)
{
    const struct attn_desc *a = &d->kinds[0].attn;
    return (float)(1 / sqrt(d->n_layers == n_layers_27b ? d->d_model / a->n_heads : a->head_dim));
}

/* A softcap; null: none. fallback: where the file does not have the key. */
static float read_cap(struct config *c, const char *key, double fallback)
{
    return (float)config_float_or(c, key, 1e-3, 1e6, config_has(c, key) ? 0 : fallback);
}

static void read_attention(struct model_desc *d, struct config *c)
{
    struct attn_desc *a = &d->kinds[0].attn;
    a->has_qkv_bias = a->has_out_bias = config_bool_or(c, "attention_bias", false);
    a->scale = (float)(1 / sqrt(config_float_or(c, "query_pre_attn_scalar", 1e-3, 1e6, 256)));
}

#define GEMMA_DEFAULTS(n_ctx_, n_vocab_)                                                                     \
    {                                                                                                        \
        .n_heads = 8, .n_kv_heads = 4, .head_dim = 256, .n_ctx = (n_ctx_), .n_vocab = (n_vocab_),            \
        .norm_eps = 1e-6, .is_tied = true, .activation_key = "hidden_activation",                            \
        .activation = ACT_GELU_TANH,                                                                         \
    }

static void describe_gemma(struct model_desc *d, struct config *c, bool is_gguf)
{
    static const struct transformers_defaults DEFAULTS = {
        .n_heads = 16,
        .n_kv_heads = 16,
        .head_dim = 256,
        .n_ctx = 8192,
        .n_vocab = 256000,
        .norm_eps = 1e-6,
        .is_tied = true,
        .activation_key = "hidden_activation",
        .activation = ACT_GELU_TANH,
    };
    struct attn_desc *a = &d->kinds[0].attn;
    if (is_gguf) {
        describe_gguf(d, c);
    } else {
        describe_transformers(d, c, &DEFAULTS);
        /* The first files say "gelu" and mean its tanh approximation. */
        if (strcmp(config_string_or(c, "hidden_act", "gelu"), "gelu") != 0)
            (void)describe_activation(c, "hidden_act", "gelu", 1U << ACT_GELU_TANH);
        a->has_qkv_bias = a->has_out_bias = config_bool_or(c, "attention_bias", false);
        describe_layer_types(d, c, 0, 0);
    }
    set_common(d);
}

static void describe_gemma2(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    static const struct transformers_defaults DEFAULTS = GEMMA_DEFAULTS(8192, 256000);
    if (is_gguf)
        describe_gguf(d, c);
    else
        describe_transformers(d, c, &DEFAULTS);
    set_common(d);
    d->has_post_norms = true;
    a->softcap = read_cap(c, "attn_logit_softcapping", 50);
    d->logit_softcap = read_cap(c, "final_logit_softcapping", 30);
    if (is_gguf)
        a->scale = gguf_scale(d, GEMMA2_27B_LAYERS);
    else
        read_attention(d, c);
    int window = config_int_or(c, is_gguf ? "attention.sliding_window" : "sliding_window", 1, INT32_MAX,
                               4096);
    int period = is_gguf
                     ? config_int_or(c, "attention.sliding_window_pattern", 1, LIMIT_LAYERS, GEMMA2_PERIOD)
                     : GEMMA2_PERIOD;
    describe_layer_periods(d, c, window, period);
}

static void describe_gguf_gemma3(struct model_desc *d, struct config *c)
{
    describe_gguf(d, c);
    set_common(d);
    d->has_post_norms = true;
    d->kinds[0].attn.scale = gguf_scale(d, GEMMA3_27B_LAYERS);
    d->logit_softcap = (float)config_float_or(c, "final_logit_softcapping", 0, 1e6, 0);
    int window = config_int_or(c, "attention.sliding_window", 0, INT32_MAX, 0);
    /* llama.cpp applies it to the layers with a window too, which have no scaling. */
    if (window > 0 && config_float_or(c, "rope.scaling.attn_factor", 0, 1e6, 1) != 1)
        config_unsupported(c, "rope.scaling.attn_factor", "a factor of attention of layers with a window");
    describe_layer_periods(
        d, c, window, config_int_or(c, "attention.sliding_window_pattern", 1, LIMIT_LAYERS, GEMMA3_PERIOD));
    describe_window_rope(d, config_float_or(c, "rope.freq_base_swa", 1e-6, 1e12, 10000));
}

static void describe_gemma3(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct transformers_defaults defaults = GEMMA_DEFAULTS(131072, 262208);
    defaults.rope_theta = 1e6; /* of the layers without a window */
    d->kinds[0].attn.has_qk_norm = true;
    if (is_gguf) {
        describe_gguf_gemma3(d, c);
        return;
    }
    describe_transformers(d, c, &defaults);
    set_common(d);
    d->has_post_norms = true;
    read_attention(d, c);
    d->logit_softcap = read_cap(c, "final_logit_softcapping", 0);
    double local = config_float_or(c, "rope_local_base_freq", 1e-6, 1e12, 10000);
    local = describe_kinds_rope(d, c, &defaults, local);
    describe_layer_periods(d, c, config_int_or(c, "sliding_window", 1, INT32_MAX, 4096),
                           config_int_or(c, "sliding_window_pattern", 1, LIMIT_LAYERS, GEMMA3_PERIOD));
    describe_window_rope(d, local);
}

/* The period of the layers without a window; 0: they have none. */
static int find_period(const struct model_desc *d)
{
    for (int period = 1; period <= d->n_layers + 1; period++) {
        bool fits = true;
        for (int i = 0; i < d->n_layers && fits; i++)
            fits = (model_layer(d, i)->attn.window == 0) == ((i + 1) % period == 0);
        if (fits)
            return period;
    }
    return 0;
}

static const char *find_fault(const struct model_desc *d, int n_layers_27b)
{
    const struct attn_desc *a = &d->kinds[0].attn;
    if (find_period(d) == 0)
        return "layer_types: layers without a window in no fixed distance";
    if (fabsf(a->scale / gguf_scale(d, n_layers_27b) - 1) > 1e-6f)
        return "query_pre_attn_scalar: another number than a head's dimensions";
    return a->has_qkv_bias ? "attention_bias: true" : NULL;
}

static const char *gemma2_fault(const struct model_desc *d)
{
    if (d->kinds[0].attn.softcap == 0 || d->logit_softcap == 0)
        return "attn_logit_softcapping, final_logit_softcapping: null";
    return d->tied_output ? find_fault(d, GEMMA2_27B_LAYERS) : "tie_word_embeddings: false";
}

/* llama.cpp applies a factor of attention to the layers with a window too, which have no scaling. */
static bool has_own_attention_factor(const struct model_desc *d)
{
    bool has_any = false;
    for (int i = 0; i < d->n_kinds; i++) {
        const struct attn_desc *a = &d->kinds[i].attn;
        double usual = a->rope_scaling.kind == ROPE_SCALING_YARN ? model_yarn_scale(a->rope_scaling.factor)
                                                                 : 1;
        has_any = has_any || fabs((double)model_rope_scale(a) / usual - 1) > 1e-6;
    }
    return has_any;
}

static const char *gemma3_fault(const struct model_desc *d)
{
    if (model_window(d) > 0 && has_own_attention_factor(d))
        return "rope_scaling: a factor of attention of its own";
    return find_fault(d, GEMMA3_27B_LAYERS);
}

static void put_gemma2(struct gguf_writer *w, const struct model_desc *d)
{
    gguf_writer_f32(w, "gemma2.attn_logit_softcapping", d->kinds[0].attn.softcap);
    gguf_writer_f32(w, "gemma2.final_logit_softcapping", d->logit_softcap);
    if (find_period(d) != GEMMA2_PERIOD)
        gguf_writer_u32(w, "gemma2.attention.sliding_window_pattern", (uint32_t)find_period(d));
}

static void put_gemma3(struct gguf_writer *w, const struct model_desc *d)
{
    if (d->logit_softcap > 0)
        gguf_writer_f32(w, "gemma3.final_logit_softcapping", d->logit_softcap);
    if (find_period(d) != GEMMA3_PERIOD)
        gguf_writer_u32(w, "gemma3.attention.sliding_window_pattern", (uint32_t)find_period(d));
}

/* llama.cpp's graph has no biases and no output matrix of its own. */
static const char *gemma_fault(const struct model_desc *d)
{
    if (!d->tied_output)
        return "tie_word_embeddings: false";
    return d->kinds[0].attn.has_qkv_bias ? "attention_bias: true" : NULL;
}

const struct family FAMILY_GEMMA = {
    .name = "gemma",
    .gguf_architecture = "gemma",
    .is_mine = is_gemma,
    .keys = GEMMA_KEYS,
    .describe = describe_gemma,
    .find_gguf_fault = gemma_fault,
    .layouts = GEMMA_LAYOUTS,
    .n_layouts = sizeof GEMMA_LAYOUTS / sizeof *GEMMA_LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_bos_prefix,
};

const struct family FAMILY_GEMMA2 = {
    .name = "gemma2",
    .gguf_architecture = "gemma2",
    .is_mine = is_gemma2,
    .keys = KEYS,
    .describe = describe_gemma2,
    .put_metadata = put_gemma2,
    .find_gguf_fault = gemma2_fault,
    .has_window_layers = true,
    .layouts = GEMMA2_LAYOUTS,
    .n_layouts = sizeof GEMMA2_LAYOUTS / sizeof *GEMMA2_LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_bos_prefix,
};

const struct family FAMILY_GEMMA3 = {
    .name = "gemma3",
    .gguf_architecture = "gemma3",
    .is_mine = is_gemma3,
    .keys = KEYS,
    .describe = describe_gemma3,
    .put_metadata = put_gemma3,
    .find_gguf_fault = gemma3_fault,
    .has_window_layers = true,
    .layouts = GEMMA3_LAYOUTS,
    .n_layouts = sizeof GEMMA3_LAYOUTS / sizeof *GEMMA3_LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_bos_prefix,
};
