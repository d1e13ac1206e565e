/* tokenizer.json of the Hugging Face tokenizers library: models of BPE, on bytes and on characters. */
#include "tokenizer/byte_config.h"
#include "tokenizer/byte_files.h"
#include "tokenizer/json_reader.h"

#include <string.h>

enum tutti_status json_reader_out_of_memory(const struct json_reader *r)
{
    return error_set(r->err, TUTTI_E_MEMORY, "%s: out of memory", r->name);
}

const char *json_reader_type(const json_t *part)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return type ? type : "";
}

enum tutti_status json_reader_unsupported(const struct json_reader *r, const char *field, const json_t *part,
                                          const char *expected)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    return error_set(r->err, TUTTI_E_UNSUPPORTED, "%s: %s is of type %.64s, expected %s", r->name, field,
                     type ? type : "(none)", expected);
}

/* ---- normalizer ---- */

static enum tutti_status add_normalizer(struct json_reader *r, struct normalizer n, const char *from,
                                        size_t n_from, const char *to, size_t n_to)
{
    struct byte_level *level = r->tok->level;
    if (level->n_normalizers >= MAX_NORMALIZERS)
        return error_set(r->err, TUTTI_E_UNSUPPORTED, "%s: normalizer: more than %d steps", r->name,
                         MAX_NORMALIZERS);
    struct normalizer *own = &level->normalizers[level->n_normalizers++];
    *own = n;
    return buf_add(&own->from, from, n_from) && buf_add(&own->to, to, n_to) ? TUTTI_OK
                                                                            : json_reader_out_of_memory(r);
}

static enum tutti_status read_replace(struct json_reader *r, const json_t *part)
{
    const json_t *from = json_object_get(json_object_get(part, "pattern"), "String"),
                 *to = json_object_get(part, "content");
    if (!json_is_string(from) || json_string_length(from) == 0 || !json_is_string(to))
        return error_set(r->err, TUTTI_E_UNSUPPORTED,
                         "%s: normalizer: Replace: expected pattern.String and content, both text", r->name);
    return add_normalizer(r, (struct normalizer){ .kind = NORMALIZE_REPLACE }, json_string_value(from),
                          json_string_length(from), json_string_value(to), json_string_length(to));
}

static enum tutti_status read_prepend(struct json_reader *r, const json_t *part)
{
    const json_t *text = json_object_get(part, "prepend");
    if (!json_is_string(text))
        return error_set(r->err, TUTTI_E_FORMAT, "%s: normalizer: Prepend: prepend is no text", r->name);
    return add_normalizer(r, (struct normalizer){ .kind = NORMALIZE_PREPEND }, "", 0, json_string_value(text),
                          json_string_length(text));
}

static enum tutti_status read_normalizer(struct json_reader *r, const json_t *part, int depth)
{
    static const char *const FORMS[] = {
        [UNICODE_NFC] = "NFC", [UNICODE_NFD] = "NFD", [UNICODE_NFKC] = "NFKC", [UNICODE_NFKD] = "NFKD"
    };
    const char *type = json_reader_type(part);
    if (!part || json_is_null(part))
        return TUTTI_OK;
    for (int i = 0; i < 4; i++) {
        if (strcmp(type, FORMS[i]) == 0)
            return add_normalizer(
                r, (struct normalizer){ .kind = NORMALIZE_FORM, .form = (enum unicode_form)i }, "", 0, "", 0);
    }
    if (strcmp(type, "Replace") == 0)
        return read_replace(r, part);
    if (strcmp(type, "Prepend") == 0)
        return read_prepend(r, part);
    if (strcmp(type, "Sequence") != 0 || depth > MAX_JSON_STEP_DEPTH)
        return json_reader_unsupported(r, "normalizer", part,
                                       "NFC, NFD, NFKC, NFKD, Replace, Prepend or Sequence");
    const json_t *list = json_object_get(part, "normalizers");
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(list); i++)
        st = read_normalizer(r, json_array_get(list, i), depth + 1);
    return st;
}

/* ---- pre_tokenizer ---- */

static enum tutti_status read_behavior(const struct json_reader *r, const json_t *part,
                                       enum split_behavior *out)
{
    static const char *const NAMES[] = { [SPLIT_ISOLATED] = "Isolated",
                                         [SPLIT_REMOVED] = "Removed",
                                         [SPLIT_WITH_PREVIOUS] = "MergedWithPrevious",
                                         [SPLIT_WITH_NEXT] = "MergedWithNext",
                                         [SPLIT_CONTIGUOUS] = "Contiguous" };
    const char *behavior = json_string_value(json_object_get(part, "behavior"));
    for (int i = 0; behavior && i < 5; i++) {
        if (strcmp(behavior, NAMES[i]) == 0) {
            *out = (enum split_behavior)i;
            return TUTTI_OK;
        }
    }
    return error_set(r->err, TUTTI_E_UNSUPPORTED, "%s: pre_tokenizer: behavior \"%.32s\" is not known",
                     r->name, behavior ? behavior : "");
}

