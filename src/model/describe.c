#include "model/describe.h"

#include <stdio.h>
#include <string.h>

bool describe_has_type(const json_t *config, const char *model_type)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    return type && strcmp(type, model_type) == 0;
}

/* Refuses an activation that is not silu. */
static void expect_silu(struct config *c, const char *key)
{
    const char *act = config_string_or(c, key, "silu");
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        config_unsupported(c, key, act);
}

/* YaRN stretches the context that was trained by its factor. */
static void stretch_context(struct model_desc *d)
{
    double n_ctx = d->rope_scaling.factor * d->rope_scaling.original_n_ctx;
    if (n_ctx > d->n_ctx)
        d->n_ctx = n_ctx < LIMIT_CONTEXT ? (int)n_ctx : LIMIT_CONTEXT;
}

static void read_yarn(struct model_desc *d, struct config *c, const char *object)
{
    struct rope_scaling *s = &d->rope_scaling;
    char key[128];
#define KEY(name) (snprintf(key, sizeof key, "%s.%s", object, name), key)
    s->kind = ROPE_SCALING_YARN;
    s->factor = config_float(c, KEY("factor"), 1, 1e6);
    s->original_n_ctx = config_int_or(c, KEY("original_max_position_embeddings"), 1, LIMIT_CONTEXT, d->n_ctx);
    s->beta_fast = config_float_or(c, KEY("beta_fast"), 1e-3, 1e6, 32);
    s->beta_slow = config_float_or(c, KEY("beta_slow"), 1e-3, 1e6, 1);
    s->attention_factor = config_float_or(c, KEY("attention_factor"), 1e-3, 1e3, 0);
    if (!config_bool_or(c, KEY("truncate"), true))
        config_unsupported(c, KEY("truncate"), "YaRN with a ramp that begins between two pairs");
    if (config_find(c, KEY("mscale")) || config_find(c, KEY("mscale_all_dim")))
        config_unsupported(c, KEY("mscale"), "YaRN with a scale of its own");
    stretch_context(d);
#undef KEY
}

