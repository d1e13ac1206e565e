/* Reads the chat templates of a checkpoint and the special tokens that are their variables. As in
 * transformers: chat_template.jinja and additional_chat_templates/NAME.jinja, else
 * "chat_template" of tokenizer_config.json, else that of chat_template.json; of a GGUF file
 * tokenizer.chat_template and tokenizer.chat_template.NAME. */
#include "base/files/mapping.h"
#include "base/json/json_type.h"
#include "base/utf8.h"
#include "checkpoint/json_file.h"
#include "model/chat/chat.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char GGUF_KEY[] = "tokenizer.chat_template";

struct found {
    const struct chat_source *source;
    struct chat_texts *out;
    struct tutti_error *err;
};

static enum tutti_status set_file(const struct found *f, const char *name)
{
    int n = snprintf(f->out->file, sizeof f->out->file, "%s/%s", f->source->folder ? f->source->folder : "",
                     name);
    if (n < 0 || (size_t)n >= sizeof f->out->file)
        return error_set(f->err, TUTTI_E_IO, "%s/%s: the path is too long", f->source->folder, name);
    return TUTTI_OK;
}

static enum tutti_status add_text(const struct found *f, const char *name, const char *text, size_t n_bytes)
{
    if (!f->out->by_name)
        f->out->by_name = json_object();
    if (json_object_size(f->out->by_name) >= CHAT_MAX_TEMPLATES)
        return error_set(f->err, TUTTI_E_LIMIT, "%s: more than %d chat templates", f->out->file,
                         CHAT_MAX_TEMPLATES);
    if (n_bytes > TEMPLATE_MAX_BYTES)
        return error_set(f->err, TUTTI_E_LIMIT,
                         "%s: the chat template \"%.64s\" has %zu bytes, at most %d are allowed",
                         f->out->file, name, n_bytes, TEMPLATE_MAX_BYTES);
    if (!utf8_is_valid(text, n_bytes))
        return error_set(f->err, TUTTI_E_FORMAT, "%s: the chat template \"%.64s\" is not UTF-8", f->out->file,
                         name);
    json_t *value = json_stringn_nocheck(text, n_bytes);
    if (!value)
        return chat_out_of_memory(f->err);
    return json_object_set_new(f->out->by_name, name, value) == 0 ? TUTTI_OK : chat_out_of_memory(f->err);
}

/* value: a text; {"default": text, ...}; or [{"name": "default", "template": text}, ...]. */
static enum tutti_status add_value(const struct found *f, const json_t *value)
{
    enum tutti_status st = TUTTI_OK;
    const char *name;
    json_t *entry;
    size_t i;
    if (json_is_string(value))
        return add_text(f, "default", json_string_value(value), json_string_length(value));
    json_array_foreach(value, i, entry)
    {
        const json_t *text = json_object_get(entry, "template");
        name = json_string_value(json_object_get(entry, "name"));
        if (st == TUTTI_OK && (!name || !json_is_string(text)))
            st = error_set(f->err, TUTTI_E_FORMAT,
                           "%s: chat_template[%zu]: expected an object with name and template", f->out->file,
                           i);
        if (st == TUTTI_OK)
            st = add_text(f, name, json_string_value(text), json_string_length(text));
    }
    json_object_foreach((json_t *)(uintptr_t)value, name, entry)
    {
        if (st == TUTTI_OK && !json_is_string(entry))
            st = error_set(f->err, TUTTI_E_FORMAT, "%s: chat_template.%.64s: found %s, expected a string",
                           f->out->file, name, json_type_name(entry));
        if (st == TUTTI_OK)
            st = add_text(f, name, json_string_value(entry), json_string_length(entry));
    }
    if (value && !json_is_null(value) && !json_is_array(value) && !json_is_object(value))
        return error_set(f->err, TUTTI_E_FORMAT, "%s: chat_template: found %s, expected a string or a list",
                         f->out->file, json_type_name(value));
    return st;
}

