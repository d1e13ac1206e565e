/* Reads SentencePiece's tokenizer.model and the files with special pieces, added tokens, and the
 * tokens at both ends of a text. As in transformers; for files that transformers does not read,
 * as in llama.cpp. */
#include "base/json/json_field.h"
#include "base/json/json_wide.h"
#include "base/limits.h"
#include "model/load/tokenizer_bytes.h"
#include "model/load/tokenizer_settings.h"
#include "tokenizer/json/byte_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The tokenizer to add tokens to, and the file's name for messages. */
struct adding {
    struct tokenizer *tok;
    const char *name;
    struct tutti_error *err;
    int32_t n_rows; /* of the model; read by add_after_family() only */
};

static enum tutti_status pieces_add_token(const struct adding *a, const json_t *token, long long id)
{
    const json_t *content = json_object_get(token, "content");
    if (!json_is_string(content))
        return error_set(a->err, TUTTI_E_FORMAT, "%s: added token %lld: content is no text", a->name, id);
    if (id < 0 || id >= LIMIT_VOCAB)
        return error_set(a->err, TUTTI_E_FORMAT, "%s: added token \"%.64s\" has id %lld, expected 0 to %d",
                         a->name, json_string_value(content), id, LIMIT_VOCAB - 1);
    struct added_token added = {
        .id = (int32_t)id,
        .is_special = json_is_on(token, "special") || json_is_on(token, TOKENIZER_WITHOUT_FLAGS),
        .takes_left_blanks = json_is_on(token, "lstrip"),
        .takes_right_blanks = json_is_on(token, "rstrip"),
        .is_single_word = json_is_on(token, "single_word"),
    };
    return tokenizer_add_token(a->tok, json_string_value(content), json_string_length(content), added,
                               a->name, a->err);
}

struct decoder_entry {
    long long id;
    const json_t *token;
};

static int by_id(const void *a, const void *b)
{
    const struct decoder_entry *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

typedef enum tutti_status add_entry_fn(const struct adding *a, const json_t *token, long long id);

/* added_tokens_decoder, {"id": {"content": ..., flags}}, by id. */
static enum tutti_status add_decoder(const struct adding *a, const json_t *decoder, add_entry_fn *add)
{
    size_t n = 0;
    const char *key;
    json_t *token;
    struct decoder_entry *list = calloc(json_object_size(decoder) + 1, sizeof *list);
    enum tutti_status st = TUTTI_OK;
    if (!list)
        return error_set(a->err, TUTTI_E_MEMORY, "%s: out of memory", a->name);
    json_object_foreach((json_t *)(uintptr_t)decoder, key, token)
    {
        char *end;
        long long id = strtoll(key, &end, 10);
        if (st == TUTTI_OK && (*key < '0' || *key > '9' || *end != '\0'))
            st = error_set(a->err, TUTTI_E_FORMAT, "%s: added_tokens_decoder: \"%.32s\" is no id", a->name,
                           key);
        list[n++] = (struct decoder_entry){ id, token };
    }
    qsort(list, n, sizeof *list, by_id);
    for (size_t i = 0; st == TUTTI_OK && i < n; i++)
        st = add(a, list[i].token, list[i].id);
    free(list);
    return st;
}

static enum tutti_status add_special(const struct adding *a, const char *text, int32_t id)
{
    return tokenizer_add_token(a->tok, text, strlen(text),
                               (struct added_token){ .id = id, .is_special = true }, a->name, a->err);
}

/* Makes bos, eos or unk special: the token that the files name, else the model's own. *id: its id. */
static enum tutti_status add_named(const struct adding *a, const json_t *settings, const char *key,
                                   int32_t *id)
{
    char own[256];
    const char *text = tokenizer_settings_text(json_object_get(settings, key));
    if (!text && *id >= 0) {
        struct piece piece = tokenizer_piece(a->tok, *id);
        if (piece.n_bytes < sizeof own) {
            snprintf(own, sizeof own, "%.*s", (int)piece.n_bytes, piece.bytes);
            text = own;
        }
    }
    int32_t added = text ? tokenizer_find_added(a->tok, text) : -1;
    int32_t found = !text || added >= 0 ? added : tokenizer_find(a->tok, text, strlen(text));
    if (found < 0)
        return TUTTI_OK;
    *id = found;
    return added >= 0 ? TUTTI_OK : add_special(a, text, found);
}

/* Other special tokens: a mark of the model becomes special, and a new token gets an id if the
 * model has a row for it. An ordinary piece stays ordinary. */
static enum tutti_status add_other(const struct adding *a, const json_t *token, int32_t n_rows)
{
    const char *text = tokenizer_settings_text(token);
    if (!text || !*text || tokenizer_find_added(a->tok, text) >= 0)
        return TUTTI_OK;
    int32_t id = tokenizer_find(a->tok, text, strlen(text));
    if (id < 0 && tokenizer_n_pieces(a->tok) < n_rows)
        return add_special(a, text, tokenizer_n_pieces(a->tok));
    enum piece_type type = id < 0 ? PIECE_NORMAL : tokenizer_piece(a->tok, id).type;
    return type == PIECE_CONTROL || type == PIECE_USER_DEFINED ? add_special(a, text, id) : TUTTI_OK;
}

static enum tutti_status add_others(const struct adding *a, const json_t *settings, int32_t n_rows)
{
    static const char *const KEYS[] = { "sep_token", "pad_token", "cls_token", "mask_token" };
    const json_t *more = json_object_get(settings, "additional_special_tokens");
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; st == TUTTI_OK && i < sizeof KEYS / sizeof *KEYS; i++)
        st = add_other(a, json_object_get(settings, KEYS[i]), n_rows);
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(more); i++)
        st = add_other(a, json_array_get(more, i), n_rows);
    return st;
}

