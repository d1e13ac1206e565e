/* LLaMA 1, 2, 3 and models with its layout: RMSNorm, rotary positions over the whole head,
 * grouped attention, SwiGLU. Hugging Face stores q and k for half-split rotation; GGUF's
 * architecture "llama" stores them permuted for interleaved rotation. Each runs in its stored
 * order. */
#include "model/description/config_keys.h"
#include "model/description/describe.h"
#include "model/families/names.h"

#include <string.h>

static const struct tensor_names LAYOUTS[] = {
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP },
    { NAMES_MINDFORMERS, NAMES_MINDFORMERS_SPLIT },
    { NAMES_MINDFORMERS, NAMES_MINDFORMERS_FUSED },
    { NAMES_GGUF, NAMES_GGUF_SPLIT_QKV, NAMES_GGUF_GATE_UP },
};

static const char *const IGNORED[] = { "rotary_emb.inv_freq", "rope_freqs.weight" };

/* Mistral has LLaMA's layout with sliding-window attention (v0.1). */
static bool llama_is_mine(const json_t *config)
{
    return describe_has_type(config, "llama") || describe_has_type(config, "mistral");
}

static void llama_describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    struct attn_desc *a = &d->kinds[0].attn;
    if (is_gguf) {
        describe_gguf(d, c);
        a->rope = ROPE_INTERLEAVED;
        a->window = config_int_or(c, "attention.sliding_window", 0, INT32_MAX, 0);
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
    describe_layer_types(d, c, window, 0);
    if (is_mistral && window > 0 && (a->window == 0 || d->n_kinds > 1))
        config_unsupported(c, "layer_types", "full attention together with a sliding_window");
}

/* ---- chat ---- */

/* Only the template distinguishes a chat model of LLaMA 2 from the base model. */
static const char *llama_choose_chat(const struct model_desc *desc, const struct tokenizer *tok,
                                     const json_t *config, const json_t *tokenizer_config,
                                     const char *template)
{
    (void)desc, (void)config, (void)tokenizer_config;
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
    .keys = CONFIG_KEYS_ROTARY,
    .describe = llama_describe,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .ignored = IGNORED,
    .n_ignored = sizeof IGNORED / sizeof *IGNORED,
    .choose_chat = llama_choose_chat,
    .defaults = defaults,
    .text_prefix = family_bos_prefix,
};
