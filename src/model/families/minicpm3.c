/* MiniCPM3: latent attention with half-split rotation by LongRoPE, no experts; factors of the embedding, of every block's output
 * and of the logits. GGUF has the up-projections in one tensor and no keys for the factors: llama.cpp knows those of MiniCPM3-4B. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

#include <math.h>
#include <string.h>

static const struct tensor_names LAYOUTS[] = {
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP, NAMES_LATENT },
    { NAMES_GGUF, NAMES_GGUF_GATE_UP, NAMES_GGUF_LATENT, .of[SLOT_K_UP] = { "blk.%d.attn_kv_b.weight" },
      .of[SLOT_V_UP] = { "blk.%d.attn_kv_b.weight" }, .has_fused_up = true },
};

/* Of MiniCPM3-4B: the class's defaults, and the constants of llama.cpp. */
static const double EMBEDDING_FACTOR = 12, DEPTH_FACTOR = 1.4, BASE_WIDTH = 256;

/* The first files have no model_type. */
static bool minicpm3_is_mine(const json_t *config)
{
    const char *class = describe_class(config);
    bool has_none = !json_object_get(config, "model_type");
    return describe_has_type(config, "minicpm3") ||
           (has_none && class && strcmp(class, "MiniCPM3ForCausalLM") == 0);
}

/* A positive setting; fallback: where the file does not have it, none: where it is null. */
static double read_setting(struct config *c, const char *key, double fallback, double none)
{
    bool is_null = config_has(c, key) && !config_find(c, key);
    return config_float_or(c, key, 1e-6, 1e6, is_null ? none : fallback);
}

static void minicpm3_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    static const struct transformers_defaults DEFAULTS = {
        .n_kv_heads = 40, .n_ctx = 32768, .norm_eps = 1e-5, .n_heads = 40, .n_vocab = 73448, .is_tied = true
    };
    static const struct latent_defaults LATENT = { 768, 256, 64, 32, 0 };
    struct attn_desc *a = &d->kinds[0].attn;
    double embedding = EMBEDDING_FACTOR, depth = DEPTH_FACTOR, base = BASE_WIDTH;
    if (is_gguf) {
        a->n_latent = config_int(c, "attention.kv_lora_rank", 1, LIMIT_DIMENSION);
        describe_gguf(d, c);
        describe_gguf_latent(d, c, d->d_model / a->n_heads);
    } else {
        describe_latent(d, c, &DEFAULTS, &LATENT);
        describe_layer_types(d, c, 0, 0);
        d->kinds[0].ffn.has_bias = config_bool_or(c, "mlp_bias", false);
        embedding = read_setting(c, "scale_emb", embedding, embedding);
        depth = read_setting(c, "scale_depth", depth, sqrt(d->n_layers));
        base = read_setting(c, "dim_model_base", base, d->d_model);
    }
    a->rope = ROPE_HALF;
    d->embedding_scale = (float)embedding;
    d->block_scale = (float)(depth / sqrt(d->n_layers));
    d->logit_scale = (float)(base / d->d_model);
}

static void minicpm3_put_metadata(struct gguf_writer *w, const struct model_desc *d)
{
    const struct attn_desc *a = &d->kinds[0].attn;
    gguf_writer_u32(w, "minicpm3.attention.key_length", (uint32_t)a->head_dim);
    gguf_writer_u32(w, "minicpm3.attention.value_length", (uint32_t)a->value_dim);
    gguf_writer_u32(w, "minicpm3.attention.kv_lora_rank", (uint32_t)a->n_latent);
    gguf_writer_u32(w, "minicpm3.attention.q_lora_rank", (uint32_t)a->q_rank);
    describe_put_latent_epsilon(w, "minicpm3", d);
}

static bool differs(float found, double expected)
{
    return fabs((double)found - expected) > 1e-6 * expected;
}

static const char *minicpm3_find_gguf_fault(const struct model_desc *d)
{
    const struct attn_desc *a = &d->kinds[0].attn;
    if (differs(d->embedding_scale, EMBEDDING_FACTOR))
        return "another scale_emb than 12";
    if (differs(d->block_scale, DEPTH_FACTOR / sqrt(d->n_layers)))
        return "another scale_depth than 1.4";
    if (differs(d->logit_scale, BASE_WIDTH / d->d_model))
        return "another dim_model_base than 256";
    if (a->q_rank == 0)
        return "q_lora_rank: null";
    if (a->has_qkv_bias)
        return "attention_bias: true";
    if (a->rope_scaling.kind == ROPE_SCALING_YARN)
        return "rope_scaling: yarn";
    return d->kinds[0].ffn.has_bias ? "mlp_bias: true" : NULL;
}

const struct family FAMILY_MINICPM3 = {
    .name = "minicpm3",
    .gguf_architecture = "minicpm3",
    .expands_latents = true,
    .is_mine = minicpm3_is_mine,
    .keys = CONFIG_KEYS_ROTARY,
    .code = "MiniCPM3",
    .describe = minicpm3_describe,
    .put_metadata = minicpm3_put_metadata,
    .find_gguf_fault = minicpm3_find_gguf_fault,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_bos_prefix,
};