/* Adds the template in a file, if it exists. */
static enum tutti_status add_template_file(const struct found *f, const char *file, const char *name)
{
    struct mapping map;
    struct tutti_error inner;
    enum tutti_status st = set_file(f, file);
    if (st == TUTTI_OK)
        st = mapping_open(&map, f->out->file, &inner);
    if (st == TUTTI_E_NOT_FOUND)
        return TUTTI_OK;
    if (st != TUTTI_OK)
        return error_set(f->err, st, "%s", inner.text);
    st = add_text(f, name, map.n_bytes > 0 ? (const char *)map.bytes : "", map.n_bytes);
    mapping_close(&map);
    return st;
}

static enum tutti_status add_folder(const struct found *f)
{
    static const char FOLDER[] = "additional_chat_templates", END[] = ".jinja";
    enum tutti_status st = set_file(f, FOLDER);
    DIR *dir = st == TUTTI_OK ? opendir(f->out->file) : NULL;
    if (st != TUTTI_OK || (!dir && (errno == ENOENT || errno == ENOTDIR)))
        return st;
    if (!dir)
        return error_set(f->err, TUTTI_E_IO, "%s: %s", f->out->file, strerror(errno));
    for (struct dirent *entry; st == TUTTI_OK && (entry = readdir(dir));) {
        char file[300], name[300];
        size_t n = strlen(entry->d_name), n_end = sizeof END - 1;
        if (n <= n_end || strcmp(entry->d_name + n - n_end, END) != 0)
            continue;
        snprintf(file, sizeof file, "%s/%s", FOLDER, entry->d_name);
        snprintf(name, sizeof name, "%.*s", (int)(n - n_end), entry->d_name);
        st = add_template_file(f, file, name);
    }
    closedir(dir);
    return st;
}

static enum tutti_status add_json_file(const struct found *f)
{
    json_t *root = NULL;
    enum tutti_status st = set_file(f, "chat_template.json");
    if (st == TUTTI_OK)
        st = json_file_load(f->out->file, &root, f->err);
    if (st == TUTTI_OK)
        st = add_value(f, json_object_get(root, "chat_template"));
    json_decref(root);
    return st;
}

static enum tutti_status add_gguf(const struct found *f)
{
    const char *key;
    json_t *value;
    enum tutti_status st = TUTTI_OK;
    snprintf(f->out->file, sizeof f->out->file, "%s", GGUF_KEY);
    json_object_foreach((json_t *)(uintptr_t)f->source->config, key, value)
    {
        size_t n = sizeof GGUF_KEY - 1;
        if (st == TUTTI_OK && strncmp(key, GGUF_KEY, n) == 0 && (!key[n] || key[n] == '.') &&
            json_is_string(value))
            st = add_text(f, key[n] ? key + n + 1 : "default", json_string_value(value),
                          json_string_length(value));
    }
    return st;
}

static enum tutti_status read_texts(const struct found *f)
{
    const struct chat_source *source = f->source;
    enum tutti_status st = TUTTI_OK;
    if (source->folder) {
        st = add_folder(f);
        if (st == TUTTI_OK)
            st = add_template_file(f, "chat_template.jinja", "default");
    }
    if (st != TUTTI_OK || f->out->by_name)
        return st;
    st = set_file(f, "tokenizer_config.json");
    if (st == TUTTI_OK)
        st = add_value(f, json_object_get(source->tokenizer_config, "chat_template"));
    if (st == TUTTI_OK && !f->out->by_name)
        st = source->folder ? add_json_file(f) : add_gguf(f);
    return st;
}

/* ---- special tokens ---- */

static bool set_variable(json_t *out, const char *key, const json_t *value)
{
    if (json_is_object(value))
        value = json_object_get(value, "content");
    if (json_is_string(value))
        return json_object_set(out, key, (json_t *)(uintptr_t)value) == 0;
    json_object_del(out, key); /* null: no such token */
    return true;
}

