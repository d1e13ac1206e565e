#include "grammar/gbnf.h"

#include "base/containers/array.h"
#include "base/containers/key_map.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/text.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

struct gbnf_reader {
    struct syntax *out;
    const char *text, *at, *end;
    int depth; /* of parentheses: how deep read_choice() recurses, at most LIMIT_GRAMMAR_NESTING */
    /* Line and column of counted: computed incrementally, since rules are named in text order. */
    const char *counted;
    int line, column;
    struct tutti_error *err;
    enum tutti_status status;
    struct key_map rules; /* by the hash of their name */
};

static void find_line(struct gbnf_reader *r, const char *at, int *line, int *column)
{
    if (at < r->counted || !r->counted) {
        r->counted = r->text;
        r->line = r->column = 1;
    }
    for (; r->counted < at; r->counted++) {
        r->column = *r->counted == '\n' ? 1 : r->column + 1;
        r->line += *r->counted == '\n';
    }
    *line = r->line;
    *column = r->column;
}

/* Sets the first error. Returns -1, which is not a node. */
static int32_t gbnf_fail(struct gbnf_reader *r, const char *at, const char *what)
{
    int line, column;
    if (r->status != TUTTI_OK)
        return -1;
    find_line(r, at, &line, &column);
    r->status = error_set_param(r->err, TUTTI_E_ARGUMENT, "grammar", "grammar: line %d, column %d: %s", line,
                                column, what);
    return -1;
}

static bool is_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

static bool is_next(const struct gbnf_reader *r, char c)
{
    return r->at < r->end && *r->at == c;
}

/* Skips blanks and comments; line breaks only if the rule may continue after them. */
static void skip(struct gbnf_reader *r, bool over_lines)
{
    while (r->at < r->end) {
        char c = *r->at;
        if (c == '#') {
            while (r->at < r->end && *r->at != '\n' && *r->at != '\r')
                r->at++;
        } else if (c == ' ' || c == '\t' || (over_lines && (c == '\n' || c == '\r'))) {
            r->at++;
        } else {
            return;
        }
    }
}

/* ---- rules by name ---- */

/* The rule of a name, created if unknown. -1: no room. */
static int32_t find_rule(struct gbnf_reader *r, const char *name, size_t n)
{
    struct syntax *s = r->out;
    uint64_t key = hash64(0, name, n), at = key;
    int32_t rule;
    while ((rule = key_map_next(&r->rules, key, &at)) >= 0) {
        const char *known = s->rules[rule].name;
        syntax_spend(s, 1 + n / 64);
        if (strncmp(known, name, n) == 0 && known[n] == '\0')
            return rule;
    }
    rule = syntax_add_rule(s, name, n);
    if (rule < 0)
        return -1;
    find_line(r, name, &s->rules[rule].line, &s->rules[rule].column);
    return key_map_add(&r->rules, key, rule) ? rule : syntax_no_memory(s);
}

/* ---- characters ---- */

static bool read_hex(struct gbnf_reader *r, const char *begin, int n_digits, uint32_t *code)
{
    if (!hex_read(r->at, (size_t)(r->end - r->at), n_digits, code)) {
        gbnf_fail(r, begin,
                  n_digits == 2   ? "\\x must be followed by 2 hexadecimal digits"
                  : n_digits == 4 ? "\\u must be followed by 4 hexadecimal digits"
                                  : "\\U must be followed by 8 hexadecimal digits");
        return false;
    }
    r->at += n_digits;
    if (*code <= MAX_CODE_POINT && !(*code >= 0xD800 && *code <= 0xDFFF))
        return true;
    gbnf_fail(r, begin, "this is no Unicode character: U+D800 to U+DFFF and above U+10FFFF are none");
    return false;
}

/* One character of a literal or a class, escaped or not. */
static bool read_char(struct gbnf_reader *r, uint32_t *code)
{
    const char *begin = r->at;
    if (*begin != '\\') {
        int n = utf8_decode(begin, (size_t)(r->end - begin), code);
        if (n == 0) {
            gbnf_fail(r, begin, "the text is not valid UTF-8");
            return false;
        }
        r->at += n;
        return true;
    }
    static const char ESCAPED[] = "trn\\\"[]-", MEANT[] = "\t\r\n\\\"[]-";
    char c = r->end - begin > 1 ? begin[1] : '\0';
    const char *at = c ? strchr(ESCAPED, c) : NULL;
    if (!at && c != 'x' && c != 'u' && c != 'U') {
        gbnf_fail(r, begin, "unknown escape; known are \\x \\u \\U \\t \\r \\n \\\\ \\\" \\[ \\] \\-");
        return false;
    }
    r->at += 2;
    if (!at)
        return read_hex(r, begin, c == 'x' ? 2 : c == 'u' ? 4 : 8, code);
    *code = (uint32_t)MEANT[at - ESCAPED];
    return true;
}

