/* LLaMA 1, 2, 3 and models with its layout: RMSNorm, rotary positions over the whole head,
 * grouped attention, SwiGLU. Hugging Face stores q and k for half-split rotation; GGUF's
 * architecture "llama" stores them permuted for interleaved rotation. Each runs in its stored
 * order. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

#include <math.h>
#include <string.h>

static const struct tensor_names LAYOUTS[] = {
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP },
    { NAMES_MINDFORMERS, NAMES_MINDFORMERS_SPLIT },
    { NAMES_MINDFORMERS, NAMES_MINDFORMERS_FUSED },
    LAYOUTS_GGUF(NAMES_GGUF, NAMES_GGUF_GATE_UP),
};

static const struct config_key KEYS[] = {
    CONFIG_WHOLE_HEADS,
    { "is_llama_config", "true" }, /* SmolLM2 */
    { "rope_interleaved", "false" },
    { "max_sequence_length", NULL }, /* of the first LLaMA; max_position_embeddings is used */
    { NULL, NULL },
};

/* Mistral has LLaMA's layout with sliding-window attention (v0.1), Ministral with a window in some layers, Ministral 3
 * with a factor of queries beyond the original context. */
static bool llama_is_mine(const json_t *config)
{
    static const char *const TYPES[] = { "llama", "mistral", "ministral" };
    bool is_any = false;
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        is_any = is_any || describe_has_type(config, TYPES[i]);
    return is_any;
}

static bool is_ministral3(const json_t *config)
{
    return describe_has_type(config, "ministral3");
}

static bool is_internlm3(const json_t *config)
{
    return describe_has_type(config, "internlm3");
}

/* Names of its own for the biases, of which its code computes with one setting. GGUF has the model as
 * "llama", which FAMILY_LLAMA reads. */
static void describe_internlm3(struct model_desc *d, struct config *c, bool is_gguf)
{
    (void)is_gguf;
    static const struct transformers_defaults DEFAULTS = { 2, 128, 32768, 1e-5, 0 };
    struct attn_desc *a = &d->kinds[0].attn;
    describe_transformers(d, c, &DEFAULTS);
    bool has_bias = config_bool_or(c, describe_either(c, "bias", "mlp_bias"), false);
    a->has_qkv_bias = config_bool_or(c, describe_either(c, "qkv_bias", "attention_bias"), false);
    a->has_out_bias = d->kinds[0].ffn.has_bias = has_bias;
    if (a->has_qkv_bias != has_bias)
        config_unsupported(c, "qkv_bias", "another value than that of bias");
}

static void describe_ministral(struct model_desc *d, struct config *c)
{
    static const struct transformers_defaults DEFAULTS = { 8, 0, 131072, 1e-6, 0 };
    describe_transformers(d, c, &DEFAULTS);
    describe_layer_types(
        d, c, config_int_or(c, "sliding_window", 1, INT32_MAX, config_has(c, "sliding_window") ? 0 : 4096),
        0);
}

static void set_query_growth(struct model_desc *d, double growth)
{
    struct rope_scaling *s = &d->kinds[0].attn.rope_scaling;
    s->query_growth = growth;
    if (growth != 0 && s->original_n_ctx > 0 && s->original_n_ctx < d->n_ctx)
        d->n_ctx = s->original_n_ctx;
}

static void describe_gguf_llama(struct model_desc *d, struct config *c)
{
    describe_gguf(d, c);
    d->kinds[0].attn.rope = ROPE_INTERLEAVED;
    d->kinds[0].attn.window = config_int_or(c, "attention.sliding_window", 0, INT32_MAX, 0);
}

static void describe_gguf_ministral3(struct model_desc *d, struct config *c)
{
    struct rope_scaling *s = &d->kinds[0].attn.rope_scaling;
    describe_gguf_llama(d, c);
    if (s->kind == ROPE_SCALING_YARN)
        s->attention_factor /= 1 + 0.1 * config_float_or(c, "rope.scaling.yarn_log_multiplier", 0, 10, 0) *
                                       log(s->factor);
    set_query_growth(d, config_float_or(c, "attention.temperature_scale", 0, 1e3, 0));
}