static bool has_prepend(const json_t *normalizer, int depth)
{
    const char *type = json_string_value(json_object_get(normalizer, "type"));
    const json_t *list = json_object_get(normalizer, "normalizers");
    bool has = type && strcmp(type, "Prepend") == 0;
    for (size_t i = 0; !has && depth < 8 && i < json_array_size(list); i++)
        has = has_prepend(json_array_get(list, i), depth + 1);
    return has;
}

bool tokenizer_json_hides_marks(const struct tokenizer_source *s)
{
    const json_t *list = json_object_get(s->json, "added_tokens");
    bool prepends = has_prepend(json_object_get(s->json, "normalizer"), 0), hides = false;
    for (size_t i = 0; prepends && !hides && i < json_array_size(list); i++) {
        const json_t *token = json_array_get(list, i);
        hides = json_is_true(json_object_get(token, "special")) &&
                json_is_true(json_object_get(token, "normalized"));
    }
    return hides;
}

/* A tokenizer.json that tutti could not use still lists the added tokens. *prepends: its
 * normalizer prepends a blank to every part of a text. */
static enum tutti_status add_of_json(const struct adding *a, const struct tokenizer_source *s, bool *prepends)
{
    const json_t *list = json_object_get(s->json, "added_tokens");
    enum tutti_status st = TUTTI_OK;
    *prepends = has_prepend(json_object_get(s->json, "normalizer"), 0);
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(list); i++) {
        const json_t *token = json_array_get(list, i), *id = json_object_get(token, "id");
        const char *text = tokenizer_settings_text(token);
        if (text && json_is_integer(id) && tokenizer_find_added(a->tok, text) < 0)
            st = pieces_add_token(a, token, json_integer_value(id));
    }
    return st;
}

/* Whether text gets no blank before it, whatever the file of a LLaMA tokenizer says. */
static bool drops_prefix(const json_t *settings)
{
    return byte_config_is_class(settings, "LlamaTokenizer") &&
           json_is_false(json_object_get(settings, "add_prefix_space"));
}

bool tokenizer_json_has_wrong_prefix(const struct tokenizer_source *s)
{
    const json_t *pre = json_object_get(s->json, "pre_tokenizer");
    const char *type = json_string_value(json_object_get(pre, "type")),
               *scheme = json_string_value(json_object_get(pre, "prepend_scheme"));
    bool is_metaspace = type && strcmp(type, "Metaspace") == 0;
    return drops_prefix(s->tokenizer_config) && (has_prepend(json_object_get(s->json, "normalizer"), 0) ||
                                                 (is_metaspace && !(scheme && strcmp(scheme, "never") == 0)));
}