static int32_t read_literal(struct gbnf_reader *r)
{
    const char *begin = r->at++;
    struct buf bytes = { 0 };
    int32_t node = -1;
    while (r->at < r->end && *r->at != '"') {
        uint32_t code;
        char c[4];
        if (!read_char(r, &code))
            goto done;
        if (!buf_add(&bytes, c, (size_t)utf8_encode(code, c))) {
            syntax_no_memory(r->out);
            goto done;
        }
    }
    if (r->at == r->end) {
        gbnf_fail(r, begin, "this string has no closing \"");
        goto done;
    }
    r->at++;
    node = syntax_bytes(r->out, bytes.bytes, bytes.n_bytes);
done:
    buf_clear(&bytes);
    return node;
}

/* "[a-z_]" or "[^a-z_]". */
static int32_t read_class(struct gbnf_reader *r)
{
    const char *begin = r->at++;
    struct char_range *ranges = NULL, *inverse;
    size_t n = 0, room = 0;
    int32_t node = -1;
    bool is_negated = is_next(r, '^');
    r->at += is_negated;
    while (r->at < r->end && *r->at != ']') {
        struct char_range range;
        const char *first = r->at;
        if (!read_char(r, &range.low))
            goto done;
        range.high = range.low;
        if (is_next(r, '-') && r->end - r->at > 1 && r->at[1] != ']') {
            r->at++;
            if (!read_char(r, &range.high))
                goto done;
        }
        if (range.high < range.low) {
            gbnf_fail(r, first, "the range ends before it begins");
            goto done;
        }
        if (!array_grow(&ranges, n, &room, sizeof *ranges)) {
            syntax_no_memory(r->out);
            goto done;
        }
        ranges[n++] = range;
    }
    if (r->at == r->end) {
        gbnf_fail(r, begin, "this class has no closing ]");
        goto done;
    }
    r->at++;
    n = ranges_normalize(ranges, n);
    inverse = is_negated ? malloc((n + 1) * sizeof *inverse) : NULL;
    if (is_negated && !inverse) {
        syntax_no_memory(r->out);
        goto done;
    }
    if (is_negated)
        n = ranges_invert(ranges, n, inverse);
    node = syntax_chars(r->out, is_negated ? inverse : ranges, n);
    free(inverse);
done:
    free(ranges);
    return node;
}

/* ---- expressions ---- */

static int32_t gbnf_read_choice(struct gbnf_reader *r);

static int32_t read_group(struct gbnf_reader *r)
{
    const char *begin = r->at++;
    if (++r->depth > LIMIT_GRAMMAR_NESTING)
        return gbnf_fail(r, begin, "parentheses nest deeper than 64");
    skip(r, true);
    int32_t node = gbnf_read_choice(r);
    if (r->status != TUTTI_OK)
        return -1;
    if (!is_next(r, ')'))
        return gbnf_fail(r, begin, "this ( has no closing )");
    r->at++;
    r->depth--;
    return node;
}

static int32_t read_reference(struct gbnf_reader *r)
{
    const char *name = r->at;
    while (r->at < r->end && is_word(*r->at))
        r->at++;
    int32_t rule = find_rule(r, name, (size_t)(r->at - name));
    return rule < 0 ? -1 : syntax_rule(r->out, rule);
}

/* The next part of a sequence. *is_end: no further part. */
static int32_t read_sequence_part(struct gbnf_reader *r, bool *is_end)
{
    char c = r->at < r->end ? *r->at : '\0';
    *is_end = false;
    if (c == '"')
        return read_literal(r);
    if (c == '[')
        return read_class(r);
    if (c == '(')
        return read_group(r);
    if (c == '.') {
        r->at++;
        return syntax_chars(r->out, &(struct char_range){ 0, MAX_CODE_POINT }, 1);
    }
    if (is_word(c))
        return read_reference(r);
    if (c == '<' || c == '!')
        return gbnf_fail(r, r->at, "tokens (<...>) are not supported, only text");
    if (c == '*' || c == '+' || c == '?' || c == '{')
        return gbnf_fail(r, r->at, "there is nothing in front of this to be repeated");
    *is_end = true;
    return -1;
}

/* A number of {m,n}. */
static bool read_count(struct gbnf_reader *r, int32_t *out)
{
    const char *begin = r->at;
    int32_t value = 0;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9') {
        value = value * 10 + (*r->at++ - '0');
        if (value > LIMIT_GRAMMAR_REPEAT) {
            gbnf_fail(r, begin, "repetitions must be at most 65536");
            return false;
        }
    }
    if (r->at == begin)
        gbnf_fail(r, begin, "expected a number");
    *out = value;
    return r->at > begin;
}

