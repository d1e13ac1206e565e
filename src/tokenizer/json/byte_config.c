#include "tokenizer/json/byte_config.h"

#include "base/json/json_wide.h"
#include "base/limits.h"
#include "tokenizer/unicode/byte_map.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum tutti_status byte_config_parse(json_t **out, const void *bytes, size_t n_bytes, const char *name,
                                    struct tutti_error *err)
{
    json_error_t why;
    if (n_bytes > LIMIT_JSON_FILE_BYTES)
        return error_set(err, TUTTI_E_FORMAT, "%s: %zu bytes, expected at most %d", name, n_bytes,
                         LIMIT_JSON_FILE_BYTES);
    json_t *root = json_load_wide(bytes ? bytes : "", n_bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!root && why.text[0] == '\0') /* jansson sets a text for all other errors */
        return error_out_of_memory(name, err);
    if (!root)
        return error_set(err, TUTTI_E_FORMAT, "%s: line %d: %s", name, why.line, why.text);
    if (!json_is_object(root)) {
        json_decref(root);
        return error_set(err, TUTTI_E_FORMAT, "%s: expected an object", name);
    }
    *out = root;
    return TUTTI_OK;
}

enum tutti_status byte_config_vocab(struct tokenizer *tok, const json_t *vocab, const char *name,
                                    struct tutti_error *err)
{
    const char *spelling;
    json_t *id;
    size_t n = json_object_size(vocab);
    if (!json_is_object(vocab) || n == 0)
        return error_set(err, TUTTI_E_FORMAT, "%s: the vocabulary is no object, or empty", name);
    json_object_foreach((json_t *)(uintptr_t)vocab, spelling, id)
    {
        if (!json_is_integer(id))
            return error_set(err, TUTTI_E_FORMAT, "%s: the id of token \"%.64s\" is no number", name,
                             spelling);
        enum tutti_status st = byte_level_put_spelled(tok, json_integer_value(id), spelling, strlen(spelling),
                                                      n, name, err);
        if (st != TUTTI_OK)
            return st;
    }
    return byte_level_index(tok, name, err);
}

enum tutti_status byte_config_add(struct tokenizer *tok, const json_t *entry, int64_t id, const char *name,
                                  struct tutti_error *err)
{
    const json_t *content = json_object_get(entry, "content");
    if (!json_is_string(content))
        return error_set(err, TUTTI_E_FORMAT, "%s: added token %" PRId64 ": content is no text", name, id);
    if (id < 0 || id >= LIMIT_VOCAB)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: added token \"%.64s\" has id %" PRId64 ", expected 0 to %d", name,
                         json_string_value(content), id, LIMIT_VOCAB - 1);
    bool is_special = json_is_true(json_object_get(entry, "special"));
    const json_t *normalized = json_object_get(entry, "normalized");
    struct added_token added = {
        .id = (int32_t)id,
        .is_special = is_special,
        .takes_left_blanks = json_is_true(json_object_get(entry, "lstrip")),
        .takes_right_blanks = json_is_true(json_object_get(entry, "rstrip")),
        .is_single_word = json_is_true(json_object_get(entry, "single_word")),
        .is_normalized = normalized ? json_is_true(normalized) : !is_special,
    };
    return byte_level_add(tok, json_string_value(content), json_string_length(content), added, name, err);
}

static bool is_added(const struct tokenizer *tok, int64_t id)
{
    return id >= 0 && id < tok->n_pieces &&
           (tok->pieces[id].type == PIECE_CONTROL || tok->pieces[id].type == PIECE_USER_DEFINED);
}

enum tutti_status byte_config_add_all(struct tokenizer *tok, const json_t *config, const char *name,
                                      struct tutti_error *err)
{
    const char *key;
    json_t *entry;
    json_object_foreach((json_t *)(uintptr_t)json_object_get(config, "added_tokens_decoder"), key, entry)
    {
        char *end;
        long long id = strtoll(key, &end, 10);
        if (*key < '0' || *key > '9' || *end != '\0')
            return error_set(err, TUTTI_E_FORMAT, "%s: added_tokens_decoder: \"%.32s\" is no id", name, key);
        if (is_added(tok, id))
            continue;
        enum tutti_status st = byte_config_add(tok, entry, id, name, err);
        if (st != TUTTI_OK)
            return st;
    }
    return TUTTI_OK;
}