static enum tutti_status read_split(struct json_reader *r, const json_t *part)
{
    const json_t *pattern = json_object_get(part, "pattern"), *regex = json_object_get(pattern, "Regex"),
                 *text = json_object_get(pattern, "String");
    enum split_behavior behavior = SPLIT_REMOVED;
    enum tutti_status st = read_behavior(r, part, &behavior);
    if (st != TUTTI_OK)
        return st;
    if (json_is_string(regex))
        return pretokenizer_add(&r->tok->level->pre, json_string_value(regex), json_string_length(regex),
                                behavior, json_reader_is_on(part, "invert"), r->name, r->err);
    if (json_is_string(text) && json_string_length(text) > 0)
        return pretokenizer_add_literal(&r->tok->level->pre, json_string_value(text),
                                        json_string_length(text), behavior, json_reader_is_on(part, "invert"),
                                        r->name, r->err);
    return error_set(r->err, TUTTI_E_FORMAT,
                     "%s: pre_tokenizer: Split: expected pattern.Regex or pattern.String", r->name);
}

static enum tutti_status read_bytes(struct json_reader *r, const json_t *part)
{
    struct pretokenizer *pre = &r->tok->level->pre;
    const json_t *use_regex = json_object_get(part, "use_regex");
    enum tutti_status st = TUTTI_OK;
    r->has_bytes = true;
    if (json_reader_is_on(part, "add_prefix_space"))
        st = pretokenizer_add_prefix(pre, r->name, r->err);
    if (st == TUTTI_OK && !json_is_false(use_regex))
        st = pretokenizer_add(pre, PATTERN_GPT2, strlen(PATTERN_GPT2), SPLIT_ISOLATED, false, r->name,
                              r->err);
    return st;
}

static enum tutti_status read_pattern(struct json_reader *r, const char *source, enum split_behavior behavior)
{
    return pretokenizer_add(&r->tok->level->pre, source, strlen(source), behavior, false, r->name, r->err);
}

static enum tutti_status read_pre_tokenizer(struct json_reader *r, const json_t *part, int depth)
{
    const char *type = json_reader_type(part);
    enum split_behavior behavior = SPLIT_ISOLATED;
    enum tutti_status st = TUTTI_OK;
    if (r->has_bytes)
        return error_set(r->err, TUTTI_E_UNSUPPORTED, "%s: pre_tokenizer: a step stands behind ByteLevel",
                         r->name);
    if (strcmp(type, "ByteLevel") == 0)
        return read_bytes(r, part);
    if (strcmp(type, "Split") == 0)
        return read_split(r, part);
    if (strcmp(type, "Digits") == 0)
        return read_pattern(r, PATTERN_DIGITS,
                            json_reader_is_on(part, "individual_digits") ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS);
    if (strcmp(type, "Punctuation") == 0) {
        st = json_object_get(part, "behavior") ? read_behavior(r, part, &behavior) : TUTTI_OK;
        return st == TUTTI_OK ? read_pattern(r, PATTERN_PUNCTUATION, behavior) : st;
    }
    if (strcmp(type, "Sequence") != 0 || depth > MAX_JSON_STEP_DEPTH)
        return json_reader_unsupported(r, "pre_tokenizer", part,
                                       "ByteLevel, Split, Digits, Punctuation or Sequence");
    const json_t *list = json_object_get(part, "pretokenizers");
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(list); i++)
        st = read_pre_tokenizer(r, json_array_get(list, i), depth + 1);
    return st;
}

/* Older files say add_prefix_space. */
static enum tutti_status read_prepends(const struct json_reader *r, const json_t *part,
                                       enum metaspace_prepends *out)
{
    const char *replacement = json_string_value(json_object_get(part, "replacement"));
    const char *scheme = json_string_value(json_object_get(part, "prepend_scheme"));
    if (!scheme)
        scheme = json_is_false(json_object_get(part, "add_prefix_space")) ? "never" : "always";
    *out = strcmp(scheme, "always") == 0  ? METASPACE_ALWAYS
           : strcmp(scheme, "first") == 0 ? METASPACE_FIRST
           : strcmp(scheme, "never") == 0 ? METASPACE_NEVER
                                          : METASPACE_NONE;
    return *out != METASPACE_NONE && replacement && strcmp(replacement, BLANK_MARK) == 0
               ? TUTTI_OK
               : error_set(r->err, TUTTI_E_UNSUPPORTED,
                           "%s: Metaspace: expected replacement \"" BLANK_MARK
                           "\" and prepend_scheme always, first or never",
                           r->name);
}