static void describe_ministral3(struct model_desc *d, struct config *c, bool is_gguf)
{
    static const struct transformers_defaults DEFAULTS = {
        .n_heads = 32, .n_kv_heads = 8, .head_dim = 128, .n_ctx = 262144, .n_vocab = 131072, .norm_eps = 1e-5
    };
    if (is_gguf) {
        describe_gguf_ministral3(d, c);
        return;
    }
    bool has_old = config_has_object(c, "rope_scaling");
    if (!has_old && !config_has_object(c, "rope_parameters"))
        config_unsupported(c, "rope_parameters", "a file without them");
    describe_transformers(d, c, &DEFAULTS);
    if (d->kinds[0].attn.rope_scaling.kind != ROPE_SCALING_YARN)
        config_unsupported(c, has_old ? "rope_scaling.rope_type" : "rope_parameters.rope_type",
                           "another scaling than yarn");
    config_skip(c,
                has_old ? "rope_scaling.max_position_embeddings" : "rope_parameters.max_position_embeddings");
    set_query_growth(d, config_float(c,
                                     has_old ? "rope_scaling.llama_4_scaling_beta"
                                             : "rope_parameters.llama_4_scaling_beta",
                                     0, 1e3));
    describe_window_of_all(d, c, config_int_or(c, "sliding_window", 1, INT32_MAX, 0));
}

static void llama_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    if (is_gguf) {
        describe_gguf_llama(d, c);
        return;
    }
    if (describe_has_type(c->root, "ministral")) {
        describe_ministral(d, c);
        return;
    }
    static const struct transformers_defaults LLAMA = { 0, 0, 2048, 1e-6, 0 };
    static const struct transformers_defaults MISTRAL = { 8, 0, 131072, 1e-6, 0 };
    bool is_mistral = describe_has_type(c->root, "mistral");
    describe_transformers(d, c, is_mistral ? &MISTRAL : &LLAMA);
    if (!is_mistral) { /* Mistral's class has no biases */
        a->has_qkv_bias = a->has_out_bias = config_bool_or(c, "attention_bias", false);
        d->kinds[0].ffn.has_bias = config_bool_or(c, "mlp_bias", false);
    }
    /* Mistral's class has a default window if the key is absent; null means none. LLaMA's class
     * has no window. */
    int window = config_int_or(c, "sliding_window", 1, INT32_MAX,
                               is_mistral && !config_has(c, "sliding_window") ? 4096 : 0);
    if (window > 0 && !is_mistral)
        config_unsupported(c, "sliding_window", "a window of attention in a llama model");
    describe_window_of_all(d, c, window);
}

/* ---- chat ---- */

/* Only the template distinguishes a chat model of LLaMA 2 from the base model. */
static const char *llama_choose_chat(const struct model_desc *desc, const struct tokenizer *tok,
                                     const json_t *config, const json_t *tokenizer_config,
                                     const json_t *generation, const char *template)
{
    (void)desc, (void)config, (void)tokenizer_config, (void)generation;
    bool has_ids = tokenizer_bos(tok) >= 0 && tokenizer_eos(tok) >= 0;
    return template && has_ids && strstr(template, "[INST]") && strstr(template, "<<SYS>>") ? "llama2" : "";
}

static void defaults(struct tutti_sampling *sampling, const char *chat_format)
{
    if (strcmp(chat_format, "llama2") == 0) {
        sampling->temperature = 0.6f;
        sampling->top_p = 0.9f;
    }
}

const struct family FAMILY_LLAMA = {
    .name = "llama",
    .gguf_architecture = "llama",
    .is_permuted_in_gguf = true,
    .is_mine = llama_is_mine,
    .keys = KEYS,
    .describe = llama_describe,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = llama_choose_chat,
    .defaults = defaults,
    .text_prefix = family_bos_prefix,
};

static void put_ministral3(struct gguf_writer *w, const struct model_desc *d)
{
    gguf_writer_f32(w, "mistral3.attention.temperature_scale",
                    (float)d->kinds[0].attn.rope_scaling.query_growth);
}

/* GGUF: llama.cpp's converter gives Mistral Small 3.1's language part the same architecture, without the growth. */
const struct family FAMILY_MINISTRAL3 = {
    .name = "ministral3",
    .gguf_architecture = "mistral3",
    .is_permuted_in_gguf = true,
    .is_mine = is_ministral3,
    .keys = KEYS,
    .describe = describe_ministral3,
    .put_metadata = put_ministral3,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_bos_prefix,
};

const struct family FAMILY_INTERNLM3 = {
    .name = "internlm3",
    .gguf_architecture = "llama",
    .is_permuted_in_gguf = true,
    .is_mine = is_internlm3,
    .keys = CONFIG_KEYS_ROTARY,
    .code = "InternLM3",
    .describe = describe_internlm3,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .choose_chat = family_no_chat,
    .text_prefix = family_bos_prefix,
};
