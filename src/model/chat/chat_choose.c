/* Chooses the chat format: the user's choice, else the checkpoint's template, else a built-in
 * format. */
#include "base/files/mapping.h"
#include "base/log.h"
#include "base/utf8.h"
#include "model/chat/chat.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- the checkpoint's own format ---- */

/* The format, by special tokens that no other format has. */
static const char *detect_name(const struct tokenizer *tok)
{
    if (tokenizer_find_control(tok, "<|im_start|>") >= 0)
        return "chatml";
    if (tokenizer_find_control(tok, "<|start_header_id|>") >= 0 &&
        tokenizer_find_control(tok, "<|eot_id|>") >= 0)
        return "llama3";
    if (tokenizer_find_control(tok, "[INST]") >= 0 && tokenizer_find_control(tok, "[/INST]") >= 0)
        return "mistral-v3";
    return NULL;
}

static const struct chat_format *format_of_family(const struct chat_source *source,
                                                  const struct tokenizer *tok, const char *text)
{
    if (!source->family)
        return NULL;
    return chat_format_find(source->family->choose_chat(source->desc, tok, source->config,
                                                        source->tokenizer_config, source->generation, text));
}

enum tutti_status chat_find(struct chat_found *out, const struct chat_source *source,
                            const struct tokenizer *tok, struct tutti_error *err)
{
    *out = (struct chat_found){ .builtin = NULL };
    enum tutti_status st = chat_read_texts(&out->texts, source, tok, err);
    if (st != TUTTI_OK)
        return st;
    const json_t *written = source->folder ? NULL : json_object_get(source->config, CHAT_GGUF_FORMAT);
    const char *text = json_string_value(json_object_get(out->texts.by_name, "default"));
    if (json_is_string(written)) {
        out->builtin = chat_format_find(json_string_value(written));
        if (!out->builtin)
            st = error_set(err, TUTTI_E_UNSUPPORTED,
                           "%s names the chat format \"%.64s\", which this version of tutti does not have; "
                           "choose one with --chat-format",
                           CHAT_GGUF_FORMAT, json_string_value(written));
    } else {
        out->has_template = out->texts.by_name;
        out->builtin = format_of_family(source, tok, text);
        const char *detected = out->builtin || out->has_template ? NULL : detect_name(tok);
        if (detected)
            out->builtin = chat_format_find(detected);
    }
    if (st != TUTTI_OK)
        chat_found_clear(out);
    return st;
}

void chat_found_clear(struct chat_found *found)
{
    chat_texts_clear(&found->texts);
}

/* ---- choosing a format ---- */

struct chat_choice {
    const struct chat_source *source;
    const struct tokenizer *tok;
    struct chat_found found;
    const struct chat_format **format;
    struct chat_template **tpl;
};

static enum tutti_status use_template(const struct chat_choice *c, struct chat_template_source *source,
                                      struct tutti_error *err)
{
    source->tokens = c->found.texts.tokens;
    source->builtin = c->found.builtin;
    enum tutti_status st = chat_template_new(c->tpl, source, c->tok, err);
    if (st == TUTTI_OK)
        *c->format = chat_template_format(*c->tpl);
    return st;
}

static enum tutti_status use_builtin(const struct chat_choice *c, const struct chat_format *format,
                                     struct tutti_error *err)
{
    struct buf text = { 0 };
    enum tutti_status st = TUTTI_OK;
    if (format->is_own_template && !chat_add_own_template(format, &text))
        st = chat_out_of_memory(err);
    struct chat_template_source source = { .name = format->name,
                                           .text = text.bytes,
                                           .n_bytes = text.n_bytes };
    if (st == TUTTI_OK && format->is_own_template)
        st = chat_template_new(c->tpl, &source, c->tok, err);
    if (st == TUTTI_OK)
        *c->format = format;
    buf_clear(&text);
    return st;
}

