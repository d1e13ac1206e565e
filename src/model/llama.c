/* LLaMA 1, 2, 3 and what has its layout: RMSNorm, rotary positions over the whole head, grouped attention, SwiGLU.
 * Hugging Face stores q and k for half-split rotation; GGUF's architecture "llama" stores them permuted for interleaved
 * rotation. Each is run as it is stored. */
#include "model/family.h"

#include <stdio.h>
#include <string.h>

static const struct tensor_names LAYOUTS[] = {
    {
        .embedding = "model.embed_tokens.weight",
        .output = "lm_head.weight",
        .output_norm = "model.norm.weight",
        .attn_norm = "model.layers.%d.input_layernorm.weight",
        .ffn_norm = "model.layers.%d.post_attention_layernorm.weight",
        .qkv = { "model.layers.%d.self_attn.q_proj.weight", "model.layers.%d.self_attn.k_proj.weight",
                 "model.layers.%d.self_attn.v_proj.weight" },
        .attn_out = "model.layers.%d.self_attn.o_proj.weight",
        .gate_up = { "model.layers.%d.mlp.gate_proj.weight", "model.layers.%d.mlp.up_proj.weight" },
        .down = "model.layers.%d.mlp.down_proj.weight",
    },
    {
        .embedding = "token_embd.weight",
        .output = "output.weight",
        .output_norm = "output_norm.weight",
        .attn_norm = "blk.%d.attn_norm.weight",
        .ffn_norm = "blk.%d.ffn_norm.weight",
        .qkv = { "blk.%d.attn_q.weight", "blk.%d.attn_k.weight", "blk.%d.attn_v.weight" },
        .attn_out = "blk.%d.attn_output.weight",
        .gate_up = { "blk.%d.ffn_gate.weight", "blk.%d.ffn_up.weight" },
        .down = "blk.%d.ffn_down.weight",
        .is_gguf = true,
    },
};

static const char *const IGNORED[] = { "rotary_emb.inv_freq", "rope_freqs.weight" };

static bool is_mine(const json_t *config)
{
    const char *type = json_string_value(json_object_get(config, "model_type"));
    return type && strcmp(type, "llama") == 0;
}

static void read_rope_scaling(struct model_desc *d, struct config *c, const char *object)
{
    char key[128];
#define KEY(name) (snprintf(key, sizeof key, "%s.%s", object, name), key)
    const char *type = config_string_or(c, KEY("rope_type"), config_string_or(c, KEY("type"), "default"));
    if (strcmp(type, "default") == 0)
        return;
    if (strcmp(type, "linear") == 0) {
        d->rope_scaling.kind = ROPE_SCALING_LINEAR;
        d->rope_scaling.factor = config_float(c, KEY("factor"), 1e-3, 1e6);
        return;
    }
    if (strcmp(type, "llama3") != 0) {
        char what[64];
        snprintf(what, sizeof what, "\"%.40s\"", type);
        config_unsupported(c, KEY("rope_type"), what);
        return;
    }
    d->rope_scaling.kind = ROPE_SCALING_LLAMA3;
    d->rope_scaling.factor = config_float(c, KEY("factor"), 1e-3, 1e6);
    d->rope_scaling.low_freq_factor = config_float_or(c, KEY("low_freq_factor"), 1e-3, 1e6, 1);
    d->rope_scaling.high_freq_factor = config_float_or(c, KEY("high_freq_factor"), 1e-3, 1e6, 4);
    d->rope_scaling.original_n_ctx = config_int_or(c, KEY("original_max_position_embeddings"), 1,
                                                   LIMIT_CONTEXT, 8192);
#undef KEY
}

static void describe_hf(struct model_desc *d, struct config *c)
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
    d->has_qkv_bias = d->has_attn_out_bias = config_bool_or(c, "attention_bias", false);
    d->has_mlp_bias = config_bool_or(c, "mlp_bias", false);
    const char *act = config_string_or(c, "hidden_act", "silu");
    if (strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        config_unsupported(c, "hidden_act", act);
    if (config_find(c, "sliding_window"))
        config_unsupported(c, "sliding_window", "a window of attention");
    bool nested = config_find(c, "rope_parameters") != NULL;
    d->rope_theta = config_float_or(c, nested ? "rope_parameters.rope_theta" : "rope_theta", 1e-6, 1e12,
                                    10000);
    if (nested || config_find(c, "rope_scaling"))
        read_rope_scaling(d, c, nested ? "rope_parameters" : "rope_scaling");
    d->rope = ROPE_HALF;
    d->rotary_dim = d->head_dim;
}

static void describe_gguf(struct model_desc *d, struct config *c)
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
    if (config_int_or(c, "attention.sliding_window", 0, INT32_MAX, 0) != 0)
        config_unsupported(c, "attention.sliding_window", "a window of attention");
    d->d_ff = config_int(c, "feed_forward_length", 1, LIMIT_DIMENSION);
    d->n_vocab = config_int_or(c, "vocab_size", 1, LIMIT_VOCAB, 0);
    d->n_ctx = config_int(c, "context_length", 1, LIMIT_CONTEXT);
    d->norm_eps = (float)config_float(c, "attention.layer_norm_rms_epsilon", 0, 1);
    d->rope_theta = config_float_or(c, "rope.freq_base", 1e-6, 1e12, 10000);
    d->rotary_dim = config_int_or(c, "rope.dimension_count", 0, LIMIT_DIMENSION, d->head_dim);
    d->rope = ROPE_INTERLEAVED;
    const char *scaling = config_string_or(c, "rope.scaling.type", "none");
    if (strcmp(scaling, "linear") == 0) {
        d->rope_scaling.kind = ROPE_SCALING_LINEAR;
        d->rope_scaling.factor = config_float(c, "rope.scaling.factor", 1e-3, 1e6);
    } else if (strcmp(scaling, "none") != 0) {
        config_unsupported(c, "rope.scaling.type", scaling);
    }
}