static enum tutti_status read_metaspace(struct json_reader *r, const json_t *part)
{
    struct metaspace *m = &r->tok->level->metaspace;
    m->splits = !json_is_false(json_object_get(part, "split"));
    return read_prepends(r, part, &m->prepends);
}

/* ---- model ---- */

static bool is_empty(const json_t *part, const char *key)
{
    const json_t *value = json_object_get(part, key);
    return !value || json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0) ||
           json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0);
}

static enum tutti_status read_merges(struct json_reader *r, const json_t *list)
{
    enum tutti_status st = TUTTI_OK;
    if (!json_is_array(list))
        return error_set(r->err, TUTTI_E_FORMAT, "%s: model.merges is no list", r->name);
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(list); i++) {
        const json_t *merge = json_array_get(list, i), *left = json_array_get(merge, 0),
                     *right = json_array_get(merge, 1);
        if (json_is_string(merge))
            st = byte_level_add_merge_line(r->tok, json_string_value(merge), json_string_length(merge),
                                           r->name, r->err);
        else if (json_array_size(merge) == 2 && json_is_string(left) && json_is_string(right))
            st = byte_level_add_merge(r->tok, json_string_value(left), json_string_length(left),
                                      json_string_value(right), json_string_length(right), r->name, r->err);
        else
            st = error_set(r->err, TUTTI_E_FORMAT,
                           "%s: model.merges[%zu] is neither text nor a list of two texts", r->name, i);
    }
    return st;
}

static enum tutti_status read_model(struct json_reader *r, const json_t *model)
{
    static const char *const ABSENT[] = { "dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                          "byte_fallback" };
    bool has_characters = r->tok->level->has_characters;
    const json_t *type = json_object_get(model, "type");
    if (!json_is_object(model) || (type && strcmp(json_reader_type(model), "BPE") != 0))
        return json_reader_unsupported(r, "model", model, "BPE");
    for (size_t i = 0; i < sizeof ABSENT / sizeof *ABSENT - has_characters; i++) {
        if (!is_empty(model, ABSENT[i]))
            return error_set(r->err, TUTTI_E_UNSUPPORTED,
                             "%s: model.%s is set, which models of this kind have no use for", r->name,
                             ABSENT[i]);
    }
    r->tok->byte_fallback = json_reader_is_on(model, "byte_fallback");
    r->tok->level->ignores_merges = json_reader_is_on(model, "ignore_merges");
    r->tok->level->fuses_unknown = json_reader_is_on(model, "fuse_unk");
    enum tutti_status st = byte_config_vocab(r->tok, json_object_get(model, "vocab"), r->name, r->err);
    if (st == TUTTI_OK)
        st = read_merges(r, json_object_get(model, "merges"));
    if (st == TUTTI_OK && !is_empty(model, "unk_token")) {
        const char *unknown = json_string_value(json_object_get(model, "unk_token"));
        r->tok->unk_id = unknown ? byte_config_find(r->tok, unknown) : -1;
        if (r->tok->unk_id < 0)
            return error_set(r->err, TUTTI_E_FORMAT, "%s: model.unk_token is no token", r->name);
    }
    return st;
}

static enum tutti_status read_added(struct json_reader *r, const json_t *list)
{
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i), *id = json_object_get(entry, "id");
        st = json_is_integer(id)
                 ? byte_config_add(r->tok, entry, json_integer_value(id), r->name, r->err)
                 : error_set(r->err, TUTTI_E_FORMAT, "%s: added_tokens[%zu].id is no number", r->name, i);
    }
    return st;
}

/* ---- decoder ---- */

static enum tutti_status read_decoder(const struct json_reader *r, const json_t *part, int depth)
{
    const char *type = json_reader_type(part);
    enum tutti_status st = TUTTI_OK;
    if (strcmp(type, "ByteLevel") == 0 || (depth > 0 && strcmp(type, "Fuse") == 0))
        return TUTTI_OK;
    if (strcmp(type, "Sequence") != 0 || depth > MAX_JSON_STEP_DEPTH)
        return json_reader_unsupported(r, "decoder", part, "ByteLevel");
    const json_t *list = json_object_get(part, "decoders");
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(list); i++)
        st = read_decoder(r, json_array_get(list, i), depth + 1);
    return st;
}

static enum tutti_status read_strip(struct json_reader *r, const json_t *part)
{
    const char *content = json_string_value(json_object_get(part, "content"));
    json_int_t start = json_integer_value(json_object_get(part, "start")),
               stop = json_integer_value(json_object_get(part, "stop"));
    if (!content || strcmp(content, " ") != 0 || start < 0 || start > 1 || stop != 0)
        return error_set(r->err, TUTTI_E_UNSUPPORTED,
                         "%s: decoder: Strip: expected one blank or none at the start", r->name);
    r->tok->add_dummy_prefix = start == 1;
    return TUTTI_OK;
}

