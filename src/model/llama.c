/* LLaMA 1, 2, 3 and what has its layout: RMSNorm, rotary positions over the whole head, grouped attention, SwiGLU.
 * Hugging Face stores q and k for half-split rotation; GGUF's architecture "llama" stores them permuted for interleaved
 * rotation. Each is run as it is stored. */
#include "model/describe.h"
#include "model/names.h"

#include <string.h>

static const struct tensor_names LAYOUTS[] = {
    { NAMES_TRANSFORMERS, NAMES_TRANSFORMERS_GATE_UP },
    { NAMES_MINDFORMERS, NAMES_MINDFORMERS_SPLIT },
    { NAMES_MINDFORMERS, NAMES_MINDFORMERS_FUSED },
    { NAMES_GGUF, NAMES_GGUF_SPLIT_QKV, NAMES_GGUF_GATE_UP },
};

static const char *const IGNORED[] = { "rotary_emb.inv_freq", "rope_freqs.weight" };

/* Mistral is LLaMA's layout with a window of attention (v0.1). */
static bool is_mine(const json_t *config)
{
    return describe_has_type(config, "llama") || describe_has_type(config, "mistral");
}

static void describe(struct model_desc *d, struct config *c, bool is_gguf)
{
    if (is_gguf) {
        describe_gguf(d, c);
        d->rope = ROPE_INTERLEAVED;
        d->window = config_int_or(c, "attention.sliding_window", 0, INT32_MAX, 0);
        return;
    }
    describe_transformers(d, c);
    d->has_qkv_bias = d->has_attn_out_bias = config_bool_or(c, "attention_bias", false);
    d->has_mlp_bias = config_bool_or(c, "mlp_bias", false);
    d->window = config_int_or(c, "sliding_window", 1, INT32_MAX, 0);
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
    .is_permuted_in_gguf = true,
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