static enum tutti_status add_all(const struct adding *a, const struct tokenizer_source *s)
{
    const json_t *settings = s->tokenizer_config;
    int32_t bos = tokenizer_bos(a->tok), eos = tokenizer_eos(a->tok), unk = tokenizer_unk(a->tok);
    bool prepends = false;
    tokenizer_clear_added(a->tok);
    enum tutti_status st = add_decoder(a, json_object_get(settings, "added_tokens_decoder"),
                                       pieces_add_token);
    if (st == TUTTI_OK)
        st = add_of_json(a, s, &prepends);
    if (st == TUTTI_OK)
        st = add_named(a, settings, "bos_token", &bos);
    if (st == TUTTI_OK)
        st = add_named(a, settings, "eos_token", &eos);
    if (st == TUTTI_OK)
        st = add_named(a, settings, "unk_token", &unk);
    if (st == TUTTI_OK)
        st = add_others(a, settings, s->desc->n_vocab);
    if (st == TUTTI_OK)
        st = tokenizer_finish_added(a->tok, a->name, a->err);
    if (st != TUTTI_OK)
        return st;
    tokenizer_set_ends(a->tok, bos, eos);
    if (drops_prefix(settings))
        tokenizer_drop_prefix(a->tok);
    tokenizer_set_prefix_rule(a->tok, json_is_false(json_object_get(settings, "legacy")) && !prepends);
    tokenizer_set_affixes(a->tok, !json_is_false(json_object_get(settings, "add_bos_token")),
                          json_is_true(json_object_get(settings, "add_eos_token")));
    return TUTTI_OK;
}

/* A special token with the next free id, after those of a family that appends its own. The list may
 * have those as well. */
static enum tutti_status add_after_family(const struct adding *a, const json_t *token, long long id)
{
    const char *text = json_string_value(json_object_get(token, "content"));
    int32_t next = tokenizer_n_pieces(a->tok);
    if (id != next || !json_is_on(token, "special"))
        return TUTTI_OK;
    if (!text || strlen(text) != json_string_length(json_object_get(token, "content")))
        return error_set(a->err, TUTTI_E_FORMAT, "%s: added token %lld: content is no text", a->name, id);
    if (next >= a->n_rows)
        return error_set(a->err, TUTTI_E_FORMAT,
                         "%s: added token \"%.64s\" has id %lld, but the model has a vocabulary of %d",
                         a->name, text, id, a->n_rows);
    return tokenizer_add_control(a->tok, text, &next, a->err);
}

enum tutti_status tokenizer_read_sentencepiece(struct tokenizer **out, const struct tokenizer_source *s,
                                               const struct mapping *map, struct tutti_error *err)
{
    struct tokenizer *tok = NULL;
    enum tutti_status st = tokenizer_from_sentencepiece(&tok, map->bytes, map->n_bytes, s->path, err);
    if (st != TUTTI_OK)
        return st;
    struct adding a = { tok, s->path, err, s->desc->n_vocab };
    st = s->family->extend_tokenizer ? s->family->extend_tokenizer(tok, s->desc, err) : add_all(&a, s);
    if (st == TUTTI_OK && s->family->extend_tokenizer)
        st = add_decoder(&a, json_object_get(s->tokenizer_config, "added_tokens_decoder"), add_after_family);
    if (st == TUTTI_OK)
        *out = tok;
    else
        tokenizer_free(tok);
    return st;
}

/* ---- GGUF ---- */

enum tutti_status tokenizer_read_added(json_t **out, const struct gguf *gguf, const char *path,
                                       struct tutti_error *err)
{
    const json_t *text = json_object_get(gguf_scalars(gguf), TOKENIZER_ADDED_KEY);
    json_error_t where;
    *out = NULL;
    if (!text)
        return TUTTI_OK;
    json_t *list = json_is_string(text) ? json_load_wide(json_string_value(text), json_string_length(text),
                                                         JSON_ALLOW_NUL, &where)
                                        : NULL;
    if (!json_is_array(list)) {
        json_decref(list);
        return error_set(err, TUTTI_E_FORMAT, "%s: " TOKENIZER_ADDED_KEY ": expected a list as JSON text",
                         path);
    }
    *out = list;
    return TUTTI_OK;
}

enum tutti_status tokenizer_add_listed(struct tokenizer *tok, const json_t *list, const char *name,
                                       struct tutti_error *err)
{
    struct adding a = { tok, name, err, 0 };
    enum tutti_status st = TUTTI_OK;
    tokenizer_clear_added(tok);
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(list); i++) {
        const json_t *token = json_array_get(list, i), *id = json_object_get(token, "id");
        st = json_is_integer(id) ? pieces_add_token(&a, token, json_integer_value(id))
                                 : error_set(err, TUTTI_E_FORMAT,
                                             "%s: " TOKENIZER_ADDED_KEY "[%zu].id is no number", name, i);
    }
    return st == TUTTI_OK ? tokenizer_finish_added(tok, name, err) : st;
}