/* Of tokens of characters: marks become blanks, BYTE tokens bytes, and the first blank may go. */
static enum tutti_status read_character_decoder(struct json_reader *r, const json_t *part, int depth)
{
    const char *type = json_reader_type(part);
    enum tutti_status st = TUTTI_OK;
    if (strcmp(type, "Fuse") == 0)
        return TUTTI_OK;
    if (strcmp(type, "Strip") == 0)
        return read_strip(r, part);
    if (strcmp(type, "ByteFallback") == 0) {
        r->decodes_bytes = true;
        return TUTTI_OK;
    }
    if (strcmp(type, "Replace") == 0) {
        const char *from = json_string_value(json_object_get(json_object_get(part, "pattern"), "String")),
                   *to = json_string_value(json_object_get(part, "content"));
        r->decodes_marks = from && to && strcmp(from, BLANK_MARK) == 0 && strcmp(to, " ") == 0;
        return r->decodes_marks
                   ? TUTTI_OK
                   : error_set(r->err, TUTTI_E_UNSUPPORTED,
                               "%s: decoder: Replace: expected \"" BLANK_MARK "\" by a blank", r->name);
    }
    if (strcmp(type, "Metaspace") == 0) {
        enum metaspace_prepends prepends = METASPACE_NONE;
        st = read_prepends(r, part, &prepends);
        r->decodes_marks = true;
        r->tok->add_dummy_prefix = prepends != METASPACE_NEVER;
        return st;
    }
    if (strcmp(type, "Sequence") != 0 || depth > MAX_JSON_STEP_DEPTH)
        return json_reader_unsupported(r, "decoder", part,
                                       "Replace, ByteFallback, Fuse, Strip, Metaspace or Sequence");
    const json_t *list = json_object_get(part, "decoders");
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(list); i++)
        st = read_character_decoder(r, json_array_get(list, i), depth + 1);
    return st;
}

/* ---- all ---- */

static enum tutti_status read_all(struct json_reader *r, const json_t *root, const json_t *config)
{
    const json_t *pre = json_object_get(root, "pre_tokenizer");
    bool is_metaspace = strcmp(json_reader_type(pre), "Metaspace") == 0;
    enum tutti_status st = TUTTI_OK;
    const json_t *type = json_object_get(json_object_get(root, "model"), "type");
    if (type && strcmp(json_reader_type(json_object_get(root, "model")), "BPE") != 0)
        return json_reader_unsupported(r, "model", json_object_get(root, "model"), "BPE");
    if (json_is_object(pre))
        st = is_metaspace ? read_metaspace(r, pre) : read_pre_tokenizer(r, pre, 0);
    r->tok->level->has_characters = !r->has_bytes;
    if (st == TUTTI_OK)
        st = r->has_bytes ? read_decoder(r, json_object_get(root, "decoder"), 0)
                          : read_character_decoder(r, json_object_get(root, "decoder"), 0);
    if (st == TUTTI_OK)
        st = read_normalizer(r, json_object_get(root, "normalizer"), 0);
    if (st == TUTTI_OK)
        st = read_model(r, json_object_get(root, "model"));
    if (st == TUTTI_OK && !r->has_bytes && (!r->decodes_marks || r->decodes_bytes != r->tok->byte_fallback))
        st = error_set(r->err, TUTTI_E_UNSUPPORTED,
                       "%s: decoder: without ByteLevel expected one that makes blanks of \"" BLANK_MARK
                       "\", with ByteFallback where model.byte_fallback is set, and only there",
                       r->name);
    if (st == TUTTI_OK)
        st = read_added(r, json_object_get(root, "added_tokens"));
    if (st == TUTTI_OK)
        st = byte_config_add_all(r->tok, config, r->name, r->err);
    if (st == TUTTI_OK)
        st = byte_level_finish(r->tok, false, r->name, r->err);
    if (st == TUTTI_OK)
        st = json_read_post_processor(r, json_object_get(root, "post_processor"));
    return st == TUTTI_OK ? byte_config_specials(r->tok, config, r->name, r->err) : st;
}

enum tutti_status tokenizer_from_json(struct tokenizer **out, const struct byte_file *file,
                                      const json_t *config, struct tutti_error *err)
{
    json_t *root = NULL;
    struct json_reader r = { .tok = byte_level_new(), .name = file->name, .err = err };
    if (!r.tok)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", file->name);
    enum tutti_status st = byte_config_parse(&root, file->bytes, file->n_bytes, file->name, err);
    if (st == TUTTI_OK)
        st = read_all(&r, root, config);
    if (st == TUTTI_OK) {
        *out = r.tok;
        r.tok = NULL;
    }
    json_decref(root);
    tokenizer_free(r.tok);
    return st;
}
