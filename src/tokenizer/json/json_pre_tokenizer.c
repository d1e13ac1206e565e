/* Reads "pre_tokenizer" of tokenizer.json. */
#include "tokenizer/json/json_reader.h"

#include "base/utf8.h"

#include <string.h>

static const char FIELD[] = "pre_tokenizer";

static struct pretokenizer *steps_of(struct json_reader *r)
{
    return &r->tok->level->pre;
}

static enum tutti_status add_pattern(struct json_reader *r, const char *source, enum split_behavior behavior,
                                     bool is_inverted)
{
    return pretokenizer_add(steps_of(r), source, strlen(source), behavior, is_inverted, r->name, r->err);
}

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
        return pretokenizer_add(steps_of(r), json_string_value(regex), json_string_length(regex), behavior,
                                json_is_on(part, "invert"), r->name, r->err);
    if (json_is_string(text) && json_string_length(text) > 0)
        return pretokenizer_add_literal(steps_of(r), json_string_value(text), json_string_length(text),
                                        behavior, json_is_on(part, "invert"), r->name, r->err);
    return error_set(r->err, TUTTI_E_FORMAT,
                     "%s: pre_tokenizer: Split: expected pattern.Regex or pattern.String", r->name);
}

static bool has_bytes(struct json_reader *r)
{
    for (int i = 0; i < steps_of(r)->n_steps; i++) {
        if (steps_of(r)->steps[i].kind == PRE_BYTES)
            return true;
    }
    return false;
}

static enum tutti_status read_byte_level(struct json_reader *r, const json_t *part)
{
    enum tutti_status st = TUTTI_OK;
    if (has_bytes(r))
        return error_set(r->err, TUTTI_E_UNSUPPORTED, "%s: pre_tokenizer: ByteLevel after ByteLevel",
                         r->name);
    if (json_is_on(part, "add_prefix_space"))
        st = pretokenizer_add_prefix(steps_of(r), r->name, r->err);
    if (st == TUTTI_OK && !json_is_false(json_object_get(part, "use_regex")))
        st = add_pattern(r, PATTERN_GPT2, SPLIT_ISOLATED, false);
    return st == TUTTI_OK ? pretokenizer_add_bytes(steps_of(r), r->name, r->err) : st;
}

static enum tutti_status read_digits(struct json_reader *r, const json_t *part)
{
    return add_pattern(r, PATTERN_DIGITS,
                       json_is_on(part, "individual_digits") ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS, false);
}

static enum tutti_status read_punctuation(struct json_reader *r, const json_t *part)
{
    enum split_behavior behavior = SPLIT_ISOLATED;
    enum tutti_status st = json_object_get(part, "behavior") ? read_behavior(r, part, &behavior) : TUTTI_OK;
    return st == TUTTI_OK ? add_pattern(r, PATTERN_PUNCTUATION, behavior, false) : st;
}

static enum tutti_status read_whitespace(struct json_reader *r, const json_t *part)
{
    (void)part;
    return add_pattern(r, PATTERN_WORDS, SPLIT_REMOVED, true);
}

static enum tutti_status read_whitespace_split(struct json_reader *r, const json_t *part)
{
    (void)part;
    return add_pattern(r, PATTERN_BLANK, SPLIT_REMOVED, false);
}

static enum tutti_status read_bert(struct json_reader *r, const json_t *part)
{
    enum tutti_status st = read_whitespace_split(r, part);
    return st == TUTTI_OK ? add_pattern(r, PATTERN_PUNCTUATION, SPLIT_ISOLATED, false) : st;
}

static enum tutti_status read_delimiter(struct json_reader *r, const json_t *part)
{
    struct buf text = { 0 };
    enum tutti_status st = json_reader_text(r, FIELD, part, "delimiter", &text);
    if (st == TUTTI_OK && text.n_bytes == 0)
        st = error_set(r->err, TUTTI_E_FORMAT, "%s: pre_tokenizer: CharDelimiterSplit: delimiter is empty",
                       r->name);
    if (st == TUTTI_OK)
        st = pretokenizer_add_literal(steps_of(r), text.bytes, text.n_bytes, SPLIT_REMOVED, false, r->name,
                                      r->err);
    buf_clear(&text);
    return st;
}

