/* Keys that the families with latent attention (DeepSeek-AI, 2024: DeepSeek-V2) share. */
#include "model/description/describe.h"

#include <math.h>
#include <stdio.h>

/* The norms' epsilon of the classes in transformers, which do not pass rms_norm_eps to these norms. */
#define LATENT_EPSILON 1e-6f
#define KEY_EPSILON    "attention.latent_layer_norm_rms_epsilon" /* tutti's own */

/* YaRN's second factor, by which DeepSeek multiplies the scores. */
static void read_mscale(struct model_desc *d, struct config *c)
{
    struct attn_desc *a = &d->kinds[0].attn;
    const struct rope_scaling *s = &a->rope_scaling;
    const char *key = config_has_object(c, "rope_scaling") ? "rope_scaling.mscale_all_dim"
                                                           : "rope_parameters.mscale_all_dim";
    double all = config_float_or(c, key, 0, 1e3, 0);
    if (s->kind == ROPE_SCALING_NONE || all == 0)
        return;
    double m = s->factor > 1 ? 0.1 * all * log(s->factor) + 1 : 1;
    a->scale = (float)(pow(a->head_dim, -0.5) * m * m);
}

void describe_latent(struct model_desc *d, struct config *c, const struct transformers_defaults *decoder,
                     const struct latent_defaults *defaults)
{
    struct attn_desc *a = &d->kinds[0].attn;
    struct transformers_defaults of_rotation = *decoder;
    int rotary_dim = config_int_or(c, "qk_rope_head_dim", 1, LIMIT_DIMENSION, defaults->rotary_dim);
    of_rotation.head_dim = rotary_dim;
    describe_transformers(d, c, &of_rotation);
    if (a->n_kv_heads != a->n_heads)
        config_unsupported(c, "num_key_value_heads", "another number than that of heads");
    if (a->rope_scaling.kind == ROPE_SCALING_LONGROPE && a->rotary_dim != rotary_dim)
        config_unsupported(c, "head_dim", "another number than qk_rope_head_dim with LongRoPE");
    bool has_no_rank = config_has(c, "q_lora_rank") && !config_find(c, "q_lora_rank");
    int n_unrotated = config_int_or(c, "qk_nope_head_dim", 1, LIMIT_DIMENSION, defaults->n_unrotated);
    a->q_rank = config_int_or(c, "q_lora_rank", 1, LIMIT_DIMENSION, has_no_rank ? 0 : defaults->q_rank);
    a->n_latent = config_int_or(c, "kv_lora_rank", 1, LIMIT_DIMENSION, defaults->n_latent);
    a->rotary_dim = rotary_dim;
    a->value_dim = config_int_or(c, "v_head_dim", 1, LIMIT_DIMENSION,
                                 defaults->value_dim > 0 ? defaults->value_dim : d->d_model / a->n_heads);
    a->head_dim = n_unrotated + a->rotary_dim;
    if (config_int_or(c, "qk_head_dim", 1, INT32_MAX, a->head_dim) != a->head_dim)
        config_unsupported(c, "qk_head_dim", "another number than qk_nope_head_dim + qk_rope_head_dim");
    a->n_kv_heads = 1;
    a->latent_norm_eps = LATENT_EPSILON;
    a->has_qkv_bias = a->has_out_bias = config_bool_or(c, "attention_bias", false);
    read_mscale(d, c);
}

void describe_gguf_latent(struct model_desc *d, struct config *c, int value_dim)
{
    struct attn_desc *a = &d->kinds[0].attn;
    a->value_dim = config_int_or(c, "attention.value_length", 1, LIMIT_DIMENSION, value_dim);
    a->q_rank = config_int_or(c, "attention.q_lora_rank", 0, LIMIT_DIMENSION, 0);
    if (a->n_kv_heads != 1 && a->n_kv_heads != a->n_heads)
        config_unsupported(c, "attention.head_count_kv", "another number than 1 and that of heads");
    a->n_kv_heads = 1;
    a->latent_norm_eps = (float)config_float_or(c, KEY_EPSILON, 0, 1, (double)d->norm_eps);
}

void describe_put_latent_epsilon(struct gguf_writer *w, const char *architecture, const struct model_desc *d)
{
    char key[128];
    float epsilon = d->kinds[0].attn.latent_norm_eps;
    snprintf(key, sizeof key, "%s." KEY_EPSILON, architecture);
    if (epsilon < d->norm_eps || epsilon > d->norm_eps)
        gguf_writer_f32(w, key, epsilon);
}
