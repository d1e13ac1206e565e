#include "model/description/describe.h"

#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool describe_has_type(const json_t *config, const char *model_type)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    return type && strcmp(type, model_type) == 0;
}

const char *describe_class(const json_t *config)
{
    return json_string_value(json_array_get(json_object_get(config, "architectures"), 0));
}

enum activation describe_activation(struct config *c, const char *key, const char *fallback, unsigned allowed)
{
    static const struct {
        const char *name;
        enum activation activation;
    } NAMES[] = { { "silu", ACT_SILU },
                  { "swish", ACT_SILU },
                  { "gelu_pytorch_tanh", ACT_GELU_TANH },
                  { "gelu_new", ACT_GELU_TANH },
                  { "gelu_fast", ACT_GELU_TANH },
                  { "gelu", ACT_GELU_ERF },
                  { "gelu_python", ACT_GELU_ERF },
                  { "quick_gelu", ACT_GELU_SIGMOID },
                  { "relu", ACT_RELU } };
    const char *name = config_string_or(c, key, fallback);
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        if (strcmp(name, NAMES[i].name) == 0 && (allowed >> NAMES[i].activation & 1))
            return NAMES[i].activation;
    }
    config_unsupported(c, key, name);
    return ACT_SILU;
}

void describe_gguf_activation(struct model_desc *d, struct config *c)
{
    d->kinds[0].ffn.activation = describe_activation(c, GGUF_ACTIVATION, "gelu_new",
                                                     ACTIVATIONS_WITHOUT_GATE);
}

void describe_put_activation(struct gguf_writer *w, const char *architecture, const struct model_desc *d)
{
    static const char *const NAMES[] = {
        [ACT_GELU_SIGMOID] = "quick_gelu", [ACT_GELU_ERF] = "gelu", [ACT_RELU] = "relu"
    };
    char key[128];
    if (d->kinds[0].ffn.activation == ACT_GELU_TANH)
        return;
    const char *name = NAMES[d->kinds[0].ffn.activation];
    snprintf(key, sizeof key, "%s." GGUF_ACTIVATION, architecture);
    gguf_writer_string(w, key, name, strlen(name));
}

/* YaRN extends the trained context by its factor. */
static void stretch_context(struct model_desc *d)
{
    struct attn_desc *a = &d->kinds[0].attn;
    double n_ctx = a->rope_scaling.factor * a->rope_scaling.original_n_ctx;
    if (n_ctx > d->n_ctx)
        d->n_ctx = n_ctx < LIMIT_CONTEXT ? (int)n_ctx : LIMIT_CONTEXT;
}

/* The paper's formula, with DeepSeek's weight. */
static double yarn_mscale(double factor, double weight)
{
    return factor <= 1 ? 1 : 0.1 * weight * log(factor) + 1;
}

static void read_yarn(struct model_desc *d, struct config *c, const char *object, int original)
{
    struct rope_scaling *s = &d->kinds[0].attn.rope_scaling;
    char key[128];
#define KEY(name) (snprintf(key, sizeof key, "%s.%s", object, name), key)
    s->kind = ROPE_SCALING_YARN;
    s->factor = config_float(c, KEY("factor"), 1, 1e6);
    s->original_n_ctx = original;
    s->beta_fast = config_float_or(c, KEY("beta_fast"), 1e-3, 1e6, 32);
    s->beta_slow = config_float_or(c, KEY("beta_slow"), 1e-3, 1e6, 1);
    s->attention_factor = config_float_or(c, KEY("attention_factor"), 1e-3, 1e3, 0);
    config_skip(c, KEY("attn_factor")); /* without effect in transformers and llama.cpp */
    double mscale = config_float_or(c, KEY("mscale"), 0, 1e3, 0);
    double mscale_all = config_float_or(c, KEY("mscale_all_dim"), 0, 1e3, 0);
    if (s->attention_factor == 0 && mscale > 0 && mscale_all > 0)
        s->attention_factor = yarn_mscale(s->factor, mscale) / yarn_mscale(s->factor, mscale_all);
    s->is_exact = !config_bool_or(c, KEY("truncate"), true);
    stretch_context(d);
#undef KEY
}

