/* Reads "normalizer" of tokenizer.json. */
#include "tokenizer/json/json_reader.h"
#include "tokenizer/vocab/base64.h"

#include <stdio.h>
#include <string.h>

static const char FIELD[] = "normalizer";

static enum tutti_status normalizer_add_step(struct json_reader *r, struct normalizer **out)
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
    enum tutti_status st = normalizer_add_step(r, &own);
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
    enum tutti_status st = normalizer_add_step(r, &step);
    return st == TUTTI_OK ? json_read_replace(r, FIELD, part, step) : st;
}

static enum tutti_status read_prepend(struct json_reader *r, const json_t *part)
{
    struct normalizer *step = NULL;
    enum tutti_status st = normalizer_add_step(r, &step);
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
    enum tutti_status st = normalizer_add_step(r, &step);
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

/* The types without parameters. */
static enum tutti_status read_simple(struct json_reader *r, const json_t *part)
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
    size_t i = 0;
    while (strcmp(json_reader_type(part), SIMPLE[i].type) != 0)
        i++;
    return add_simple(r, SIMPLE[i].step);
}

enum tutti_status json_read_normalizer(struct json_reader *r, const json_t *part)
{
    static const struct json_step STEPS[] = {
        { "NFC", read_simple },           { "NFD", read_simple },
        { "NFKC", read_simple },          { "NFKD", read_simple },
        { "Replace", read_replace },      { "Prepend", read_prepend },
        { "Lowercase", read_simple },     { "Strip", read_strip },
        { "StripAccents", read_simple },  { "BertNormalizer", read_bert },
        { "Precompiled", read_charsmap }, { "Nmt", read_simple },
        { "ByteLevel", read_simple },     { NULL, NULL }
    };
    static const struct json_steps KINDS = { FIELD, "normalizers", STEPS };
    return json_read_steps(r, &KINDS, part);
}