static enum tutti_status use_file(const struct chat_choice *c, const char *path, struct tutti_error *err)
{
    struct mapping map;
    enum tutti_status st = mapping_open(&map, path, err);
    if (st != TUTTI_OK)
        return st;
    const char *text = map.bytes ? (const char *)map.bytes : "";
    size_t n_mark = utf8_mark_bytes(text, map.n_bytes);
    struct chat_template_source source = { .name = path,
                                           .text = text + n_mark,
                                           .n_bytes = map.n_bytes - n_mark };
    st = use_template(c, &source, err);
    mapping_close(&map);
    return st;
}

/* One of the checkpoint's templates. */
static enum tutti_status use_own(const struct chat_choice *c, const char *name, struct tutti_error *err)
{
    const struct chat_texts *texts = &c->found.texts;
    const json_t *text = json_object_get(texts->by_name, name);
    bool is_default = strcmp(name, "default") == 0;
    if (!text) {
        char known[256] = "";
        const char *key;
        json_t *value;
        json_object_foreach(texts->by_name, key, value)
            snprintf(known + strlen(known), sizeof known - strlen(known), "%s%.40s", *known ? ", " : "", key);
        if (!*known)
            return error_set_param(err, TUTTI_E_ARGUMENT, "chat_format",
                                   "the checkpoint has no chat template");
        return error_set_param(err, TUTTI_E_ARGUMENT, "chat_format",
                               "%s: no chat template is named \"%.40s\", only %s; choose one with "
                               "--chat-format template:NAME",
                               texts->file, name, known);
    }
    struct chat_template_source source = { .name = texts->file,
                                           .text = json_string_value(text),
                                           .n_bytes = json_string_length(text),
                                           .tool_text = is_default
                                                            ? json_object_get(texts->by_name, "tool_use")
                                                            : NULL };
    return use_template(c, &source, err);
}

static enum tutti_status unknown_name(const char *name, struct tutti_error *err)
{
    char known[256] = "";
    const struct chat_format *format;
    for (size_t i = 0; (format = chat_format_at(i)); i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s, ", format->name);
    return error_set_param(
        err, TUTTI_E_ARGUMENT, "chat_format",
        "chat format \"%.64s\", expected %stemplate (the checkpoint's own) or a file of a template", name,
        known);
}

static enum tutti_status use_option(const struct chat_choice *c, struct tutti_error *err)
{
    static const char OWN[] = "template";
    const char *name = c->source->option;
    const struct chat_format *format = chat_format_find(name);
    size_t n = sizeof OWN - 1;
    if (format)
        return use_builtin(c, format, err);
    if (strncmp(name, OWN, n) == 0 && (!name[n] || name[n] == ':'))
        return use_own(c, name[n] ? name + n + 1 : "default", err);
    return access(name, F_OK) == 0 || strchr(name, '/') ? use_file(c, name, err) : unknown_name(name, err);
}

/* If a template cannot be read or compiled, the model has no chat format: text and ids still work. */
static enum tutti_status without_format(const struct tutti_error *why, struct tutti_error *err)
{
    if (why->status == TUTTI_E_MEMORY)
        return error_set(err, why->status, "%s", why->text);
    log_warn("no chat format, so messages are refused: %s", why->text);
    return TUTTI_OK;
}

enum tutti_status chat_choose(const struct chat_format **format, struct chat_template **tpl,
                              const struct chat_source *source, const struct tokenizer *tok,
                              struct tutti_error *err)
{
    struct chat_choice c = { .source = source, .tok = tok, .format = format, .tpl = tpl };
    struct tutti_error inner = { 0 };
    *format = NULL;
    *tpl = NULL;
    enum tutti_status st = chat_find(&c.found, source, tok, &inner);
    bool needs_files = !source->option || strncmp(source->option, "template", 8) == 0;
    if (st != TUTTI_OK && source->option && needs_files)
        return error_set_param(err, st, "chat_format", "%s", inner.text);
    if (st != TUTTI_OK && needs_files)
        return without_format(&inner, err);
    if (source->option) {
        st = use_option(&c, err);
    } else if (c.found.has_template) {
        st = use_own(&c, "default", &inner);
        st = st == TUTTI_OK ? st : without_format(&inner, err);
    } else if (c.found.builtin) {
        st = use_builtin(&c, c.found.builtin, err);
    }
    chat_found_clear(&c.found);
    return st;
}