/* Reads a list of factors, one for each pair of rotary dimensions. */
static void read_factors(struct config *c, const char *key, float *factors, int n)
{
    const json_t *list = config_find(c, key);
    char what[96];
    snprintf(what, sizeof what, "a list of %zu factors for %d pairs of rotary dimensions (at most %d)",
             json_array_size(list), n, MAX_ROPE_FACTORS);
    if (!json_is_array(list) || json_array_size(list) != (size_t)n || n > MAX_ROPE_FACTORS) {
        config_unsupported(c, key, what);
        return;
    }
    for (int i = 0; i < n; i++) {
        double factor = json_number_value(json_array_get(list, (size_t)i));
        snprintf(what, sizeof what, "factor %d, which is no positive number,", i);
        if (!(factor >= 1e-6 && factor <= 1e6))
            config_unsupported(c, key, what);
        factors[i] = (float)factor;
    }
}

/* Ding et al., 2024 (LongRoPE), with the factor of attention of Phi-3. */
static void read_longrope(struct model_desc *d, struct config *c, const char *object, int original)
{
    struct attn_desc *a = &d->kinds[0].attn;
    struct rope_scaling *s = &a->rope_scaling;
    char key[128];
#define KEY(name) (snprintf(key, sizeof key, "%s.%s", object, name), key)
    s->kind = ROPE_SCALING_LONGROPE;
    s->original_n_ctx = original;
    s->n_factors = a->rotary_dim / 2;
    read_factors(c, KEY("short_factor"), s->short_factors, s->n_factors);
    read_factors(c, KEY("long_factor"), s->long_factors, s->n_factors);
    double factor = config_float_or(c, KEY("factor"), 1e-3, 1e6, (double)d->n_ctx / original);
    double usual = factor <= 1 || original < 2 ? 1 : sqrt(1 + log(factor) / log(original));
    s->attention_factor = config_float_or(c, KEY("attention_factor"), 1e-3, 1e3, usual);
#undef KEY
}

/* What older files of Phi-3 call LongRoPE. */
static bool names_longrope(const char *type)
{
    return strcmp(type, "su") == 0 || strcmp(type, "yarn") == 0;
}

/* The pairs of rotary dimensions that each section has. Text has the same position in all of them. */
static void set_image_sections(struct model_desc *d, struct config *c, const char *key, const int64_t *pairs,
                               size_t n)
{
    int n_pairs = d->kinds[0].attn.rotary_dim / 2;
    int64_t sum = 0;
    bool is_known = n == 3 || (n == 4 && pairs[3] == 0);
    for (size_t i = 0; i < 3 && is_known; i++) {
        is_known = pairs[i] >= 0 && pairs[i] <= n_pairs;
        sum += pairs[i];
        d->image_sections[i] = (int32_t)pairs[i];
    }
    if (!is_known || sum != n_pairs) {
        char what[96];
        snprintf(what, sizeof what, "other than three sections of together %d pairs of rotary dimensions",
                 n_pairs);
        config_unsupported(c, key, what);
    }
}

static void read_image_sections(struct model_desc *d, struct config *c, const char *object)
{
    char key[128];
    int64_t pairs[4] = { 0 };
    snprintf(key, sizeof key, "%s.mrope_interleaved", object);
    config_skip(c, key); /* which dimensions each section has */
    snprintf(key, sizeof key, "%s.mrope_section", object);
    const json_t *list = config_find(c, key);
    size_t n = json_array_size(list);
    for (size_t i = 0; i < n && i < 4; i++)
        pairs[i] = json_integer_value(json_array_get(list, i));
    if (list)
        set_image_sections(d, c, key, pairs, n);
}

void describe_gguf_image_sections(struct model_desc *d, struct config *c)
{
    char key[128];
    int64_t pairs[4] = { 0 };
    snprintf(key, sizeof key, "%s" GGUF_IMAGE_SECTIONS, c->prefix);
    const struct gguf_array *array = c->gguf ? gguf_find_array(c->gguf, key) : NULL;
    size_t n = array ? gguf_array_n(array) : 0;
    for (size_t i = 0; i < n && i < 4; i++)
        pairs[i] = gguf_array_int(array, i);
    if (array)
        set_image_sections(d, c, GGUF_IMAGE_SECTIONS, pairs, n);
}