static bool set_piece(json_t *out, const char *key, const struct tokenizer *tok, int32_t id)
{
    if (id < 0)
        return true;
    struct piece piece = tokenizer_piece(tok, id);
    json_t *text = json_stringn(piece.bytes, piece.n_bytes);
    return !text || json_object_set_new(out, key, text) == 0; /* invalid UTF-8 is skipped */
}

static bool set_tokens(json_t *out, const json_t *from)
{
    static const char *const KEYS[] = { "bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token" };
    bool ok = true;
    const char *key;
    json_t *value;
    for (size_t i = 0; i < sizeof KEYS / sizeof *KEYS; i++) {
        value = json_object_get(from, KEYS[i]);
        ok = ok && (!value || set_variable(out, KEYS[i], value));
    }
    json_object_foreach(json_object_get(from, "extra_special_tokens"), key, value)
        ok = ok && set_variable(out, key, value);
    return ok;
}

/* Reads {"bos_token": "<s>", ...}. Tokens that no file defines come from the tokenizer. */
static enum tutti_status read_tokens(const struct found *f, const struct tokenizer *tok)
{
    const struct chat_source *source = f->source;
    json_t *tokens = json_object(), *map = NULL;
    const json_t *written = json_object_get(source->config, CHAT_GGUF_TOKENS);
    enum tutti_status st = TUTTI_OK;
    bool ok = tokens != NULL;
    f->out->tokens = tokens;
    if (!source->folder && json_is_string(written)) {
        map = json_loadb(json_string_value(written), json_string_length(written), JSON_ALLOW_NUL, NULL);
        if (!json_is_object(map))
            st = error_set(f->err, TUTTI_E_FORMAT, "%s: expected an object in JSON", CHAT_GGUF_TOKENS);
        ok = ok && json_object_update(tokens, map) == 0;
        goto done;
    }
    ok = ok && set_piece(tokens, "bos_token", tok, tokenizer_bos(tok)) &&
         set_piece(tokens, "eos_token", tok, tokenizer_eos(tok)) &&
         set_piece(tokens, "unk_token", tok, tokenizer_unk(tok)) &&
         (source->folder || !source->desc || set_piece(tokens, "pad_token", tok, source->desc->pad_id)) &&
         set_tokens(tokens, source->tokenizer_config);
    if (ok && source->folder && !json_object_get(source->tokenizer_config, "added_tokens_decoder")) {
        char path[CHAT_PATH_BYTES];
        snprintf(path, sizeof path, "%s/special_tokens_map.json", source->folder);
        st = json_file_load(path, &map, f->err);
        ok = st != TUTTI_OK || set_tokens(tokens, map);
    }
done:
    json_decref(map);
    return st == TUTTI_OK && !ok ? chat_out_of_memory(f->err) : st;
}

enum tutti_status chat_read_texts(struct chat_texts *out, const struct chat_source *source,
                                  const struct tokenizer *tok, struct tutti_error *err)
{
    struct found f = { source, out, err };
    *out = (struct chat_texts){ .by_name = NULL };
    enum tutti_status st = read_texts(&f);
    if (st == TUTTI_OK)
        st = read_tokens(&f, tok);
    if (st != TUTTI_OK)
        chat_texts_clear(out);
    return st;
}

enum tutti_status chat_read_templates(struct chat_texts *out, const struct chat_source *source,
                                      struct tutti_error *err)
{
    struct found f = { source, out, err };
    *out = (struct chat_texts){ .by_name = NULL };
    enum tutti_status st = read_texts(&f);
    if (st != TUTTI_OK)
        chat_texts_clear(out);
    return st;
}

void chat_texts_clear(struct chat_texts *texts)
{
    json_decref(texts->by_name);
    json_decref(texts->tokens);
    texts->by_name = texts->tokens = NULL;
}