static bool read_counts(struct gbnf_reader *r, int32_t *min, int32_t *max)
{
    const char *begin = r->at++;
    skip(r, true);
    if (!read_count(r, min))
        return false;
    *max = *min;
    skip(r, true);
    if (is_next(r, ',')) {
        r->at++;
        skip(r, true);
        *max = REPEAT_FOREVER;
        if (!is_next(r, '}') && !read_count(r, max))
            return false;
        skip(r, true);
    }
    if (!is_next(r, '}')) {
        gbnf_fail(r, begin, "this { has no closing }");
        return false;
    }
    r->at++;
    if (*max != REPEAT_FOREVER && *max < *min) {
        gbnf_fail(r, begin, "the largest number of repetitions is below the smallest");
        return false;
    }
    return true;
}

static int32_t read_postfix(struct gbnf_reader *r, int32_t node)
{
    while (r->at < r->end && r->status == TUTTI_OK) {
        int32_t min, max;
        if (syntax_repeat_sign(*r->at, &min, &max))
            r->at++;
        else if (*r->at != '{')
            return node;
        else if (!read_counts(r, &min, &max))
            return -1;
        node = syntax_repeat(r->out, node, min, max);
        skip(r, r->depth > 0);
    }
    return node;
}

static int32_t read_sequence(struct gbnf_reader *r)
{
    struct ids parts = { 0 };
    int32_t node = -1;
    for (;;) {
        bool is_end;
        int32_t part = read_sequence_part(r, &is_end);
        if (is_end)
            break;
        skip(r, r->depth > 0);
        if (r->status == TUTTI_OK)
            part = read_postfix(r, part);
        if (r->status != TUTTI_OK || r->out->is_full)
            goto done;
        if (!ids_add(&parts, part)) {
            syntax_no_memory(r->out);
            goto done;
        }
    }
    node = syntax_seq(r->out, parts.ids, parts.n);
done:
    ids_clear(&parts);
    return node;
}

static int32_t gbnf_read_choice(struct gbnf_reader *r)
{
    struct ids ways = { 0 };
    int32_t node = -1;
    for (;;) {
        int32_t way = read_sequence(r);
        if (r->status != TUTTI_OK || r->out->is_full)
            goto done;
        if (!ids_add(&ways, way)) {
            syntax_no_memory(r->out);
            goto done;
        }
        if (!is_next(r, '|'))
            break;
        r->at++;
        skip(r, true);
    }
    node = syntax_choice(r->out, ways.ids, ways.n);
done:
    ids_clear(&ways);
    return node;
}

/* ---- rules ---- */

static void read_rule(struct gbnf_reader *r)
{
    const char *name = r->at;
    while (r->at < r->end && is_word(*r->at))
        r->at++;
    size_t n = (size_t)(r->at - name);
    if (n == 0) {
        gbnf_fail(r, name, "expected the name of a rule");
        return;
    }
    int32_t rule = find_rule(r, name, n);
    if (rule < 0)
        return;
    if (r->out->rules[rule].node >= 0) {
        gbnf_fail(r, name, "this rule was defined before");
        return;
    }
    skip(r, false);
    if (r->end - r->at < 3 || memcmp(r->at, "::=", 3) != 0) {
        gbnf_fail(r, r->at, "expected ::=");
        return;
    }
    r->at += 3;
    skip(r, true);
    int32_t node = gbnf_read_choice(r);
    if (r->status != TUTTI_OK || r->out->is_full)
        return;
    if (r->at < r->end && *r->at != '\n' && *r->at != '\r') {
        gbnf_fail(r, r->at, "this does not belong here: a rule ends with its line");
        return;
    }
    syntax_define(r->out, rule, node);
    skip(r, true);
}

static void check_rules(struct gbnf_reader *r)
{
    struct syntax *s = r->out;
    for (size_t i = 0; i < s->n_rules; i++) {
        const struct rule *rule = &s->rules[i];
        if (rule->node < 0) {
            r->status = error_set_param(r->err, TUTTI_E_ARGUMENT, "grammar",
                                        "grammar: line %d, column %d: there is no rule \"%.64s\"", rule->line,
                                        rule->column, rule->name);
            return;
        }
    }
    size_t n_before = s->n_rules;
    s->root = find_rule(r, "root", 4);
    if (!s->is_full && (s->n_rules > n_before || s->root < 0))
        r->status = error_set_param(r->err, TUTTI_E_ARGUMENT, "grammar",
                                    "grammar: there is no rule \"root\", with which every text begins");
}

enum tutti_status gbnf_read(struct syntax *out, const char *text, size_t n_bytes, struct tutti_error *err)
{
    struct gbnf_reader r = { .out = out, .text = text, .at = text, .end = text + n_bytes, .err = err };
    syntax_spend(out, n_bytes);
    skip(&r, true);
    while (r.at < r.end && r.status == TUTTI_OK && !out->is_full)
        read_rule(&r);
    if (r.status == TUTTI_OK)
        r.status = syntax_check(out, err);
    if (r.status == TUTTI_OK)
        check_rules(&r);
    if (r.status == TUTTI_OK)
        r.status = syntax_check(out, err);
    key_map_clear(&r.rules);
    return r.status;
}