void describe_put_image_sections(struct gguf_writer *w, const char *architecture, const struct model_desc *d)
{
    char key[128];
    const int32_t pairs[4] = { d->image_sections[0], d->image_sections[1], d->image_sections[2] };
    snprintf(key, sizeof key, "%s." GGUF_IMAGE_SECTIONS, architecture);
    gguf_writer_i32s(w, key, pairs, 4);
}

static void read_rope_scaling(struct model_desc *d, struct config *c, const char *object,
                              const struct transformers_defaults *defaults)
{
    struct rope_scaling *s = &d->kinds[0].attn.rope_scaling;
    char key[128];
#define KEY(name) (snprintf(key, sizeof key, "%s.%s", object, name), key)
    const char *older = config_string_or(c, KEY("type"), "default");
    const char *type = config_string_or(c, KEY("rope_type"), older);
    bool is_mrope = defaults->has_image_sections && strcmp(older, "mrope") == 0;
    if (config_find(c, KEY("type")) && strcmp(older, type) != 0 && !is_mrope)
        config_unsupported(c, KEY("type"), "another type than rope_type's");
    config_skip(c, KEY("finetuned")); /* a note of YaRN's authors */
    /* The top-level key has priority; a class that has a default for it reads only that. */
    int inner = config_int_or(c, KEY("original_max_position_embeddings"), 1, LIMIT_CONTEXT, 0);
    int original = inner > 0 ? inner : d->n_ctx;
    original = config_int_or(c, "original_max_position_embeddings", 1, LIMIT_CONTEXT,
                             defaults->original_n_ctx > 0 ? defaults->original_n_ctx : original);
    if (defaults->original_n_ctx > 0 && inner > 0 && inner != original)
        config_unsupported(
            c, KEY("original_max_position_embeddings"),
            "another number than original_max_position_embeddings at top level (4096 without it)");
    if (defaults->has_image_sections)
        read_image_sections(d, c, object);
    if (strcmp(type, "default") == 0 || (defaults->has_image_sections && strcmp(type, "mrope") == 0))
        return;
    if (strcmp(type, "linear") == 0) {
        s->kind = ROPE_SCALING_LINEAR;
        s->factor = config_float(c, KEY("factor"), 1e-3, 1e6);
    } else if (strcmp(type, "llama3") == 0) {
        s->kind = ROPE_SCALING_LLAMA3;
        s->factor = config_float(c, KEY("factor"), 1e-3, 1e6);
        s->low_freq_factor = config_float(c, KEY("low_freq_factor"), 1e-3, 1e6);
        s->high_freq_factor = config_float(c, KEY("high_freq_factor"), 1e-3, 1e6);
        s->original_n_ctx = original;
    } else if (strcmp(type, "longrope") == 0 || (defaults->has_older_longrope && names_longrope(type))) {
        read_longrope(d, c, object, original);
    } else if (strcmp(type, "yarn") == 0) {
        read_yarn(d, c, object, original);
    } else if (strcmp(type, "dynamic") == 0) {
        s->kind = ROPE_SCALING_DYNAMIC;
        s->factor = config_float(c, KEY("factor"), 1, 1e6);
    } else {
        char what[64];
        snprintf(what, sizeof what, "\"%.40s\"", type);
        config_unsupported(c, KEY("rope_type"), what);
    }
#undef KEY
}

void describe_rope(struct model_desc *d, struct config *c, const char *object,
                   const struct transformers_defaults *defaults)
{
    struct attn_desc *a = &d->kinds[0].attn;
    char theta[64];
    snprintf(theta, sizeof theta, "%s.rope_theta", object);
    a->rope_theta = config_float_or(c, theta, 1e-6, 1e12, a->rope_theta);
    read_rope_scaling(d, c, object, defaults);
}

/* rope_theta at top level, or that of the class. */
static double top_theta(struct config *c, const struct transformers_defaults *defaults)
{
    return config_float_or(c, "rope_theta", 1e-6, 1e12,
                           defaults->rope_theta > 0 ? defaults->rope_theta : 10000);
}

