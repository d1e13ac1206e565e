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

static enum tutti_status add_entry(struct tokenizer *tok, const json_t *entry, int64_t id, bool is_special,
                                   const char *name, struct tutti_error *err)
{
    const json_t *content = json_object_get(entry, "content");
    if (!json_is_string(content))
        return error_set(err, TUTTI_E_FORMAT, "%s: added token %" PRId64 ": content is no text", name, id);
    if (id < 0 || id >= LIMIT_VOCAB)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: added token \"%.64s\" has id %" PRId64 ", expected 0 to %d", name,
                         json_string_value(content), id, LIMIT_VOCAB - 1);
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

enum tutti_status byte_config_add(struct tokenizer *tok, const json_t *entry, int64_t id, const char *name,
                                  struct tutti_error *err)
{
    return add_entry(tok, entry, id, json_is_true(json_object_get(entry, "special")), name, err);
}

/* NULL: not added yet. */
static const struct added_token *find_added(const struct tokenizer *tok, int64_t id)
{
    for (size_t i = 0; id <= tok->added.max_id && i < tok->added.n; i++)
        if (tok->added.list[i].id == id)
            return &tok->added.list[i];
    return NULL;
}

/* Its flags replace those of tokenizer.json, if the id has the same text there. A token that either file calls
 * special is special. */
static enum tutti_status add_of_decoder(struct tokenizer *tok, const json_t *entry, int64_t id,
                                        const char *name, struct tutti_error *err)
{
    const struct added_token *added = find_added(tok, id);
    const char *text = json_string_value(json_object_get(entry, "content"));
    bool is_special = json_is_true(json_object_get(entry, "special"));
    if (added && (json_is_true(json_object_get(entry, TOKENIZER_WITHOUT_FLAGS)) || !text ||
                  strlen(text) != tok->pieces[id].n_bytes ||
                  memcmp(vocab_bytes(tok, added->id), text, strlen(text)) != 0))
        return TUTTI_OK;
    return add_entry(tok, entry, id, is_special || (added && added->is_special), name, err);
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
        enum tutti_status st = add_of_decoder(tok, entry, id, name, err);
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
    const struct added_token *known = id >= 0 ? find_added(tok, id) : NULL;
    if (id < 0 || (known && known->is_special))
        return TUTTI_OK;
    struct added_token added = {
        .id = id,
        .takes_left_blanks = json_is_true(json_object_get(value, "lstrip")),
        .takes_right_blanks = json_is_true(json_object_get(value, "rstrip")),
        .is_single_word = json_is_true(json_object_get(value, "single_word")),
    };
    if (known)
        added = *known;
    added.is_special = true;
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

bool byte_config_is_class(const json_t *config, const char *name)
{
    const char *class = json_string_value(json_object_get(config, "tokenizer_class"));
    size_t n = strlen(name);
    return class && strncmp(class, name, n) == 0 && (class[n] == '\0' || strcmp(class + n, "Fast") == 0);
}

bool byte_config_is_of_5(const json_t *config)
{
    return json_object_get(config, "backend") != NULL;
}

int byte_config_prefix(const json_t *config)
{
    const json_t *adds = json_object_get(config, "add_prefix_space");
    bool is_of_file = json_object_size(config) == 0 || byte_config_is_of_5(config) ||
                      (adds && !json_is_boolean(adds)) || byte_config_is_class(config, "LlamaTokenizer");
    return is_of_file ? -1 : json_is_true(adds);
}

/* The default of add_bos_token in classes of transformers 4 that make their own post-processor of the two
 * settings; -1: another class, which takes the file's. */
static int default_bos(const json_t *config)
{
    static const struct {
        const char *class;
        bool adds_bos;
    } CLASSES[] = { { "LlamaTokenizer", true },
                    { "CodeLlamaTokenizer", true },
                    { "GemmaTokenizer", true },
                    { "CohereTokenizer", true },
                    { "GPTNeoXTokenizer", false } };
    for (size_t i = 0; !byte_config_is_of_5(config) && i < sizeof CLASSES / sizeof *CLASSES; i++)
        if (byte_config_is_class(config, CLASSES[i].class))
            return CLASSES[i].adds_bos;
    return -1;
}

/* Sets one side of a text by its setting; a token that does not exist leaves the side as it is. fallback -1:
 * so does a setting that is missing. False: it is as it was. */
static bool set_side(int32_t *ids, int *n, const json_t *setting, int fallback, int32_t id)
{
    int adds = json_is_boolean(setting) ? json_is_true(setting) : fallback;
    if (adds < 0 || (adds > 0 && id < 0))
        return false;
    ids[0] = id;
    *n = adds;
    return true;
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
    if (st != TUTTI_OK)
        return st;
    int adds_bos = default_bos(config);
    if (!affixes->is_known || adds_bos >= 0) {
        int adds_eos = adds_bos < 0 ? -1 : 0;
        affixes->is_known |= set_side(affixes->before, &affixes->n_before,
                                      json_object_get(config, "add_bos_token"), adds_bos, tok->bos_id);
        set_side(affixes->after, &affixes->n_after, json_object_get(config, "add_eos_token"), adds_eos,
                 tok->eos_id);
    }
    if (tok->bos_id < 0 && affixes->n_before == 1) /* from the post-processor, if config lacks it */
        tok->bos_id = affixes->before[0];
    return TUTTI_OK;
}