/* Older files have add_prefix_space instead. */
enum tutti_status json_read_metaspace(const struct json_reader *r, const char *field, const json_t *part,
                                      struct metaspace *out)
{
    static const char *const SCHEMES[] = {
        [METASPACE_NEVER] = "never", [METASPACE_FIRST] = "first", [METASPACE_ALWAYS] = "always"
    };
    const json_t *mark = json_object_get(part, "replacement"),
                 *prefix = json_object_get(part, "add_prefix_space");
    const char *scheme = json_string_value(json_object_get(part, "prepend_scheme"));
    size_t n_mark = json_string_length(mark);
    int i = 0;
    if (!scheme)
        scheme = json_is_false(prefix) ? "never" : "always";
    while (i < 3 && strcmp(scheme, SCHEMES[i]) != 0)
        i++;
    if (i == 3 || n_mark == 0 || n_mark > 4 || utf8_char(json_string_value(mark), n_mark) != (int)n_mark)
        return error_set(
            r->err, TUTTI_E_UNSUPPORTED,
            "%s: %s: Metaspace: expected replacement of one character and prepend_scheme always, "
            "first or never",
            r->name, field);
    if (json_is_false(prefix) && i != METASPACE_NEVER)
        return error_set(r->err, TUTTI_E_FORMAT,
                         "%s: %s: Metaspace: add_prefix_space is false, but prepend_scheme is %s", r->name,
                         field, scheme);
    *out = (struct metaspace){ .prepends = (enum metaspace_prepends)i,
                               .splits = !json_is_false(json_object_get(part, "split")),
                               .n_mark = n_mark };
    memcpy(out->mark, json_string_value(mark), n_mark);
    return TUTTI_OK;
}

static enum tutti_status read_metaspace(struct json_reader *r, const json_t *part)
{
    struct metaspace metaspace;
    enum tutti_status st = json_read_metaspace(r, FIELD, part, &metaspace);
    return st == TUTTI_OK ? pretokenizer_add_metaspace(steps_of(r), &metaspace, r->name, r->err) : st;
}

static enum tutti_status pre_read_part(struct json_reader *r, const json_t *part, int depth)
{
    static const struct {
        const char *type;
        enum tutti_status (*read)(struct json_reader *r, const json_t *part);
    } READERS[] = { { "ByteLevel", read_byte_level },
                    { "Split", read_split },
                    { "Digits", read_digits },
                    { "Punctuation", read_punctuation },
                    { "Metaspace", read_metaspace },
                    { "Whitespace", read_whitespace },
                    { "WhitespaceSplit", read_whitespace_split },
                    { "BertPreTokenizer", read_bert },
                    { "CharDelimiterSplit", read_delimiter } };
    const char *type = json_reader_type(part);
    for (size_t i = 0; i < sizeof READERS / sizeof *READERS; i++) {
        if (strcmp(type, READERS[i].type) == 0)
            return READERS[i].read(r, part);
    }
    if (strcmp(type, "Sequence") != 0 || depth > MAX_JSON_STEP_DEPTH)
        return json_reader_unsupported(r, FIELD, part,
                                       "ByteLevel, Split, Digits, Punctuation, Metaspace, Whitespace, "
                                       "WhitespaceSplit, BertPreTokenizer, CharDelimiterSplit or Sequence");
    const json_t *list = json_object_get(part, "pretokenizers");
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(list); i++)
        st = pre_read_part(r, json_array_get(list, i), depth + 1);
    return st;
}

enum tutti_status json_read_pre_tokenizer(struct json_reader *r, const json_t *part)
{
    return !part || json_is_null(part) ? TUTTI_OK : pre_read_part(r, part, 0);
}
