/* BERT's tokenizer: vocab.txt has a token of WordPiece on each line, and all else is a setting of the class
 * BertTokenizer in tokenizer_config.json. It is described as a tokenizer.json. */
#include "base/limits.h"
#include "model/load/tokenizer_bytes.h"
#include "model/load/tokenizer_settings.h"
#include "tokenizer/json/byte_files.h"

#include <string.h>

static json_t *setting_or(const struct tokenizer_source *s, const char *key, bool fallback)
{
    const json_t *value = json_object_get(s->tokenizer_config, key);
    return json_is_boolean(value) ? json_incref((json_t *)(uintptr_t)value) : json_boolean(fallback);
}

/* NULL: out of memory. Accents are stripped if text is lowercased, unless the setting says otherwise. */
static json_t *normalizer_of(const struct tokenizer_source *s)
{
    const json_t *accents = json_object_get(s->tokenizer_config, "strip_accents");
    return json_pack("{s:s, s:b, s:o, s:o?, s:o}", "type", "BertNormalizer", "clean_text", 1,
                     "handle_chinese_chars", setting_or(s, "tokenize_chinese_chars", true), "strip_accents",
                     json_is_boolean(accents) ? json_incref((json_t *)(uintptr_t)accents) : json_null(),
                     "lowercase", setting_or(s, "do_lower_case", true));
}

enum tutti_status tokenizer_apply_bert_settings(const struct tokenizer_source *s, struct tutti_error *err)
{
    static const char KEY[] = "normalizer";
    const char *class = json_string_value(json_object_get(s->tokenizer_config, "tokenizer_class"));
    const char *type = json_string_value(json_object_get(json_object_get(s->json, KEY), "type"));
    bool is_of_class = !class || strncmp(class, "BertTokenizer", strlen("BertTokenizer")) == 0;
    if (s->family != &FAMILY_BERT || !is_of_class || !type || strcmp(type, "BertNormalizer") != 0)
        return TUTTI_OK;
    return json_object_set_new(s->json, KEY, normalizer_of(s)) == 0
               ? TUTTI_OK
               : error_set(err, TUTTI_E_MEMORY, "%s: out of memory", s->path);
}

/* {"TOKEN": its line, ...} */
static enum tutti_status read_lines(json_t *vocab, const struct tokenizer_source *s,
                                    const struct mapping *map, struct tutti_error *err)
{
    const char *at = (const char *)map->bytes, *end = at + map->n_bytes;
    for (json_int_t id = 0; at < end; id++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *next = newline ? newline + 1 : end;
        size_t n = (size_t)((newline ? newline : end) - at);
        n -= n > 0 && at[n - 1] == '\r';
        json_t *line = json_integer(id);
        if (id >= LIMIT_VOCAB) {
            json_decref(line);
            return error_set(err, TUTTI_E_FORMAT, "%s: more than %d lines, expected a token on each", s->path,
                             LIMIT_VOCAB);
        }
        if (json_object_setn_new(vocab, at, n, line) != 0)
            return error_set(err, TUTTI_E_FORMAT,
                             "%s: line %lld is no valid UTF-8, expected a token of WordPiece", s->path,
                             (long long)id + 1);
        at = next;
    }
    return TUTTI_OK;
}

static const char *special_of(const struct tokenizer_source *s, const char *key, const char *usual)
{
    const char *text = tokenizer_settings_text(json_object_get(s->tokenizer_config, key));
    return text ? text : usual;
}

static bool add_special(json_t *added, const json_t *vocab, const char *text)
{
    const json_t *id = json_object_get(vocab, text);
    return !id || json_array_append_new(
                      added, json_pack("{s:O, s:s, s:b}", "id", id, "content", text, "special", 1)) == 0;
}

static json_t *post_processor_of(const json_t *vocab, const char *cls, const char *sep)
{
    return json_pack("{s:s, s:[{s:{s:s}}, {s:{s:s}}, {s:{s:s}}],"
                     " s:[{s:{s:s}}, {s:{s:s}}, {s:{s:s}}, {s:{s:s}}, {s:{s:s}}],"
                     " s:{s:{s:[O]}, s:{s:[O]}}}",
                     "type", "TemplateProcessing", "single", "SpecialToken", "id", cls, "Sequence", "id", "A",
                     "SpecialToken", "id", sep, "pair", "SpecialToken", "id", cls, "Sequence", "id", "A",
                     "SpecialToken", "id", sep, "Sequence", "id", "B", "SpecialToken", "id", sep,
                     "special_tokens", cls, "ids", json_object_get(vocab, cls), sep, "ids",
                     json_object_get(vocab, sep));
}

enum { MAX_WORD_CHARACTERS = 100 }; /* of BertTokenizer */

/* *out NULL: out of memory. */
static void describe(json_t **out, const struct tokenizer_source *s, json_t *vocab, const char *unk,
                     const char *cls, const char *sep)
{
    json_t *added = json_array();
    bool ok = added && add_special(added, vocab, unk) && add_special(added, vocab, sep) &&
              add_special(added, vocab, special_of(s, "pad_token", "[PAD]")) &&
              add_special(added, vocab, cls) &&
              add_special(added, vocab, special_of(s, "mask_token", "[MASK]"));
    *out = ok ? json_pack("{s:o, s:o, s:{s:s}, s:o, s:{s:s, s:s, s:b}, s:{s:s, s:s, s:s, s:i, s:O}}",
                          "added_tokens", json_incref(added), "normalizer", normalizer_of(s), "pre_tokenizer",
                          "type", "BertPreTokenizer", "post_processor", post_processor_of(vocab, cls, sep),
                          "decoder", "type", "WordPiece", "prefix", "##", "cleanup", 1, "model", "type",
                          "WordPiece", "unk_token", unk, "continuing_subword_prefix", "##",
                          "max_input_chars_per_word", (int)MAX_WORD_CHARACTERS, "vocab", vocab)
              : NULL;
    json_decref(added);
}

enum tutti_status tokenizer_read_wordpiece(struct tokenizer **out, const struct tokenizer_source *s,
                                           const struct mapping *map, struct tutti_error *err)
{
    json_t *vocab = json_object(), *root = NULL;
    const char *unk = special_of(s, "unk_token", "[UNK]"), *cls = special_of(s, "cls_token", "[CLS]");
    const char *sep = special_of(s, "sep_token", "[SEP]"), *needed[] = { unk, cls, sep };
    enum tutti_status st = vocab ? read_lines(vocab, s, map, err)
                                 : error_set(err, TUTTI_E_MEMORY, "%s: out of memory", s->path);
    for (size_t i = 0; st == TUTTI_OK && i < sizeof needed / sizeof *needed; i++)
        if (!json_object_get(vocab, needed[i]))
            st = error_set(err, TUTTI_E_UNSUPPORTED, "%s: no line is %.64s, which BertTokenizer needs",
                           s->path, needed[i]);
    if (st == TUTTI_OK) {
        describe(&root, s, vocab, unk, cls, sep);
        st = root ? tokenizer_from_json_root(out, root, s->path, s->tokenizer_config, err)
                  : error_set(err, TUTTI_E_MEMORY, "%s: out of memory", s->path);
    }
    json_decref(vocab);
    json_decref(root);
    return st;
}