static void describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    d->activation = ACT_SILU;
    if (is_gguf)
        describe_gguf(d, c);
    else
        describe_hf(d, c);
}

/* ---- chat ---- */

static const char *choose_chat(const struct model_desc *desc, const struct tokenizer *tok,
                               const json_t *config, const json_t *tokenizer_config)
{
    (void)desc;
    const char *template = json_string_value(json_object_get(tokenizer_config, "chat_template"));
    if (!template)
        template = json_string_value(json_object_get(config, "tokenizer.chat_template"));
    bool has_ids = tokenizer_bos(tok) >= 0 && tokenizer_eos(tok) >= 0;
    return template && has_ids && strstr(template, "[INST]") && strstr(template, "<<SYS>>") ? "llama2" : "";
}

static enum tutti_status text_prefix(const struct tokenizer *tok, struct ids *out, struct tutti_error *err)
{
    int32_t bos = tokenizer_bos(tok);
    return bos < 0 || ids_add(out, bos) ? TUTTI_OK : chat_out_of_memory(err);
}

static void strip(const struct tutti_message *m, const char **text, size_t *n_bytes)
{
    static const char BLANKS[] = " \t\n\r\v\f";
    *text = m->content;
    *n_bytes = m->n_bytes;
    while (*n_bytes > 0 && strchr(BLANKS, **text) && **text)
        (*text)++, (*n_bytes)--;
    while (*n_bytes > 0 && strchr(BLANKS, (*text)[*n_bytes - 1]) && (*text)[*n_bytes - 1])
        (*n_bytes)--;
}

/* Each round is tokenized by itself between bos and eos: "[INST] <<SYS>>\n{system}\n<</SYS>>\n\n{user} [/INST] {answer} ".
 */
static enum tutti_status render_llama2(const struct tokenizer *tok, const struct model_desc *desc,
                                       const struct tutti_message *messages, size_t n_messages,
                                       struct ids *out, struct tutti_error *err)
{
    (void)desc;
    struct buf text = { 0 };
    enum tutti_status st = TUTTI_OK;
    bool ok = true, wants_user = true;
    const char *content;
    size_t n_bytes;
    size_t first = n_messages > 0 && strcmp(messages[0].role, "system") == 0;
    if (first)
        strip(&messages[0], &content, &n_bytes);
    if (n_messages == first || strcmp(messages[n_messages - 1].role, "user") != 0) {
        st = error_set_param(err, TUTTI_E_ARGUMENT, "messages", "the last message must come from the user");
        goto done;
    }
    for (size_t i = first; i < n_messages && ok; i++) {
        if (strcmp(messages[i].role, wants_user ? "user" : "assistant") != 0) {
            st = chat_bad_role(&messages[i], i,
                               wants_user ? "user (roles alternate)" : "assistant (roles alternate)", err);
            goto done;
        }
        if (wants_user) {
            buf_truncate(&text, 0);
            ok = buf_add_string(&text, "[INST] ");
            if (i == 1 && first)
                ok = ok && buf_add_string(&text, "<<SYS>>\n") && buf_add(&text, content, n_bytes) &&
                     buf_add_string(&text, "\n<</SYS>>\n\n");
            strip(&messages[i], &content, &n_bytes);
            ok = ok && buf_add(&text, content, n_bytes) && buf_add_string(&text, " [/INST]");
        } else {
            strip(&messages[i], &content, &n_bytes);
            ok = buf_add(&text, " ", 1) && buf_add(&text, content, n_bytes) && buf_add(&text, " ", 1);
        }
        wants_user = !wants_user;
        bool closes = wants_user; /* an answer has just been added */
        if (ok && (closes || i + 1 == n_messages))
            ok = ids_add(out, tokenizer_bos(tok)) && tokenizer_encode(tok, text.bytes, text.n_bytes, out) &&
                 (!closes || ids_add(out, tokenizer_eos(tok)));
    }
    if (!ok)
        st = chat_out_of_memory(err);
done:
    buf_clear(&text);
    return st;
}

static const struct chat_format LLAMA2 = { .name = "llama2", .render = render_llama2, .trims_reply = true };
static const struct chat_format *const CHAT_FORMATS[] = { &LLAMA2 };

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
    .is_mine = is_mine,
    .describe = describe,
    .layouts = LAYOUTS,
    .n_layouts = sizeof LAYOUTS / sizeof *LAYOUTS,
    .ignored = IGNORED,
    .n_ignored = sizeof IGNORED / sizeof *IGNORED,
    .choose_chat = choose_chat,
    .chat_formats = CHAT_FORMATS,
    .n_chat_formats = sizeof CHAT_FORMATS / sizeof *CHAT_FORMATS,
    .defaults = defaults,
    .text_prefix = text_prefix,
};