static enum tutti_status add_named(struct tokenizer *tok, const json_t *value, const char *name,
                                   struct tutti_error *err)
{
    const char *text = json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
    int32_t id = text ? byte_config_find(tok, text) : -1;
    if (id < 0 || is_added(tok, id))
        return TUTTI_OK;
    struct added_token added = {
        .id = id,
        .is_special = true,
        .takes_left_blanks = json_is_true(json_object_get(value, "lstrip")),
        .takes_right_blanks = json_is_true(json_object_get(value, "rstrip")),
        .is_single_word = json_is_true(json_object_get(value, "single_word")),
    };
    return byte_level_add(tok, text, strlen(text), added, name, err);
}

enum tutti_status byte_config_add_named(struct tokenizer *tok, const json_t *config, const char *name,
                                        struct tutti_error *err)
{
    static const char *const KEYS[] = { "bos_token", "eos_token", "unk_token",  "sep_token",
                                        "pad_token", "cls_token", "mask_token", "additional_special_tokens" };
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; st == TUTTI_OK && i < sizeof KEYS / sizeof *KEYS; i++) {
        const json_t *value = json_object_get(config, KEYS[i]);
        if (!json_is_array(value))
            st = add_named(tok, value, name, err);
        for (size_t k = 0; st == TUTTI_OK && k < json_array_size(value); k++)
            st = add_named(tok, json_array_get(value, k), name, err);
    }
    return st;
}

int32_t byte_config_find(const struct tokenizer *tok, const char *text)
{
    const struct byte_level *level = tok->level;
    size_t n_bytes = strlen(text);
    for (size_t i = 0; i < tok->added.n; i++) {
        int32_t id = tok->added.list[i].id;
        if (tok->pieces[id].n_bytes == n_bytes && memcmp(vocab_bytes(tok, id), text, n_bytes) == 0)
            return id;
    }
    if (level->has_characters)
        return tokenizer_find(tok, text, n_bytes);
    struct buf bytes = { 0 };
    int32_t id = n_bytes > 0 && byte_map_read(text, n_bytes, &bytes)
                     ? tokenizer_find(tok, bytes.bytes, bytes.n_bytes)
                     : -1;
    buf_clear(&bytes);
    return id;
}

/* "token": a text, an object with content, or null. */
static enum tutti_status read_special(const struct tokenizer *tok, const json_t *config, const char *key,
                                      int32_t *id, const char *name, struct tutti_error *err)
{
    const json_t *value = json_object_get(config, key);
    if (!value)
        return TUTTI_OK;
    if (json_is_object(value))
        value = json_object_get(value, "content");
    if (!json_is_string(value) && !json_is_null(value))
        return error_set(err, TUTTI_E_FORMAT, "%s: %s is neither text, nor an object with content, nor null",
                         name, key);
    *id = json_is_string(value) ? byte_config_find(tok, json_string_value(value)) : -1;
    return TUTTI_OK;
}

enum tutti_status byte_config_specials(struct tokenizer *tok, const json_t *config, const char *name,
                                       struct tutti_error *err)
{
    struct token_affixes *affixes = &tok->affixes;
    int32_t unk = -1; /* not needed if every byte is a token; tokenizer.json's model has its own */
    enum tutti_status st = read_special(tok, config, "bos_token", &tok->bos_id, name, err);
    if (st == TUTTI_OK)
        st = read_special(tok, config, "eos_token", &tok->eos_id, name, err);
    if (st == TUTTI_OK)
        st = read_special(tok, config, "unk_token", &unk, name, err);
    /* LLaMA's tokenizers build their post-processor from these two settings; others use the
     * file's. */
    const json_t *adds_bos = json_object_get(config, "add_bos_token"),
                 *adds_eos = json_object_get(config, "add_eos_token");
    const char *class = json_string_value(json_object_get(config, "tokenizer_class"));
    bool counts = !affixes->is_known || (class && strncmp(class, "Llama", 5) == 0);
    if (st == TUTTI_OK && json_is_boolean(adds_bos) && counts &&
        (json_is_false(adds_bos) || tok->bos_id >= 0)) {
        affixes->is_known = true;
        affixes->n_before = 0;
        if (json_is_true(adds_bos))
            affixes->before[affixes->n_before++] = tok->bos_id;
    }
    if (st == TUTTI_OK && json_is_boolean(adds_eos) && counts &&
        (json_is_false(adds_eos) || tok->eos_id >= 0)) {
        affixes->n_after = 0;
        if (json_is_true(adds_eos))
            affixes->after[affixes->n_after++] = tok->eos_id;
    }
    if (tok->bos_id < 0 && affixes->n_before == 1) /* from the post-processor, if config lacks it */
        tok->bos_id = affixes->before[0];
    return st;
}
