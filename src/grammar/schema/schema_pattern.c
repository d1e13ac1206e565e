/* Compiles regular expressions of ECMA-262, without irregular features: no assertions except ^
 * and $ at the ends, no back-references. \d \w \s are ASCII, and so are their complements, so
 * that all dialects agree. */
#include "grammar/schema/schema_reader.h"

#include "base/ids.h"
#include "base/text.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CLASS_RANGES = 128, MAX_PATTERN_DEPTH = 32 };

struct part {
    int32_t node, min, max; /* length in characters */
};

struct schema_pattern {
    struct schema_reader *r;
    const char *at, *end;
    int depth;
};

struct char_class {
    struct char_range ranges[MAX_CLASS_RANGES];
    size_t n;
};

/* \d, \w and \s. The capital letters mean the other characters. */
static const struct named_class {
    char letter;
    size_t n;
    struct char_range ranges[4];
} NAMED_CLASSES[] = { { 'd', 1, { { '0', '9' } } },
                      { 'w', 4, { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' } } },
                      { 's', 2, { { '\t', '\r' }, { ' ', ' ' } } } };

static int32_t add_lengths(int32_t a, int32_t b)
{
    int32_t sum;
    if (a == REPEAT_FOREVER || b == REPEAT_FOREVER)
        return REPEAT_FOREVER;
    return __builtin_add_overflow(a, b, &sum) ? INT32_MAX : sum;
}

static int32_t times(int32_t a, int32_t n)
{
    int32_t product;
    if (a == 0 || n == 0)
        return 0;
    if (a == REPEAT_FOREVER || n == REPEAT_FOREVER)
        return REPEAT_FOREVER;
    return __builtin_mul_overflow(a, n, &product) ? INT32_MAX : product;
}

static bool is_next(const struct schema_pattern *p, char c)
{
    return p->at < p->end && *p->at == c;
}

static void add_ranges(struct schema_pattern *p, struct char_class *to, const struct char_range *ranges,
                       size_t n)
{
    if (to->n + n > MAX_CLASS_RANGES) {
        schema_fail(p->r, "pattern: a class of more than %d ranges", MAX_CLASS_RANGES);
        return;
    }
    memcpy(to->ranges + to->n, ranges, n * sizeof *ranges);
    to->n += n;
}

/* Adds the ASCII characters from the space on that are not in the ranges. */
static void add_others(struct schema_pattern *p, struct char_class *to, const struct char_range *ranges,
                       size_t n)
{
    for (uint32_t c = ' '; c <= '~'; c++) {
        bool is_in = false;
        for (size_t i = 0; i < n; i++)
            is_in |= c >= ranges[i].low && c <= ranges[i].high;
        if (!is_in)
            add_ranges(p, to, &(struct char_range){ c, c }, 1);
    }
    to->n = ranges_normalize(to->ranges, to->n);
}

/* \d and its like. False: the letter is none of them. */
static bool add_named_class(struct schema_pattern *p, char letter, struct char_class *to)
{
    for (size_t i = 0; i < sizeof NAMED_CLASSES / sizeof *NAMED_CLASSES; i++) {
        const struct named_class *named = &NAMED_CLASSES[i];
        if (letter != named->letter && letter != named->letter - 'a' + 'A')
            continue;
        if (letter == named->letter)
            add_ranges(p, to, named->ranges, named->n);
        else
            add_others(p, to, named->ranges, named->n);
        return true;
    }
    return false;
}

static uint32_t read_hex(struct schema_pattern *p, int n_digits)
{
    uint32_t code = 0;
    if (hex_read(p->at, (size_t)(p->end - p->at), n_digits, &code))
        p->at += n_digits;
    else
        schema_fail(p->r, "pattern: an escape needs %d hexadecimal digits", n_digits);
    return code;
}

static uint32_t read_unicode_escape(struct schema_pattern *p)
{
    if (!is_next(p, '{')) {
        uint32_t code = read_hex(p, 4);
        if (code >= 0xD800 && code <= 0xDBFF && p->end - p->at >= 6 && p->at[0] == '\\' && p->at[1] == 'u') {
            p->at += 2;
            return 0x10000 + ((code - 0xD800) << 10) + ((read_hex(p, 4) - 0xDC00) & 0x3FF);
        }
        return code;
    }
    const char *close = memchr(p->at, '}', (size_t)(p->end - p->at));
    p->at++;
    uint32_t code = close && close - p->at >= 1 && close - p->at <= 6 ? read_hex(p, (int)(close - p->at))
                                                                      : MAX_CODE_POINT + 1;
    if (code > MAX_CODE_POINT)
        schema_fail(p->r, "pattern: \\u{...} names no character");
    p->at++;
    return code;
}

/* The character of an escape, after the backslash. */
static uint32_t read_escape(struct schema_pattern *p)
{
    static const char ESCAPED[] = "tnrfv0", MEANT[] = "\t\n\r\f\v";
    char c = *p->at++;
    const char *at = c ? strchr(ESCAPED, c) : NULL;
    if (at)
        return (uint8_t)MEANT[at - ESCAPED];
    if (c == 'x')
        return read_hex(p, 2);
    if (c == 'u')
        return read_unicode_escape(p);
    bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9') || (c & 0x80);
    if (is_letter)
        schema_fail(p->r, "pattern: \\%c is not supported", (c & 0x80) ? '?' : c);
    return (uint8_t)c;
}

/* One literal character. */
static uint32_t pattern_read_plain(struct schema_pattern *p)
{
    size_t n;
    int32_t code = utf8_code_at(p->at, (size_t)(p->end - p->at), &n);
    uint32_t plain = code >= 0 ? (uint32_t)code : (uint8_t)*p->at;
    p->at += n;
    return plain;
}

static struct part chars(struct schema_pattern *p, const struct char_range *ranges, size_t n)
{
    return (struct part){ schema_chars(p->r, ranges, n), 1, 1 };
}

/* One end of a range in a class, or a named class: then *is_named. */
static uint32_t read_class_char(struct schema_pattern *p, struct char_class *into, bool *is_named)
{
    *is_named = false;
    if (!is_next(p, '\\'))
        return pattern_read_plain(p);
    p->at++;
    if (p->at == p->end) {
        schema_fail(p->r, "pattern: it ends with a backslash");
        return 0;
    }
    if (is_next(p, 'b')) {
        p->at++;
        return '\b';
    }
    *is_named = add_named_class(p, *p->at, into);
    if (*is_named) {
        p->at++;
        return 0;
    }
    return read_escape(p);
}

static struct part read_class(struct schema_pattern *p)
{
    struct char_class own = { .n = 0 }, inverse;
    bool is_named, is_negated;
    p->at++;
    is_negated = is_next(p, '^');
    p->at += is_negated;
    while (p->at < p->end && *p->at != ']' && p->r->status == TUTTI_OK) {
        struct char_range range;
        range.low = range.high = read_class_char(p, &own, &is_named);
        if (is_named)
            continue;
        if (is_next(p, '-') && p->end - p->at > 1 && p->at[1] != ']') {
            p->at++;
            range.high = read_class_char(p, &own, &is_named);
            if (is_named || range.high < range.low)
                schema_fail(p->r, "pattern: a range of a class ends before it begins");
        }
        add_ranges(p, &own, &range, 1);
    }
    if (p->at >= p->end)
        schema_fail(p->r, "pattern: a class has no closing ]");
    if (p->r->status != TUTTI_OK)
        return (struct part){ -1, 0, 0 };
    p->at++;
    own.n = ranges_normalize(own.ranges, own.n);
    if (!is_negated)
        return chars(p, own.ranges, own.n);
    if (own.n + 1 > MAX_CLASS_RANGES) {
        schema_fail(p->r, "pattern: a class of more than %d ranges", MAX_CLASS_RANGES);
        return (struct part){ -1, 0, 0 };
    }
    inverse.n = ranges_invert(own.ranges, own.n, inverse.ranges);
    return chars(p, inverse.ranges, inverse.n);
}

static struct part pattern_read_choice(struct schema_pattern *p);

static struct part read_group(struct schema_pattern *p)
{
    struct part none = { -1, 0, 0 };
    p->at++;
    if (++p->depth > MAX_PATTERN_DEPTH) {
        schema_fail(p->r, "pattern: groups nest deeper than %d", MAX_PATTERN_DEPTH);
        return none;
    }
    if (is_next(p, '?')) {
        const char *rest = p->at + 1;
        size_t n = (size_t)(p->end - rest);
        if (n > 0 && *rest == ':') {
            p->at += 2;
        } else if (n > 1 && *rest == '<' && rest[1] != '=' && rest[1] != '!' && memchr(rest, '>', n)) {
            p->at = (const char *)memchr(rest, '>', n) + 1;
        } else {
            schema_fail(p->r, "pattern: (?...) is not supported, only (?:...)");
            return none;
        }
    }
    struct part inside = pattern_read_choice(p);
    if (!is_next(p, ')')) {
        schema_fail(p->r, "pattern: a ( has no closing )");
        return none;
    }
    p->at++;
    p->depth--;
    return inside;
}

static struct part read_atom(struct schema_pattern *p)
{
    static const struct char_range DOT[] = {
        { 0, '\n' - 1 }, { '\n' + 1, '\r' - 1 }, { '\r' + 1, 0x2027 }, { 0x202A, MAX_CODE_POINT }
    };
    struct char_class named = { .n = 0 };
    uint32_t code;
    switch (*p->at) {
    case '(':
        return read_group(p);
    case '[':
        return read_class(p);
    case '.':
        p->at++;
        return chars(p, DOT, 4);
    case '^':
    case '$':
        schema_fail(p->r, "pattern: %c is only supported at the ends", *p->at);
        return (struct part){ -1, 0, 0 };
    case '*':
    case '+':
    case '?':
    case '{':
        schema_fail(p->r, "pattern: there is nothing to be repeated in front of %c", *p->at);
        return (struct part){ -1, 0, 0 };
    case '\\':
        p->at++;
        if (p->at == p->end) {
            schema_fail(p->r, "pattern: it ends with a backslash");
            return (struct part){ -1, 0, 0 };
        }
        if (add_named_class(p, *p->at, &named)) {
            p->at++;
            return chars(p, named.ranges, named.n);
        }
        code = read_escape(p);
        break;
    default:
        code = pattern_read_plain(p);
        break;
    }
    return chars(p, &(struct char_range){ code, code }, 1);
}

static int32_t pattern_read_number(struct schema_pattern *p)
{
    int32_t value = 0;
    const char *begin = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9' && value <= LIMIT_GRAMMAR_REPEAT)
        value = value * 10 + (*p->at++ - '0');
    if (p->at == begin || value > LIMIT_GRAMMAR_REPEAT)
        schema_fail(p->r, "pattern: {m,n} needs numbers of at most %d", LIMIT_GRAMMAR_REPEAT);
    return value;
}

static struct part repeat(struct schema_pattern *p, struct part part, int32_t min, int32_t max)
{
    return (struct part){ syntax_repeat(p->r->out, part.node, min, max), times(part.min, min),
                          times(part.max, max) };
}

static struct part read_postfix(struct schema_pattern *p, struct part part)
{
    int32_t min, max;
    if (p->r->status != TUTTI_OK || p->at == p->end)
        return part;
    if (*p->at == '{') {
        p->at++;
        min = max = pattern_read_number(p);
        if (is_next(p, ',')) {
            p->at++;
            max = is_next(p, '}') ? REPEAT_FOREVER : pattern_read_number(p);
        }
        if (!is_next(p, '}') || (max != REPEAT_FOREVER && max < min)) {
            schema_fail(p->r, "pattern: {m,n} is not well-formed");
            return part;
        }
    } else if (!syntax_repeat_sign(*p->at, &min, &max)) {
        return part;
    }
    p->at++;
    if (is_next(p, '?')) /* lazy: matches the same texts */
        p->at++;
    return repeat(p, part, min, max);
}

/* Any text, around a pattern that is not anchored. */
static struct part filler(struct schema_pattern *p)
{
    struct part any = chars(p, &(struct char_range){ 0, MAX_CODE_POINT }, 1);
    return repeat(p, any, 0, REPEAT_FOREVER);
}

/* One alternative. is_outer: anchors are allowed at its ends; fills: without anchors, other text
 * is allowed there. */
static struct part read_sequence(struct schema_pattern *p, bool is_outer, bool fills)
{
    struct ids nodes = { 0 };
    struct part all = { -1, 0, 0 }, next;
    bool is_open = true, ok = true, begins = false;
    if (is_outer && is_next(p, '^')) {
        p->at++;
        begins = true;
    }
    if (is_outer && !begins && fills) {
        next = filler(p);
        ok = ids_add(&nodes, next.node);
        all.max = REPEAT_FOREVER;
    }
    while (ok && p->at < p->end && *p->at != '|' && *p->at != ')' && p->r->status == TUTTI_OK) {
        bool is_last = p->end - p->at == 1 || p->at[1] == '|';
        if (is_outer && *p->at == '$' && is_last) {
            p->at++;
            is_open = false;
            break;
        }
        next = read_postfix(p, read_atom(p));
        ok = ids_add(&nodes, next.node);
        all.min = add_lengths(all.min, next.min);
        all.max = add_lengths(all.max, next.max);
    }
    if (is_outer && is_open && fills && ok && p->r->status == TUTTI_OK) {
        ok = ids_add(&nodes, filler(p).node);
        all.max = REPEAT_FOREVER;
    }
    if (!ok)
        schema_no_memory(p->r);
    else if (p->r->status == TUTTI_OK)
        all.node = syntax_seq(p->r->out, nodes.ids, nodes.n);
    ids_clear(&nodes);
    return all;
}

static struct part read_ways(struct schema_pattern *p, bool is_outer, bool fills)
{
    struct ids nodes = { 0 };
    struct part all = { -1, INT32_MAX, 0 };
    bool ok = true;
    for (;;) {
        struct part way = read_sequence(p, is_outer, fills);
        all.min = way.min < all.min ? way.min : all.min;
        if (all.max != REPEAT_FOREVER && (way.max == REPEAT_FOREVER || way.max > all.max))
            all.max = way.max;
        ok = ok && ids_add(&nodes, way.node);
        if (!ok || p->r->status != TUTTI_OK || !is_next(p, '|'))
            break;
        p->at++;
    }
    if (!ok)
        schema_no_memory(p->r);
    else if (p->r->status == TUTTI_OK)
        all.node = syntax_choice(p->r->out, nodes.ids, nodes.n);
    ids_clear(&nodes);
    return all;
}

static struct part pattern_read_choice(struct schema_pattern *p)
{
    return read_ways(p, false, false);
}

int32_t schema_pattern(struct schema_reader *r, const char *text, size_t n_bytes, bool fills, int32_t *min,
                       int32_t *max)
{
    struct schema_pattern p = { .r = r, .at = text, .end = text + n_bytes };
    struct part all = read_ways(&p, true, fills);
    if (r->status == TUTTI_OK && p.at < p.end)
        schema_fail(r, "pattern: a ) has no opening (");
    *min = all.min;
    *max = all.max;
    return r->status == TUTTI_OK ? all.node : -1;
}

int32_t schema_raw(struct schema_reader *r, const char *pattern, int32_t *node)
{
    int32_t min, max;
    bool was_raw = r->is_raw;
    r->is_raw = true;
    if (*node < 0)
        *node = schema_pattern(r, pattern, strlen(pattern), false, &min, &max);
    r->is_raw = was_raw;
    return *node;
}