/* Classes with settings for each kind of layers do not read the original context at top level. */
static void expect_inner_original(const struct model_desc *d, struct config *c)
{
#define ORIGINAL "original_max_position_embeddings"
    static const char *const INNER[] = { "rope_parameters.full_attention." ORIGINAL,
                                         "rope_parameters." ORIGINAL, "rope_scaling." ORIGINAL };
    const json_t *top = config_find(c, ORIGINAL);
    bool is_same = false;
    for (size_t i = 0; i < sizeof INNER / sizeof *INNER; i++)
        is_same = is_same || json_equal(config_find(c, INNER[i]), top);
    if (top && !is_same && d->kinds[0].attn.rope_scaling.original_n_ctx > 0)
        config_unsupported(c, ORIGINAL, "another number than that of the scaling, which these models read,");
#undef ORIGINAL
}

/* Published files have one scaling, which is that of the layers without a window, newer ones an object for
 * each kind of layers. */
double describe_kinds_rope(struct model_desc *d, struct config *c,
                           const struct transformers_defaults *defaults, double local)
{
    const json_t *parameters = json_object_get(c->root, "rope_parameters");
    if (json_is_object(json_object_get(parameters, "full_attention"))) {
        if (config_has_object(c, "rope_scaling"))
            config_unsupported(c, "rope_scaling", "an object in addition to rope_parameters.full_attention");
        /* Settings next to those by kind, which transformers writes too, have no effect. */
        struct attn_desc *a = &d->kinds[0].attn;
        a->rope_scaling = (struct rope_scaling){ .kind = ROPE_SCALING_NONE };
        a->rope_theta = top_theta(c, defaults);
        describe_rope(d, c, "rope_parameters.full_attention", defaults);
    }
    expect_inner_original(d, c);
    const char *key = "rope_parameters.sliding_attention.rope_type",
               *type = config_string_or(c, key, "default");
    if (strcmp(type, "default") != 0)
        config_unsupported(c, key, type);
    return config_float_or(c, "rope_parameters.sliding_attention.rope_theta", 1e-6, 1e12, local);
}

void describe_window_rope(struct model_desc *d, double theta)
{
    for (int i = 0; i < d->n_kinds; i++) {
        struct attn_desc *a = &d->kinds[i].attn;
        if (a->window == 0)
            continue;
        a->rope_theta = theta;
        a->rope_scaling = (struct rope_scaling){ .kind = ROPE_SCALING_NONE };
    }
}

/* Newer files have all rotary settings in rope_parameters, older ones at top level and in
 * rope_scaling. If a file has both objects, transformers uses rope_scaling only. */
void describe_rotation(struct model_desc *d, struct config *c, const struct transformers_defaults *defaults)
{
    struct attn_desc *a = &d->kinds[0].attn;
    bool has_old = config_has_object(c, "rope_scaling"), has_new = config_has_object(c, "rope_parameters");
    const char *object = has_old ? "rope_scaling" : "rope_parameters";
    char theta[64], part[64];
    snprintf(theta, sizeof theta, "%s.rope_theta", object);
    snprintf(part, sizeof part, "%s.partial_rotary_factor", object);
    a->rope_theta = top_theta(c, defaults);
    a->rope_theta = config_float_or(c, theta, 1e-6, 1e12, a->rope_theta);
    if (has_old && has_new) {
        double other = config_float_or(c, "rope_parameters.rope_theta", 1e-6, 1e12, a->rope_theta);
        if (other != a->rope_theta)
            config_unsupported(c, "rope_scaling",
                               "an object without rope_parameters' rope_theta, which it takes the place of,");
        config_skip(c, "rope_parameters");
    }
    a->rotary_dim = a->head_dim;
    if (defaults->rotary_part != 0) {
        const char *top = "partial_rotary_factor", *key = config_has(c, part) ? part : top;
        double rotated = config_has(c, key) ? config_float(c, key, 0, 1) : defaults->rotary_part;
        config_skip(c, top); /* the object's takes its place */
        a->rotary_dim = (int)(a->head_dim * rotated);
    }
    a->rope = ROPE_HALF;
    if (has_old || has_new)
        read_rope_scaling(d, c, object, defaults);
}

