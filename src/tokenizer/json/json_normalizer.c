/* Reads "normalizer" of tokenizer.json. */
#include "tokenizer/json/json_reader.h"
#include "tokenizer/vocab/base64.h"

#include <stdio.h>
#include <string.h>

static const char FIELD[] = "normalizer";

static enum tutti_status add_step(struct json_reader *r, struct normalizer **out)
{
    struct normalizers *n = &r->tok->level->normalizers;
    if (n->n >= MAX_NORMALIZERS)
        return error_set(r->err, TUTTI_E_UNSUPPORTED, "%s: normalizer: more than %d steps", r->name,
                         MAX_NORMALIZERS);
    *out = &n->steps[n->n++];
    **out = (struct normalizer){ .kind = NORMALIZE_FORM };
    return TUTTI_OK;
}

static enum tutti_status add_simple(struct json_reader *r, struct normalizer step)
{
    struct normalizer *own = NULL;
    enum tutti_status st = add_step(r, &own);
    if (st == TUTTI_OK)
        *own = step;
    return st;
}

enum tutti_status json_read_replace(const struct json_reader *r, const char *field, const json_t *part,
                                    struct normalizer *out)
{
    const json_t *pattern = json_object_get(part, "pattern"), *text = json_object_get(pattern, "String"),
                 *regex = json_object_get(pattern, "Regex");
    out->kind = NORMALIZE_REPLACE;
    enum tutti_status st = json_reader_text(r, field, part, "content", &out->to);
    if (st != TUTTI_OK)
        return st;
    if (json_is_string(regex))
        return pattern_new(&out->pattern, json_string_value(regex), json_string_length(regex),
                           PATTERN_UNKNOWN, r->name, r->err);
    if (!json_is_string(text) || json_string_length(text) == 0)
        return error_set(r->err, TUTTI_E_FORMAT, "%s: %s: Replace: expected pattern.String or pattern.Regex",
                         r->name, field);
    return buf_add(&out->from, json_string_value(text), json_string_length(text))
               ? TUTTI_OK
               : json_reader_out_of_memory(r);
}

static enum tutti_status read_replace(struct json_reader *r, const json_t *part)
{
    struct normalizer *step = NULL;
    enum tutti_status st = add_step(r, &step);
    return st == TUTTI_OK ? json_read_replace(r, FIELD, part, step) : st;
}

static enum tutti_status read_prepend(struct json_reader *r, const json_t *part)
{
    struct normalizer *step = NULL;
    enum tutti_status st = add_step(r, &step);
    if (st != TUTTI_OK)
        return st;
    step->kind = NORMALIZE_PREPEND;
    return json_reader_text(r, FIELD, part, "prepend", &step->to);
}

/* The table of SentencePiece files, in base64. Empty: no effect. */
static enum tutti_status read_charsmap(struct json_reader *r, const json_t *part)
{
    static const char KEY[] = "precompiled_charsmap";
    const json_t *text = json_object_get(part, KEY);
    struct normalizer *step = NULL;
    char what[4200];
    if (!text || json_is_null(text) || (json_is_string(text) && json_string_length(text) == 0))
        return TUTTI_OK;
    enum tutti_status st = add_step(r, &step);
    if (st != TUTTI_OK)
        return st;
    step->kind = NORMALIZE_CHARSMAP;
    if (!json_is_string(text) ||
        !base64_read(json_string_value(text), json_string_length(text), &step->map_bytes))
        return error_set(r->err, TUTTI_E_FORMAT, "%s: normalizer: Precompiled: %s is no base64", r->name,
                         KEY);
    snprintf(what, sizeof what, "%s: normalizer: %s", r->name, KEY);
    return charsmap_read(&step->map, (const uint8_t *)step->map_bytes.bytes, step->map_bytes.n_bytes, what,
                         r->err);
}

/* strip_accents null means the value of lowercase. */
static enum tutti_status read_bert(struct json_reader *r, const json_t *part)
{
    const json_t *accents = json_object_get(part, "strip_accents");
    struct bert_options o = { .cleans = !json_is_false(json_object_get(part, "clean_text")),
                              .parts_chinese = !json_is_false(json_object_get(part, "handle_chinese_chars")),
                              .lowers = !json_is_false(json_object_get(part, "lowercase")) };
    o.strips_accents = json_is_boolean(accents) ? json_is_true(accents) : o.lowers;
    return normalizers_add_bert(&r->tok->level->normalizers, &o)
               ? TUTTI_OK
               : error_set(r->err, TUTTI_E_UNSUPPORTED, "%s: normalizer: more than %d steps", r->name,
                           MAX_NORMALIZERS);
}

static enum tutti_status read_strip(struct json_reader *r, const json_t *part)
{
    return add_simple(
        r, (struct normalizer){ .kind = NORMALIZE_STRIP,
                                .strips_left = !json_is_false(json_object_get(part, "strip_left")),
                                .strips_right = !json_is_false(json_object_get(part, "strip_right")) });
}

static enum tutti_status normalizer_read_part(struct json_reader *r, const json_t *part, int depth)
{
    static const struct {
        const char *type;
        struct normalizer step;
    } SIMPLE[] = { { "NFC", { .kind = NORMALIZE_FORM, .form = UNICODE_NFC } },
                   { "NFD", { .kind = NORMALIZE_FORM, .form = UNICODE_NFD } },
                   { "NFKC", { .kind = NORMALIZE_FORM, .form = UNICODE_NFKC } },
                   { "NFKD", { .kind = NORMALIZE_FORM, .form = UNICODE_NFKD } },
                   { "Lowercase", { .kind = NORMALIZE_LOWERCASE } },
                   { "StripAccents", { .kind = NORMALIZE_REMOVE, .removed = &CASE_TABLES.accents } },
                   { "Nmt", { .kind = NORMALIZE_NMT } },
                   { "ByteLevel", { .kind = NORMALIZE_BYTES } } };
    static const struct {
        const char *type;
        enum tutti_status (*read)(struct json_reader *r, const json_t *part);
    } READERS[] = { { "Replace", read_replace },
                    { "Prepend", read_prepend },
                    { "Precompiled", read_charsmap },
                    { "BertNormalizer", read_bert },
                    { "Strip", read_strip } };
    const char *type = json_reader_type(part);
    if (!part || json_is_null(part))
        return TUTTI_OK;
    for (size_t i = 0; i < sizeof SIMPLE / sizeof *SIMPLE; i++) {
        if (strcmp(type, SIMPLE[i].type) == 0)
            return add_simple(r, SIMPLE[i].step);
    }
    for (size_t i = 0; i < sizeof READERS / sizeof *READERS; i++) {
        if (strcmp(type, READERS[i].type) == 0)
            return READERS[i].read(r, part);
    }
    if (strcmp(type, "Sequence") != 0 || depth > MAX_JSON_STEP_DEPTH)
        return json_reader_unsupported(
            r, FIELD, part,
            "NFC, NFD, NFKC, NFKD, Replace, Prepend, Lowercase, Strip, "
            "StripAccents, BertNormalizer, Precompiled, Nmt, ByteLevel or Sequence");
    const json_t *list = json_object_get(part, "normalizers");
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(list); i++)
        st = normalizer_read_part(r, json_array_get(list, i), depth + 1);
    return st;
}

enum tutti_status json_read_normalizer(struct json_reader *r, const json_t *part)
{
    return normalizer_read_part(r, part, 0);
}
