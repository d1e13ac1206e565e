/* How values are spelled in JSON, in JSON between marks, and in Python: words, characters, strings, and given
 * values. */
#include "grammar/schema/schema_reader.h"

#include "base/json/json_print.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- words ---- */

static const struct {
    const char *json, *python;
} WORDS[] = { { "null", "None" }, { "true", "True" }, { "false", "False" } };

int32_t schema_word(struct schema_reader *r, const char *word)
{
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS && r->dialect == SCHEMA_PYTHON; i++)
        if (strcmp(word, WORDS[i].json) == 0)
            word = WORDS[i].python;
    return syntax_text(r->out, word);
}

/* ---- characters ---- */

/* Literal characters and the two-character escapes. */
#define ESCAPE     "\\\\[\"\\\\/bfnrt]"
#define PLAIN_CHAR "[ !#-\\[\\]-\\u{10FFFF}]|" ESCAPE
/* Also \uXXXX: no U+0000, and surrogates in pairs. */
#define HEX_DIGIT  "[0-9a-fA-F]"
#define NOT_ZERO   "[1-9a-fA-F]"
#define SURROGATES "[dD][89abAB]" HEX_DIGIT "{2}\\\\u[dD][c-fC-F]" HEX_DIGIT "{2}"
#define UNICODE                                                                                              \
    "\\\\u([1-9a-cA-CeEfF]" HEX_DIGIT "{3}|0" NOT_ZERO HEX_DIGIT "{2}|00" NOT_ZERO HEX_DIGIT "|000" NOT_ZERO \
    "|[dD][0-7]" HEX_DIGIT "{2}|" SURROGATES ")"
#define FREE_TEXT "(" PLAIN_CHAR "|" UNICODE ")*"
/* In marks: no / or | after <. */
#define MARKS_CHAR "[ !#-;=-\\[\\]-\\u{10FFFF}]|" ESCAPE
#define MARKS_TEXT                                                                                           \
    "(" MARKS_CHAR "|" UNICODE "|<+([ !#-.0-;=-\\[\\]-{}-\\u{10FFFF}]|" ESCAPE "|" UNICODE "))*<*"
/* In Python \/ is two characters, and \uXXXX no surrogate. */
#define PYTHON_ESCAPE "\\\\[\"'\\\\bfnrt]"
#define PYTHON_CHAR   "[ !#-&(-\\[\\]-\\u{10FFFF}]|" PYTHON_ESCAPE
#define DOUBLE_TEXT   "([ !#-\\[\\]-\\u{10FFFF}]|" PYTHON_ESCAPE ")*"
#define SINGLE_TEXT   "([ -&(-\\[\\]-\\u{10FFFF}]|" PYTHON_ESCAPE ")*"

int32_t schema_plain_char(struct schema_reader *r)
{
    static const char *const CHARS[] = { [SCHEMA_JSON] = PLAIN_CHAR,
                                         [SCHEMA_JSON_IN_MARKS] = MARKS_CHAR "|\\\\u003c",
                                         [SCHEMA_PYTHON] = PYTHON_CHAR };
    return schema_raw(r, CHARS[r->dialect], &r->plain_char);
}

/* Characters of strings that stand for themselves. */
static size_t raw_ranges(const struct schema_reader *r, const struct char_range *ranges, size_t n,
                         struct char_range *out)
{
    static const struct char_range JSON[] = { { ' ', '!' }, { '#', '[' }, { ']', MAX_CODE_POINT } };
    static const struct char_range IN_MARKS[] = {
        { ' ', '!' }, { '#', ';' }, { '=', '[' }, { ']', MAX_CODE_POINT }
    };
    static const struct char_range PYTHON[] = {
        { ' ', '!' }, { '#', '&' }, { '(', '[' }, { ']', MAX_CODE_POINT }
    };
    if (r->dialect == SCHEMA_JSON)
        return ranges_intersect(ranges, n, JSON, 3, out);
    return ranges_intersect(ranges, n, r->dialect == SCHEMA_PYTHON ? PYTHON : IN_MARKS, 4, out);
}