/* Whether layer i has the window, by a list of names. */
static bool read_layer_type(struct config *c, const json_t *types, int i)
{
    const char *type = json_string_value(json_array_get(types, (size_t)i));
    char what[96];
    if (type && strcmp(type, "sliding_attention") == 0)
        return true;
    snprintf(what, sizeof what, "\"%.40s\" of layer %d", type ? type : "?", i);
    if (!type || strcmp(type, "full_attention") != 0)
        config_unsupported(c, "layer_types", what);
    return false;
}

struct layer_split describe_split(struct model_desc *d, const bool *marks)
{
    int n_marked = 0;
    for (int i = 0; i < d->n_layers; i++)
        n_marked += marks[i];
    bool is_mixed = n_marked > 0 && n_marked < d->n_layers;
    d->n_kinds = is_mixed ? 2 : 1;
    for (int i = 0; i < d->n_layers; i++)
        d->kind_of[i] = is_mixed && marks[i] != marks[0];
    if (!is_mixed)
        return n_marked > 0 ? (struct layer_split){ -1, 0 } : (struct layer_split){ 0, -1 };
    d->kinds[1] = d->kinds[0];
    return marks[0] ? (struct layer_split){ 1, 0 } : (struct layer_split){ 0, 1 };
}

/* period 0: without layer_types the layers from first on have the window. */
static void read_layers(struct model_desc *d, struct config *c, int window, int first, int period)
{
    const json_t *types = config_find(c, "layer_types");
    bool slides[LIMIT_LAYERS];
    if (types && (int)json_array_size(types) != d->n_layers) {
        config_unsupported(c, "layer_types", "a list of another length than the number of layers");
        return;
    }
    for (int i = 0; i < d->n_layers; i++) {
        bool is_usual = period > 0 ? (i + 1) % period != 0 : i >= first;
        slides[i] = types ? read_layer_type(c, types, i) : window > 0 && is_usual;
    }
    struct layer_split split = describe_split(d, slides);
    if (split.marked >= 0 && window == 0)
        config_unsupported(c, "layer_types", "\"sliding_attention\" without a sliding_window");
    if (split.marked >= 0)
        d->kinds[split.marked].attn.window = window;
}

void describe_layer_types(struct model_desc *d, struct config *c, int window, int first)
{
    read_layers(d, c, window, first, 0);
}

void describe_window_of_all(struct model_desc *d, struct config *c, int window)
{
    describe_layer_types(d, c, window, 0);
    if (window > 0 && (d->kinds[0].attn.window == 0 || d->n_kinds > 1))
        config_unsupported(c, "layer_types", "full attention together with a sliding_window");
}

void describe_layer_periods(struct model_desc *d, struct config *c, int window, int period)
{
    read_layers(d, c, window, 0, period);
}

const char *describe_either(struct config *c, const char *key, const char *alias)
{
    const json_t *value = config_find(c, key), *other = config_find(c, alias);
    if (value && other && !json_equal(value, other))
        config_unsupported(c, alias, "another value than its other name's");
    return value ? key : alias;
}

/* prefixes: separated by "|"; NULL: none. */
static bool has_prefix(const char *text, const char *prefixes)
{
    bool has_any = false;
    while (prefixes && !has_any) {
        size_t n = strcspn(prefixes, "|");
        has_any = strncmp(text, prefixes, n) == 0;
        prefixes = prefixes[n] ? prefixes + n + 1 : NULL;
    }
    return has_any;
}

void describe_code(struct config *c, const char *family, const char *prefix)
{
    const char *kind;
    json_t *value;
    const json_t *map = config_has_object(c, "auto_map") ? config_find(c, "auto_map") : NULL;
    json_object_foreach((json_t *)(uintptr_t)map, kind, value)
    {
        const char *name = json_string_value(json_is_array(value) ? json_array_get(value, 0) : value);
        const char *dot = name ? strrchr(name, '.') : NULL;
        if ((strcmp(kind, "AutoConfig") != 0 && !has_prefix(kind, "AutoModel")) || !name ||
            has_prefix(dot ? dot + 1 : name, prefix))
            continue;
        if (c->status == TUTTI_OK)
            c->status = error_set(
                c->err, TUTTI_E_UNSUPPORTED,
                "%s: auto_map.%.40s: \"%.80s\" is code of the folder, which tutti does not run: it may be "
                "another "
                "model than %s. If the tensors are those of a plain %s model, remove auto_map from the file",
                c->file, kind, name, family, family);
    }
}