static void read_rope_scaling(struct model_desc *d, struct config *c, const char *object)
{
    struct rope_scaling *s = &d->rope_scaling;
    char key[128];
#define KEY(name) (snprintf(key, sizeof key, "%s.%s", object, name), key)
    const char *type = config_string_or(c, KEY("rope_type"), config_string_or(c, KEY("type"), "default"));
    if (strcmp(type, "default") == 0)
        return;
    if (strcmp(type, "linear") == 0) {
        s->kind = ROPE_SCALING_LINEAR;
        s->factor = config_float(c, KEY("factor"), 1e-3, 1e6);
    } else if (strcmp(type, "llama3") == 0) {
        s->kind = ROPE_SCALING_LLAMA3;
        s->factor = config_float(c, KEY("factor"), 1e-3, 1e6);
        s->low_freq_factor = config_float_or(c, KEY("low_freq_factor"), 1e-3, 1e6, 1);
        s->high_freq_factor = config_float_or(c, KEY("high_freq_factor"), 1e-3, 1e6, 4);
        s->original_n_ctx = config_int_or(c, KEY("original_max_position_embeddings"), 1, LIMIT_CONTEXT, 8192);
    } else if (strcmp(type, "yarn") == 0) {
        read_yarn(d, c, object);
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

/* Newer files keep all that is rotary in one object, older ones at the top and in rope_scaling. */
static void read_rope(struct model_desc *d, struct config *c)
{
    bool nested = config_find(c, "rope_parameters") != NULL;
    d->rope_theta = config_float_or(c, nested ? "rope_parameters.rope_theta" : "rope_theta", 1e-6, 1e12,
                                    10000);
    if (nested || config_find(c, "rope_scaling"))
        read_rope_scaling(d, c, nested ? "rope_parameters" : "rope_scaling");
    d->rotary_dim = d->head_dim;
    d->rope = ROPE_HALF;
}

void describe_transformers(struct model_desc *d, struct config *c)
{
    d->n_layers = config_int(c, "num_hidden_layers", 1, LIMIT_LAYERS);
    d->d_model = config_int(c, "hidden_size", 1, LIMIT_DIMENSION);
    d->n_heads = config_int(c, "num_attention_heads", 1, LIMIT_DIMENSION);
    d->n_kv_heads = config_int_or(c, "num_key_value_heads", 1, LIMIT_DIMENSION, d->n_heads);
    d->head_dim = config_int_or(c, "head_dim", 1, LIMIT_DIMENSION, d->d_model / d->n_heads);
    d->d_ff = config_int(c, "intermediate_size", 1, LIMIT_DIMENSION);
    d->n_vocab = config_int(c, "vocab_size", 1, LIMIT_VOCAB);
    d->n_ctx = config_int_or(c, "max_position_embeddings", 1, LIMIT_CONTEXT, 2048);
    d->norm_eps = (float)config_float_or(c, "rms_norm_eps", 0, 1, 1e-6);
    d->tied_output = config_bool_or(c, "tie_word_embeddings", false);
    d->activation = ACT_SILU;
    expect_silu(c, "hidden_act");
    read_rope(d, c);
}

static void read_gguf_scaling(struct model_desc *d, struct config *c)
{
    const char *scaling = config_string_or(c, "rope.scaling.type", "none");
    struct rope_scaling *s = &d->rope_scaling;
    if (strcmp(scaling, "none") == 0)
        return;
    if (strcmp(scaling, "linear") == 0) {
        s->kind = ROPE_SCALING_LINEAR;
        s->factor = config_float(c, "rope.scaling.factor", 1e-3, 1e6);
    } else if (strcmp(scaling, "yarn") == 0) {
        s->kind = ROPE_SCALING_YARN;
        s->factor = config_float(c, "rope.scaling.factor", 1, 1e6);
        s->original_n_ctx = config_int_or(c, "rope.scaling.original_context_length", 1, LIMIT_CONTEXT,
                                          d->n_ctx);
        s->beta_fast = config_float_or(c, "rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32);
        s->beta_slow = config_float_or(c, "rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1);
        s->attention_factor = model_yarn_scale(s->factor) *
                              config_float_or(c, "rope.scaling.attn_factor", 1e-3, 1e3, 1);
        stretch_context(d);
    } else {
        config_unsupported(c, "rope.scaling.type", scaling);
    }
}

void describe_gguf(struct model_desc *d, struct config *c)
{
    if (config_int_or(c, "expert_count", 0, INT32_MAX, 0) != 0)
        config_unsupported(c, "expert_count", "a mixture of experts");
    d->n_layers = config_int(c, "block_count", 1, LIMIT_LAYERS);
    d->d_model = config_int(c, "embedding_length", 1, LIMIT_DIMENSION);
    d->n_heads = config_int(c, "attention.head_count", 1, LIMIT_DIMENSION);
    d->n_kv_heads = config_int_or(c, "attention.head_count_kv", 1, LIMIT_DIMENSION, d->n_heads);
    d->head_dim = config_int_or(c, "attention.key_length", 1, LIMIT_DIMENSION, d->d_model / d->n_heads);
    if (config_int_or(c, "attention.value_length", 1, LIMIT_DIMENSION, d->head_dim) != d->head_dim)
        config_unsupported(c, "attention.value_length", "a head of values unlike the head of keys");
    d->d_ff = config_int(c, "feed_forward_length", 1, LIMIT_DIMENSION);
    d->n_vocab = config_int_or(c, "vocab_size", 1, LIMIT_VOCAB, 0);
    d->n_ctx = config_int(c, "context_length", 1, LIMIT_CONTEXT);
    d->norm_eps = (float)config_float(
        c, d->norm == NORM_RMS ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon", 0, 1);
    d->activation = ACT_SILU;
    d->rope_theta = config_float_or(c, "rope.freq_base", 1e-6, 1e12, 10000);
    d->rotary_dim = config_int_or(c, "rope.dimension_count", 0, LIMIT_DIMENSION, d->head_dim);
    read_gguf_scaling(d, c);
}