int32_t schema_chars(struct schema_reader *r, const struct char_range *ranges, size_t n)
{
    static const struct {
        uint32_t code;
        const char *text;
        unsigned dialects; /* as bits */
    } ESCAPES[] = { { '"', "\\\"", 7 },
                    { '\\', "\\\\", 7 },
                    { '\b', "\\b", 7 },
                    { '\f', "\\f", 7 },
                    { '\n', "\\n", 7 },
                    { '\r', "\\r", 7 },
                    { '\t', "\\t", 7 },
                    { '<', "\\u003c", 1 << SCHEMA_JSON_IN_MARKS },
                    { '\'', "\\'", 1 << SCHEMA_PYTHON } };
    enum { MAX_RANGES = 2048 };
    struct syntax *s = r->out;
    int32_t ways[40];
    size_t n_ways = 0;
    struct char_range raw[4 * MAX_RANGES];
    if (n > MAX_RANGES)
        return schema_fail(r, "pattern: a class of more than %d ranges", MAX_RANGES);
    if (r->is_raw)
        return syntax_chars(s, ranges, n);
    size_t n_raw = raw_ranges(r, ranges, n, raw);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < sizeof ESCAPES / sizeof *ESCAPES; k++)
            if (ESCAPES[k].code >= ranges[i].low && ESCAPES[k].code <= ranges[i].high && n_ways < 30 &&
                ESCAPES[k].dialects >> r->dialect & 1)
                ways[n_ways++] = syntax_text(s, ESCAPES[k].text);
    }
    if (n_raw > 0)
        ways[n_ways++] = syntax_chars(s, raw, n_raw);
    return syntax_choice(s, ways, n_ways);
}

/* ---- strings ---- */

static int32_t between(struct schema_reader *r, const char *quote, int32_t inside)
{
    return SYNTAX_SEQ(r->out, syntax_text(r->out, quote), inside, syntax_text(r->out, quote));
}

int32_t schema_quoted(struct schema_reader *r, int32_t inside)
{
    if (r->dialect != SCHEMA_PYTHON)
        return between(r, "\"", inside);
    inside = schema_share(r, inside);
    return SYNTAX_CHOICE(r->out, between(r, "'", inside), between(r, "\"", inside));
}

int32_t schema_any_string(struct schema_reader *r)
{
    int32_t single = -1;
    if (r->any_string >= 0)
        return r->any_string;
    if (r->dialect == SCHEMA_PYTHON)
        r->any_string = schema_share(
            r, SYNTAX_CHOICE(r->out, between(r, "\"", schema_raw(r, DOUBLE_TEXT, &r->free_text)),
                             between(r, "'", schema_raw(r, SINGLE_TEXT, &single))));
    else
        r->any_string = schema_share(
            r, between(r, "\"",
                       schema_raw(r, r->dialect == SCHEMA_JSON ? FREE_TEXT : MARKS_TEXT, &r->free_text)));
    return r->any_string;
}

/* ---- given values ---- */

/* JSON to another dialect. single: a string, in single quotes. NULL: out of memory. */
static char *respell(const struct schema_reader *r, const char *json, bool single)
{
    struct buf out = { 0 };
    bool ok = true, in_string = false;
    for (const char *at = json; *at && ok;) {
        const char *word = NULL;
        if (in_string && *at == '\\') {
            bool is_quote = single && at[1] == '"';
            ok = buf_add(&out, at + is_quote, is_quote ? 1 : 2);
            at += 2;
            continue;
        }
        if (!in_string && isalpha((unsigned char)*at) && r->dialect == SCHEMA_PYTHON)
            for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
                if (strncmp(at, WORDS[i].json, strlen(WORDS[i].json)) == 0) {
                    word = WORDS[i].python;
                    at += strlen(WORDS[i].json);
                }
        if (word) {
            ok = buf_add_string(&out, word);
            continue;
        }
        in_string ^= *at == '"';
        if (single && (*at == '"' || *at == '\''))
            ok = buf_add_string(&out, *at == '"' ? "'" : "\\'");
        else if (r->dialect == SCHEMA_JSON_IN_MARKS && *at == '<')
            ok = buf_add_string(&out, "\\u003c");
        else
            ok = buf_add(&out, at, 1);
        at++;
    }
    if (!ok)
        buf_clear(&out);
    return out.bytes;
}

static int32_t respelled(struct schema_reader *r, const char *json, bool single)
{
    char *text = respell(r, json, single);
    int32_t node = text ? syntax_text(r->out, text) : schema_no_memory(r);
    free(text);
    return node;
}

int32_t schema_literal(struct schema_reader *r, const json_t *value)
{
    char *json = json_print(value, JSON_ENCODE_ANY | JSON_COMPACT);
    if (!json)
        return schema_no_memory(r);
    int32_t node = r->dialect == SCHEMA_JSON ? syntax_text(r->out, json) : respelled(r, json, false);
    if (r->dialect == SCHEMA_PYTHON && json_is_string(value))
        node = SYNTAX_CHOICE(r->out, node, respelled(r, json, true));
    free(json);
    return node;
}