/* fallback 0: the key must be there. */
static int read_int(struct config *c, const char *key, int most, int fallback)
{
    return fallback > 0 ? config_int_or(c, key, 1, most, fallback) : config_int(c, key, 1, most);
}

void describe_transformers(struct model_desc *d, struct config *c,
                           const struct transformers_defaults *defaults)
{
    struct attn_desc *a = &d->kinds[0].attn;
    struct ffn_desc *f = &d->kinds[0].ffn;
    const char *layers_key = defaults->layers_key ? defaults->layers_key : "num_hidden_layers";
    d->n_layers = config_int(c, layers_key, 1, LIMIT_LAYERS);
    d->d_model = config_int(c, "hidden_size", 1, LIMIT_DIMENSION);
    a->n_heads = read_int(c, "num_attention_heads", LIMIT_DIMENSION, defaults->n_heads);
    bool is_silent = !config_has(c, "num_key_value_heads") && defaults->n_kv_heads > 0;
    a->n_kv_heads = config_int_or(c, "num_key_value_heads", 1, LIMIT_DIMENSION,
                                  is_silent ? defaults->n_kv_heads : a->n_heads);
    a->head_dim = config_int_or(c, "head_dim", 1, LIMIT_DIMENSION,
                                defaults->head_dim > 0 ? defaults->head_dim : d->d_model / a->n_heads);
    f->d_ff = config_int(c, "intermediate_size", 1, LIMIT_DIMENSION);
    d->n_vocab = read_int(c, "vocab_size", LIMIT_VOCAB, defaults->n_vocab);
    d->n_ctx = config_int_or(c, "max_position_embeddings", 1, LIMIT_CONTEXT, defaults->n_ctx);
    d->norm_eps = (float)config_float_or(c, defaults->norm_key ? defaults->norm_key : "rms_norm_eps", 0, 1,
                                         defaults->norm_eps);
    d->tied_output = config_bool_or(c, "tie_word_embeddings", defaults->is_tied);
    f->activation = describe_activation(c, defaults->activation_key ? defaults->activation_key : "hidden_act",
                                        defaults->activation == ACT_SILU       ? "silu"
                                        : defaults->activation == ACT_GELU_ERF ? "gelu"
                                                                               : "gelu_pytorch_tanh",
                                        f->has_gate ? 1U << defaults->activation : ACTIVATIONS_WITHOUT_GATE);
    describe_rotation(d, c, defaults);
}

/* llama.cpp's converter writes transformers' attention_factor, or attn_factor, as yarn_attn_factor, which
 * llama.cpp reads for Grok only: other architectures have the usual factor. */
static void expect_plain_yarn(struct config *c, bool is_yarn, double factor)
{
    double ext = config_float_or(c, "rope.scaling.yarn_ext_factor", -1e6, 1e6, -1);
    double attention = config_float_or(c, "rope.scaling.yarn_attn_factor", -1e6, 1e6, 1);
    bool is_usual = is_yarn && fabs(attention / model_yarn_scale(factor) - 1) < 1e-6;
    if (attention != 1 && !is_usual && !c->is_quiet)
        log_warn("%s: %srope.scaling.yarn_attn_factor: %g is ignored, as in llama.cpp; for a factor in "
                 "addition to the usual one, set rope.scaling.attn_factor",
                 c->file, c->prefix, attention);
    if (ext >= 0 && ext != (is_yarn ? 1 : 0)) /* negative: not given */
        config_unsupported(c, "rope.scaling.yarn_ext_factor",
                           is_yarn ? "YaRN with another ramp than 1" : "a ramp without YaRN");
}

