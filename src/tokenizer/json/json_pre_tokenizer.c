/* Reads "pre_tokenizer" of tokenizer.json. */
#include "tokenizer/json/json_reader.h"

#include "base/utf8.h"

#include <string.h>

static const char FIELD[] = "pre_tokenizer";

static struct pretokenizer *steps_of(struct json_reader *r)
{
    return &r->tok->level->pre;
}

static enum tutti_status pre_tokenizer_add_step(struct json_reader *r, struct pre_step step,
                                                const char *source, size_t n_bytes)
{
    return pretokenizer_add(steps_of(r), step, source, n_bytes, r->name, r->err);
}

static enum tutti_status add_pattern(struct json_reader *r, const char *source, enum split_behavior behavior)
{
    return pre_tokenizer_add_step(r, (struct pre_step){ .behavior = behavior }, source, strlen(source));
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
    struct pre_step step = { .is_inverted = json_is_on(part, "invert"),
                             .is_literal = !json_is_string(regex) };
    const json_t *source = step.is_literal ? text : regex;
    enum tutti_status st = read_behavior(r, part, &step.behavior);
    if (st != TUTTI_OK)
        return st;
    if (json_is_string(regex) || json_string_length(text) > 0)
        return pre_tokenizer_add_step(r, step, json_string_value(source), json_string_length(source));
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
    if (r->adds_prefix < 0 ? json_is_on(part, "add_prefix_space") : r->adds_prefix > 0)
        st = pre_tokenizer_add_step(r, (struct pre_step){ .kind = PRE_PREFIX }, NULL, 0);
    if (st == TUTTI_OK && !json_is_false(json_object_get(part, "use_regex")))
        st = add_pattern(r, PATTERN_GPT2, SPLIT_ISOLATED);
    return st == TUTTI_OK ? pre_tokenizer_add_step(r, (struct pre_step){ .kind = PRE_BYTES }, NULL, 0) : st;
}

static enum tutti_status read_digits(struct json_reader *r, const json_t *part)
{
    return add_pattern(r, PATTERN_DIGITS,
                       json_is_on(part, "individual_digits") ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS);
}

static enum tutti_status read_punctuation(struct json_reader *r, const json_t *part)
{
    enum split_behavior behavior = SPLIT_ISOLATED;
    enum tutti_status st = json_object_get(part, "behavior") ? read_behavior(r, part, &behavior) : TUTTI_OK;
    return st == TUTTI_OK ? add_pattern(r, PATTERN_PUNCTUATION, behavior) : st;
}

static enum tutti_status read_whitespace(struct json_reader *r, const json_t *part)
{
    (void)part;
    return pre_tokenizer_add_step(r, (struct pre_step){ .behavior = SPLIT_REMOVED, .is_inverted = true },
                                  PATTERN_WORDS, strlen(PATTERN_WORDS));
}

static enum tutti_status read_whitespace_split(struct json_reader *r, const json_t *part)
{
    (void)part;
    return add_pattern(r, PATTERN_BLANK, SPLIT_REMOVED);
}

static enum tutti_status read_bert(struct json_reader *r, const json_t *part)
{
    enum tutti_status st = read_whitespace_split(r, part);
    return st == TUTTI_OK ? add_pattern(r, PATTERN_PUNCTUATION, SPLIT_ISOLATED) : st;
}

static enum tutti_status read_delimiter(struct json_reader *r, const json_t *part)
{
    struct buf text = { 0 };
    enum tutti_status st = json_reader_text(r, FIELD, part, "delimiter", &text);
    if (st == TUTTI_OK && text.n_bytes == 0)
        st = error_set(r->err, TUTTI_E_FORMAT, "%s: pre_tokenizer: CharDelimiterSplit: delimiter is empty",
                       r->name);
    if (st == TUTTI_OK)
        st = pre_tokenizer_add_step(r, (struct pre_step){ .behavior = SPLIT_REMOVED, .is_literal = true },
                                    text.bytes, text.n_bytes);
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
    struct pre_step step = { .kind = PRE_METASPACE };
    enum tutti_status st = json_read_metaspace(r, FIELD, part, &step.metaspace);
    return st == TUTTI_OK ? pre_tokenizer_add_step(r, step, NULL, 0) : st;
}

enum tutti_status json_read_pre_tokenizer(struct json_reader *r, const json_t *part)
{
    static const struct json_step STEPS[] = { { "ByteLevel", read_byte_level },
                                              { "Split", read_split },
                                              { "Digits", read_digits },
                                              { "Punctuation", read_punctuation },
                                              { "Metaspace", read_metaspace },
                                              { "Whitespace", read_whitespace },
                                              { "WhitespaceSplit", read_whitespace_split },
                                              { "BertPreTokenizer", read_bert },
                                              { "CharDelimiterSplit", read_delimiter },
                                              { NULL, NULL } };
    static const struct json_steps KINDS = { FIELD, "pretokenizers", STEPS };
    if (strcmp(json_reader_type(part), "ByteLevel") != 0)
        r->adds_prefix = -1; /* within a Sequence */
    return json_read_steps(r, &KINDS, part);
}
