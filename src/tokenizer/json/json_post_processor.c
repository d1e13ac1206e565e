/* Reads "post_processor" of tokenizer.json: the tokens around a text. */
#include "tokenizer/json/byte_config.h"
#include "tokenizer/json/json_reader.h"

#include <string.h>

/* A list of ids under construction. */
struct affix {
    int n;
    int32_t ids[MAX_AFFIX_IDS];
};

static enum tutti_status add_id(const struct json_reader *r, struct affix *to, const char *type,
                                const json_t *id)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= r->tok->n_pieces ||
        to->n >= MAX_AFFIX_IDS)
        return error_set(
            r->err, TUTTI_E_FORMAT,
            "%s: post_processor: %s: expected up to %d ids of the vocabulary on each side of a text", r->name,
            type, MAX_AFFIX_IDS);
    to->ids[to->n++] = (int32_t)json_integer_value(id);
    return TUTTI_OK;
}

/* Tokens of an earlier step stay next to the text. */
static enum tutti_status post_processor_wrap(const struct json_reader *r, const char *type,
                                             const struct affix *before, const struct affix *after)
{
    struct token_affixes *a = &r->tok->affixes;
    if (before->n + a->n_before > MAX_AFFIX_IDS || after->n + a->n_after > MAX_AFFIX_IDS)
        return error_set(r->err, TUTTI_E_UNSUPPORTED,
                         "%s: post_processor: %s: more than %d ids on one side of a text", r->name, type,
                         MAX_AFFIX_IDS);
    memmove(a->before + before->n, a->before, (size_t)a->n_before * sizeof *a->before);
    memcpy(a->before, before->ids, (size_t)before->n * sizeof *a->before);
    memcpy(a->after + a->n_after, after->ids, (size_t)after->n * sizeof *a->after);
    a->n_before += before->n;
    a->n_after += after->n;
    a->is_known = true;
    return TUTTI_OK;
}

static void set_between(const struct json_reader *r, const struct affix *between)
{
    struct token_affixes *a = &r->tok->affixes;
    a->n_between = between->n;
    memcpy(a->between, between->ids, (size_t)between->n * sizeof *a->between);
}

static enum tutti_status add_special(const struct json_reader *r, const json_t *part, const char *special,
                                     struct affix *to)
{
    const json_t *ids = json_object_get(json_object_get(json_object_get(part, "special_tokens"), special),
                                        "ids");
    enum tutti_status st = TUTTI_OK;
    if (!json_is_array(ids))
        return error_set(r->err, TUTTI_E_FORMAT,
                         "%s: post_processor: TemplateProcessing: special_tokens has no ids for \"%.64s\"",
                         r->name, special);
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(ids); i++)
        st = add_id(r, to, "TemplateProcessing", json_array_get(ids, i));
    return st;
}

/* The tokens between the texts of a template of pairs, which is often missing. */
static enum tutti_status read_between(const struct json_reader *r, const json_t *part)
{
    const json_t *pair = json_object_get(part, "pair");
    struct affix between = { .n = 0 };
    int n_texts = 0;
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(pair); i++) {
        const json_t *item = json_array_get(pair, i);
        const char *special = json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
        if (!special)
            n_texts++;
        else if (n_texts == 1)
            st = add_special(r, part, special, &between);
    }
    if (st == TUTTI_OK && n_texts == 2)
        set_between(r, &between);
    return st;
}

/* The template of a single text; that of pairs gives the tokens between them. */
static enum tutti_status read_template(struct json_reader *r, const json_t *part)
{
    const json_t *single = json_object_get(part, "single");
    struct affix before = { .n = 0 }, after = { .n = 0 };
    int n_texts = 0;
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; st == TUTTI_OK && i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i);
        const char *special = json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
        if (special)
            st = add_special(r, part, special, n_texts > 0 ? &after : &before);
        else
            n_texts++;
    }
    if (st == TUTTI_OK && n_texts != 1)
        return error_set(
            r->err, TUTTI_E_UNSUPPORTED,
            "%s: post_processor: TemplateProcessing: single holds the text %d times, expected once", r->name,
            n_texts);
    if (st == TUTTI_OK)
        st = read_between(r, part);
    return st == TUTTI_OK ? post_processor_wrap(r, "TemplateProcessing", &before, &after) : st;
}

/* BertProcessing, RobertaProcessing: "cls": [text, id] before the text, "sep" after it. */
static enum tutti_status read_cls_sep(struct json_reader *r, const json_t *part)
{
    const char *type = json_reader_type(part);
    struct affix before = { .n = 0 }, after = { .n = 0 };
    enum tutti_status st = add_id(r, &before, type, json_array_get(json_object_get(part, "cls"), 1));
    if (st == TUTTI_OK)
        st = add_id(r, &after, type, json_array_get(json_object_get(part, "sep"), 1));
    if (st == TUTTI_OK) { /* RoBERTa doubles it */
        bool is_double = strcmp(type, "RobertaProcessing") == 0;
        set_between(r, &(struct affix){ .n = 1 + is_double, .ids = { after.ids[0], after.ids[0] } });
    }
    return st == TUTTI_OK ? post_processor_wrap(r, type, &before, &after) : st;
}

/* ByteLevel changes offsets only. */
static enum tutti_status read_nothing(struct json_reader *r, const json_t *part)
{
    (void)r;
    (void)part;
    return TUTTI_OK;
}

enum tutti_status json_read_post_processor(struct json_reader *r, const json_t *part)
{
    static const struct json_step STEPS[] = { { "ByteLevel", read_nothing },
                                              { "TemplateProcessing", read_template },
                                              { "BertProcessing", read_cls_sep },
                                              { "RobertaProcessing", read_cls_sep },
                                              { NULL, NULL } };
    static const struct json_steps KINDS = { "post_processor", "processors", STEPS };
    return json_read_steps(r, &KINDS, part);
}