/* As in llama.cpp: without a type the factor is linear, and scale_linear is its older name. */
static void read_gguf_scaling(struct model_desc *d, struct config *c)
{
    const char *scaling = config_string_or(c, "rope.scaling.type", "linear");
    struct rope_scaling *s = &d->kinds[0].attn.rope_scaling;
    double factor = config_float_or(c, "rope.scale_linear", 0, 1e6, 0);
    factor = config_float_or(c, "rope.scaling.factor", 0, 1e6, factor);
    double attention = config_float_or(c, "rope.scaling.attn_factor", 1e-3, 1e3, 1);
    bool is_yarn = strcmp(scaling, "yarn") == 0;
    if (is_yarn) {
        s->kind = ROPE_SCALING_YARN;
        s->factor = factor >= 1 ? factor : config_float(c, "rope.scaling.factor", 1, 1e6);
        s->original_n_ctx = config_int_or(c, "rope.scaling.original_context_length", 1, LIMIT_CONTEXT,
                                          d->n_ctx);
        s->beta_fast = config_float_or(c, "rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32);
        s->beta_slow = config_float_or(c, "rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1);
        s->attention_factor = model_yarn_scale(s->factor) * attention;
        stretch_context(d);
    } else if (strcmp(scaling, "linear") == 0) {
        s->kind = factor > 0 && factor != 1 ? ROPE_SCALING_LINEAR : ROPE_SCALING_NONE;
        s->factor = factor;
        if (s->kind == ROPE_SCALING_LINEAR && attention != 1)
            config_unsupported(c, "rope.scaling.attn_factor",
                               "a factor of attention without YaRN or LongRoPE");
    } else if (strcmp(scaling, "longrope") == 0) {
        s->kind = ROPE_SCALING_LONGROPE;
        if (factor > 0 && factor != 1)
            config_unsupported(
                c, config_has(c, "rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear",
                "a factor in addition to those of longrope");
    } else if (strcmp(scaling, "none") != 0) {
        config_unsupported(c, "rope.scaling.type", scaling);
    }
    if (!is_yarn) { /* only YaRN uses them; other files may have them without effect */
        config_skip(c, "rope.scaling.yarn_beta_fast");
        config_skip(c, "rope.scaling.yarn_beta_slow");
        /* Of LongRoPE, which has no key of its own: read_longrope_tensors() finds its tensors. */
        s->original_n_ctx = config_int_or(c, "rope.scaling.original_context_length", 1, LIMIT_CONTEXT,
                                          d->n_ctx);
        s->attention_factor = attention;
    }
    expect_plain_yarn(c, is_yarn, s->factor);
}

void describe_gguf(struct model_desc *d, struct config *c)
{
    struct attn_desc *a = &d->kinds[0].attn;
    struct ffn_desc *f = &d->kinds[0].ffn;
    if (!ffn_has_experts(f) && config_int_or(c, "expert_count", 0, INT32_MAX, 0) != 0)
        config_unsupported(c, "expert_count", "a mixture of experts");
    d->n_layers = config_int(c, "block_count", 1, LIMIT_LAYERS);
    d->d_model = config_int(c, "embedding_length", 1, LIMIT_DIMENSION);
    a->n_heads = config_int(c, "attention.head_count", 1, LIMIT_DIMENSION);
    a->n_kv_heads = config_int_or(c, "attention.head_count_kv", 1, LIMIT_DIMENSION, a->n_heads);
    a->head_dim = config_int_or(c, "attention.key_length", 1, LIMIT_DIMENSION, d->d_model / a->n_heads);
    if (config_int_or(c, "attention.value_length", 1, LIMIT_DIMENSION, a->head_dim) != a->head_dim &&
        a->n_latent == 0)
        config_unsupported(c, "attention.value_length", "a head of values unlike the head of keys");
    f->d_ff = config_int(c, "feed_forward_length", 1, LIMIT_DIMENSION);
    d->n_vocab = config_int_or(c, "vocab_size", 1, LIMIT_VOCAB, 0);
    d->n_ctx = config_int(c, "context_length", 1, LIMIT_CONTEXT);
    d->norm_eps = (float)config_float(
        c, d->norm == NORM_RMS ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon", 0, 1);
    f->activation = ACT_SILU;
    a->rope_theta = config_float_or(c, "rope.freq_base", 1e-6, 1e12, 10000);
    a->rotary_dim = config_int_or(c, "rope.dimension_count", 0, LIMIT_DIMENSION, a->head_dim);
    read_gguf_scaling(d, c);
}
