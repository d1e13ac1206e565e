/* Reads regular expressions of ECMA-262, without what is not regular: no back-references, and no
 * lookbehind. Dialects differ in \s, \D, \W and \S: what a text must match takes the characters that
 * all dialects agree on (ASCII), and what it must not match takes the characters of any dialect. */
#include "grammar/schema/schema_reader.h"
#include "grammar/schema/schema_unicode.h"

#include "base/ids.h"
#include "base/text.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_CLASS_RANGES = 2048, MAX_PATTERN_DEPTH = 32 };

/* How a pattern is used: the text must match it, or must not. */
enum { SIDE_MATCH, SIDE_REFUSE, N_SIDES };

struct pattern_part {
    enum pattern_kind {
        PART_CHARS, /* terms */
        PART_SEQUENCE,
        PART_CHOICE,
        PART_REPEAT, /* of one child: min, max */
        PART_BEGIN,  /* ^ */
        PART_END,    /* $ */
        PART_LOOK,   /* (?=...), of one child */
        PART_LOOK_NOT,
    } kind;
    bool asserts, begins;      /* has a part that looks around; has PART_BEGIN */
    int32_t shortest, longest; /* REPEAT_FOREVER */
    int32_t first, n;          /* in children */
    int32_t min, max;
    int32_t terms[N_SIDES];
};

struct char_class {
    struct char_range ranges[MAX_CLASS_RANGES];
    size_t n;
};

/* The characters of a class that all dialects agree on, and those of any dialect. */
struct class_sides {
    struct char_class sides[N_SIDES];
};

struct schema_pattern {
    struct schema_reader *r;
    const char *at, *end;
    int depth;
    struct pattern_part *parts;
    struct ids children;
    size_t n_parts, parts_room;
    struct class_sides *class; /* the one that is read: too large for the frames of functions that recurse */
};

static const struct char_range WORD_CHARS[] = { { '0', '9' }, { 'A', 'Z' }, { '_', '_' }, { 'a', 'z' } };
static const struct char_range SPACES[] = { { '\t', '\r' }, { ' ', ' ' } };
static const struct char_range ALL_SPACES[] = { { '\t', '\r' },     { 0x1C, ' ' },      { 0x85, 0x85 },
                                                { 0xA0, 0xA0 },     { 0x1680, 0x1680 }, { 0x2000, 0x200A },
                                                { 0x2028, 0x2029 }, { 0x202F, 0x202F }, { 0x205F, 0x205F },
                                                { 0x3000, 0x3000 }, { 0xFEFF, 0xFEFF } };
static const struct char_range DIGITS[] = { { '0', '9' } };
static const struct char_range PRINTABLE = { ' ', '~' };

/* \d, \w and \s. The capital letters mean the other characters. */
#define RANGES(LIST) LIST, sizeof(LIST) / sizeof *(LIST)
static const struct named_class {
    char letter;
    struct named_side {
        const struct char_range *ranges;
        size_t n;
    } sides[N_SIDES];
} NAMED_CLASSES[] = { { 'd', { { RANGES(DIGITS) }, { RANGES(DIGITS) } } },
                      { 'w', { { RANGES(WORD_CHARS) }, { RANGES(WORD_CHARS) } } },
                      { 's', { { RANGES(SPACES) }, { RANGES(ALL_SPACES) } } } };

static bool is_next(const struct schema_pattern *p, char c)
{
    return p->at < p->end && *p->at == c;
}

static bool is_next_but_one(const struct schema_pattern *p, char c)
{
    return p->end - p->at > 1 && p->at[1] == c;
}

/* ---- classes of characters ---- */

static struct class_sides *begin_class(struct schema_pattern *p)
{
    for (int side = 0; side < N_SIDES; side++)
        p->class->sides[side].n = 0;
    return p->class;
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

static void add_to_sides(struct schema_pattern *p, struct class_sides *to, struct char_range range)
{
    for (int side = 0; side < N_SIDES; side++)
        add_ranges(p, &to->sides[side], &range, 1);
}

static void invert_class(struct schema_pattern *p, struct char_class *class)
{
    struct char_range inverse[MAX_CLASS_RANGES + 1];
    class->n = ranges_normalize(class->ranges, class->n);
    size_t n = ranges_invert(class->ranges, class->n, inverse);
    class->n = 0;
    add_ranges(p, class, inverse, n);
}

/* Adds the characters of \D and its like. Those that all dialects agree on are the printable ones of
 * ASCII. */
static void add_others(struct schema_pattern *p, struct class_sides *to, const struct named_class *named)
{
    for (int side = 0; side < N_SIDES; side++) {
        const struct named_side *other = &named->sides[N_SIDES - 1 - side];
        struct char_class own = { .n = 0 };
        struct char_range usable[MAX_CLASS_RANGES];
        size_t n;
        add_ranges(p, &own, other->ranges, other->n);
        invert_class(p, &own);
        if (side == SIDE_REFUSE)
            n = own.n, memcpy(usable, own.ranges, n * sizeof *usable);
        else
            n = ranges_intersect(own.ranges, own.n, &PRINTABLE, 1, usable);
        add_ranges(p, &to->sides[side], usable, n);
    }
}

/* \p{...} and \P{...}, from the letter on. */
static void add_property(struct schema_pattern *p, struct class_sides *to)
{
    struct char_range found[MAX_CLASS_RANGES];
    const char *name = p->at + 2;
    const char *close = is_next_but_one(p, '{') ? memchr(name, '}', (size_t)(p->end - name)) : NULL;
    if (!close) {
        schema_fail(p->r, "pattern: \\%c has no property in braces", *p->at);
        return;
    }
    for (int side = 0; side < N_SIDES && schema_spend(p->r, UNICODE_STEPS); side++) {
        int n = schema_unicode_ranges(name, (size_t)(close - name), *p->at == 'P', side == SIDE_REFUSE, found,
                                      MAX_CLASS_RANGES);
        if (n < 0)
            schema_fail(p->r, "pattern: the property \\%c{%.*s} is not supported", *p->at,
                        close - name > 40 ? 40 : (int)(close - name), name);
        else
            add_ranges(p, &to->sides[side], found, (size_t)n);
    }
    p->at = close;
}

/* \d and its like, from the letter on; p->at is left at the last character. False: the letter is none of
 * them. */
static bool add_named_class(struct schema_pattern *p, struct class_sides *to)
{
    char letter = *p->at;
    if (letter == 'p' || letter == 'P') {
        add_property(p, to);
        return true;
    }
    for (size_t i = 0; i < sizeof NAMED_CLASSES / sizeof *NAMED_CLASSES; i++) {
        const struct named_class *named = &NAMED_CLASSES[i];
        if (letter == named->letter - 'a' + 'A') {
            add_others(p, to, named);
            return true;
        }
        for (int side = 0; letter == named->letter && side < N_SIDES; side++)
            add_ranges(p, &to->sides[side], named->sides[side].ranges, named->sides[side].n);
        if (letter == named->letter)
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

/* ---- parts ---- */

static struct pattern_part *part_at(const struct schema_pattern *p, int32_t part)
{
    return &p->parts[part];
}

static int32_t add_lengths(int32_t a, int32_t b)
{
    int32_t sum;
    if (a == REPEAT_FOREVER || b == REPEAT_FOREVER)
        return REPEAT_FOREVER;
    return __builtin_add_overflow(a, b, &sum) ? INT32_MAX : sum;
}

/* Adds a part and its children. Returns its number; -1: error. */
static int32_t add_part(struct schema_pattern *p, struct pattern_part part, const int32_t *children, size_t n)
{
    if (!schema_spend(p->r, 1) ||
        !schema_grow(p->r, &p->parts, &p->parts_room, p->n_parts + 1, sizeof *p->parts) ||
        !schema_take_bytes(p->r, n * sizeof *children))
        return -1;
    part.asserts = part.kind >= PART_BEGIN;
    part.begins = part.kind == PART_BEGIN;
    part.first = (int32_t)p->children.n;
    part.n = (int32_t)n;
    for (size_t i = 0; i < n; i++) {
        const struct pattern_part *child = part_at(p, children[i]);
        part.asserts = part.asserts || child->asserts;
        part.begins = part.begins || child->begins;
        bool is_choice = part.kind == PART_CHOICE;
        part.shortest = !is_choice ? add_lengths(part.shortest, child->shortest)
                        : i == 0 || child->shortest < part.shortest ? child->shortest
                                                                    : part.shortest;
        part.longest = !is_choice ? add_lengths(part.longest, child->longest)
                       : part.longest == REPEAT_FOREVER || child->longest == REPEAT_FOREVER ? REPEAT_FOREVER
                       : child->longest > part.longest                                      ? child->longest
                                                                                            : part.longest;
    }
    if (part.kind == PART_LOOK || part.kind == PART_LOOK_NOT)
        part.shortest = part.longest = 0;
    if (part.kind == PART_REPEAT) {
        part.shortest = part.min > 0 && part.shortest > 0 ? 1 : 0;
        part.longest = part.longest == 0 || part.max == 0 ? 0 : REPEAT_FOREVER;
    }
    if (n > 0 && !ids_add_all(&p->children, children, n))
        return schema_no_memory(p->r);
    p->parts[p->n_parts] = part;
    return (int32_t)p->n_parts++;
}

static int32_t add_chars(struct schema_pattern *p, const struct class_sides *class)
{
    struct pattern_part part = { .kind = PART_CHARS, .shortest = 1, .longest = 1 };
    if (p->r->status != TUTTI_OK)
        return -1;
    for (int side = 0; side < N_SIDES; side++) {
        part.terms[side] = regex_chars(p->r, class->sides[side].ranges, class->sides[side].n);
        if (part.terms[side] < 0)
            return -1;
    }
    return add_part(p, part, NULL, 0);
}

static int32_t add_char(struct schema_pattern *p, uint32_t code)
{
    struct pattern_part part = { .kind = PART_CHARS, .shortest = 1, .longest = 1 };
    part.terms[SIDE_MATCH] = part.terms[SIDE_REFUSE] = regex_chars(p->r, &(struct char_range){ code, code },
                                                                   1);
    return part.terms[SIDE_MATCH] < 0 ? -1 : add_part(p, part, NULL, 0);
}

/* One end of a range in a class, or a named class: then *is_named. */
static uint32_t read_class_char(struct schema_pattern *p, struct class_sides *into, bool *is_named)
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
    *is_named = add_named_class(p, into);
    if (*is_named) {
        p->at++;
        return 0;
    }
    return read_escape(p);
}

static int32_t read_class(struct schema_pattern *p)
{
    struct class_sides *own = begin_class(p);
    bool is_named, is_negated;
    p->at++;
    is_negated = is_next(p, '^');
    p->at += is_negated;
    while (p->at < p->end && *p->at != ']' && p->r->status == TUTTI_OK) {
        struct char_range range;
        range.low = range.high = read_class_char(p, own, &is_named);
        if (is_named)
            continue;
        if (is_next(p, '-') && p->end - p->at > 1 && !is_next_but_one(p, ']')) {
            p->at++;
            range.high = read_class_char(p, own, &is_named);
            if (is_named) { /* the hyphen itself */
                add_to_sides(p, own, (struct char_range){ '-', '-' });
                range.high = range.low;
            }
            if (range.high < range.low)
                schema_fail(p->r, "pattern: a range of a class ends before it begins");
        }
        add_to_sides(p, own, range);
    }
    if (p->at >= p->end)
        schema_fail(p->r, "pattern: a class has no closing ]");
    if (p->r->status != TUTTI_OK)
        return -1;
    p->at++;
    if (is_negated) {
        struct char_class match = own->sides[SIDE_MATCH];
        own->sides[SIDE_MATCH] = own->sides[SIDE_REFUSE];
        own->sides[SIDE_REFUSE] = match;
        invert_class(p, &own->sides[SIDE_MATCH]);
        invert_class(p, &own->sides[SIDE_REFUSE]);
    }
    return add_chars(p, own);
}

static int32_t read_ways(struct schema_pattern *p);

/* After "(?": the kind of the group. PART_CHOICE: an ordinary one. False: it is not supported. */
static bool read_group_kind(struct schema_pattern *p, enum pattern_kind *kind)
{
    size_t n = (size_t)(p->end - p->at);
    *kind = PART_CHOICE;
    if (n > 1 && *p->at == '<' && p->at[1] != '=' && p->at[1] != '!' && memchr(p->at, '>', n)) {
        p->at = (const char *)memchr(p->at, '>', n) + 1;
        return true;
    }
    if (n == 0 || !strchr(":=!", *p->at) || !*p->at) {
        schema_fail(p->r,
                    "pattern: (?...) is not supported, only (?:...), (?=...), (?!...) and (?<name>...)");
        return false;
    }
    *kind = *p->at == '=' ? PART_LOOK : *p->at == '!' ? PART_LOOK_NOT : PART_CHOICE;
    p->at++;
    return true;
}

static int32_t read_group(struct schema_pattern *p)
{
    enum pattern_kind kind = PART_CHOICE;
    p->at++;
    if (++p->depth > MAX_PATTERN_DEPTH)
        return schema_fail(p->r, "pattern: groups nest deeper than %d", MAX_PATTERN_DEPTH);
    if (is_next(p, '?')) {
        p->at++;
        if (!read_group_kind(p, &kind))
            return -1;
    }
    int32_t inside = read_ways(p);
    if (!is_next(p, ')'))
        return schema_fail(p->r, "pattern: a ( has no closing )");
    p->at++;
    p->depth--;
    return kind == PART_CHOICE || inside < 0 ? inside
                                             : add_part(p, (struct pattern_part){ .kind = kind }, &inside, 1);
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

/* Whether a count such as {2} begins here; any other { is a character. */
static bool is_count(const struct schema_pattern *p)
{
    return is_next(p, '{') && p->end - p->at > 1 && p->at[1] >= '0' && p->at[1] <= '9';
}

static int32_t read_atom(struct schema_pattern *p)
{
    static const struct char_range DOT[] = {
        { 0, '\n' - 1 }, { '\n' + 1, '\r' - 1 }, { '\r' + 1, 0x2027 }, { 0x202A, MAX_CODE_POINT }
    };
    struct class_sides *class;
    char c = *p->at;
    if (c == '(')
        return read_group(p);
    if (c == '[')
        return read_class(p);
    if (c == '*' || c == '+' || c == '?' || is_count(p))
        return schema_fail(p->r, "pattern: there is nothing to be repeated in front of %c", c);
    if (c == '^' || c == '$') {
        p->at++;
        return add_part(p, (struct pattern_part){ .kind = c == '^' ? PART_BEGIN : PART_END }, NULL, 0);
    }
    if (c == '.') {
        p->at++;
        class = begin_class(p);
        add_ranges(p, &class->sides[SIDE_MATCH], DOT, 4);
        /* In other dialects only a line feed is excluded. */
        add_ranges(p, &class->sides[SIDE_REFUSE],
                   (const struct char_range[]){ { 0, 9 }, { 11, MAX_CODE_POINT } }, 2);
        return add_chars(p, class);
    }
    if (c != '\\')
        return add_char(p, pattern_read_plain(p));
    p->at++;
    if (p->at == p->end)
        return schema_fail(p->r, "pattern: it ends with a backslash");
    class = begin_class(p);
    if (add_named_class(p, class)) {
        p->at++;
        return add_chars(p, class);
    }
    return add_char(p, read_escape(p));
}

static int32_t read_postfix(struct schema_pattern *p, int32_t part)
{
    int32_t min, max;
    if (p->r->status != TUTTI_OK || p->at == p->end)
        return part;
    if (is_count(p)) {
        p->at++;
        min = max = pattern_read_number(p);
        if (is_next(p, ',')) {
            p->at++;
            max = is_next(p, '}') ? REPEAT_FOREVER : pattern_read_number(p);
        }
        if (!is_next(p, '}') || (max != REPEAT_FOREVER && max < min))
            return schema_fail(p->r, "pattern: {m,n} is not well-formed");
    } else if (!syntax_repeat_sign(*p->at, &min, &max)) {
        return part;
    }
    p->at++;
    if (is_next(p, '?')) /* lazy: matches the same texts */
        p->at++;
    return add_part(p, (struct pattern_part){ .kind = PART_REPEAT, .min = min, .max = max }, &part, 1);
}

static int32_t read_sequence(struct schema_pattern *p)
{
    struct ids parts = { 0 };
    int32_t all = -1;
    bool ok = true;
    while (ok && p->at < p->end && *p->at != '|' && *p->at != ')') {
        int32_t next = read_postfix(p, read_atom(p));
        ok = p->r->status == TUTTI_OK && (ids_add(&parts, next) || schema_no_memory(p->r) >= 0);
    }
    if (ok)
        all = parts.n == 1 ? parts.ids[0]
                           : add_part(p, (struct pattern_part){ .kind = PART_SEQUENCE }, parts.ids, parts.n);
    ids_clear(&parts);
    return all;
}

static int32_t read_ways(struct schema_pattern *p)
{
    struct ids ways = { 0 };
    int32_t all = -1;
    bool ok = true;
    for (;;) {
        int32_t way = read_sequence(p);
        ok = way >= 0 && (ids_add(&ways, way) || schema_no_memory(p->r) >= 0);
        if (!ok || !is_next(p, '|'))
            break;
        p->at++;
    }
    if (ok)
        all = ways.n == 1 ? ways.ids[0]
                          : add_part(p, (struct pattern_part){ .kind = PART_CHOICE }, ways.ids, ways.n);
    ids_clear(&ways);
    return all;
}

/* ---- parts as terms ---- */

/* Whether a part is at the start of the text. */
enum at_start { START_NO, START_YES, START_MAYBE };

/* Parts are followed by a term for all that comes later, so that $ and (?=...) can look at it. */
static int32_t part_term(struct schema_pattern *p, int32_t number, int32_t later, int side,
                         enum at_start start);

/* A part without assertions. */
static int32_t plain_term(struct schema_pattern *p, int32_t number, int side)
{
    struct schema_reader *r = p->r;
    struct pattern_part part = *part_at(p, number);
    const int32_t *children = p->children.ids + part.first;
    int32_t term = -1;
    if (!schema_spend(r, 1))
        return -1;
    switch (part.kind) {
    case PART_CHARS:
        return part.terms[side];
    case PART_REPEAT:
        return regex_repeat(r, plain_term(p, children[0], side), part.min, part.max);
    case PART_SEQUENCE:
        term = regex_empty(r);
        for (int32_t i = part.n; i-- > 0 && term >= 0;)
            term = regex_cat(r, plain_term(p, children[i], side), term);
        return term;
    default:
        break;
    }
    struct ids ways = { 0 };
    bool ok = true;
    for (int32_t i = 0; i < part.n && ok; i++)
        ok = ids_add(&ways, plain_term(p, children[i], side));
    term = ok ? regex_or(r, ways.ids, ways.n) : schema_no_memory(r);
    ids_clear(&ways);
    return term;
}

static int32_t sequence_term(struct schema_pattern *p, const struct pattern_part *part, int32_t later,
                             int side, enum at_start start)
{
    enum at_start *starts = calloc((size_t)part->n + 1, sizeof *starts);
    if (!starts)
        return schema_no_memory(p->r);
    for (int32_t i = 0; i < part->n; i++) {
        const struct pattern_part *child = part_at(p, p->children.ids[part->first + i]);
        starts[i] = start;
        start = child->shortest > 0                        ? START_NO
                : child->longest == 0 || start == START_NO ? start
                                                           : START_MAYBE;
    }
    for (int32_t i = part->n; i-- > 0 && later >= 0;)
        later = part_term(p, p->children.ids[part->first + i], later, side, starts[i]);
    free(starts);
    return later;
}

static int32_t repeat_term(struct schema_pattern *p, const struct pattern_part *part, int32_t later, int side,
                           enum at_start start)
{
    enum { MAX_COPIES = 16 };
    int32_t child = p->children.ids[part->first];
    if (part->max == REPEAT_FOREVER || part->max > MAX_COPIES)
        return schema_fail(p->r, "pattern: ^, $, (?=...) and (?!...) cannot be repeated more than %d times",
                           MAX_COPIES);
    for (int32_t i = part->max; i-- > 0 && later >= 0;) {
        int32_t with = part_term(p, child, later, side, i == 0 || start == START_NO ? start : START_MAYBE);
        /* Of the copies that may be missing, the later ones are missing first. */
        later = i < part->min ? with : regex_or(p->r, (int32_t[]){ with, later }, 2);
    }
    return later;
}

static int32_t part_term(struct schema_pattern *p, int32_t number, int32_t later, int side,
                         enum at_start start)
{
    struct schema_reader *r = p->r;
    struct pattern_part part = *part_at(p, number);
    int32_t inside;
    if (later < 0 || !schema_spend(r, 1))
        return -1;
    if (!part.asserts)
        return regex_cat(r, plain_term(p, number, side), later);
    switch (part.kind) {
    case PART_BEGIN:
        if (start == START_MAYBE)
            return schema_fail(r, "pattern: ^ is only supported where no character can come before it");
        return start == START_YES ? later : regex_none(r);
    case PART_END:
        return regex_accepts(r, later, "", 0) ? regex_empty(r) : regex_none(r);
    case PART_LOOK:
        inside = part_term(p, p->children.ids[part.first], regex_any(r), side, start);
        return regex_and(r, (int32_t[]){ inside, later }, 2);
    case PART_LOOK_NOT:
        inside = part_term(p, p->children.ids[part.first], regex_any(r), N_SIDES - 1 - side, start);
        return regex_and(r, (int32_t[]){ regex_not(r, inside), later }, 2);
    case PART_REPEAT:
        return repeat_term(p, &part, later, side, start);
    case PART_SEQUENCE:
        return sequence_term(p, &part, later, side, start);
    default:
        break;
    }
    struct ids ways = { 0 };
    bool ok = true;
    for (int32_t i = 0; i < part.n && ok; i++)
        ok = ids_add(&ways, part_term(p, p->children.ids[part.first + i], later, side, start));
    int32_t term = ok ? regex_or(r, ways.ids, ways.n) : schema_no_memory(r);
    ids_clear(&ways);
    return term;
}

/* Texts that contain a match, or with whole: that are one. */
static int32_t pattern_term(struct schema_pattern *p, int32_t part, bool whole, int side)
{
    struct schema_reader *r = p->r;
    int32_t any = regex_any(r);
    if (part < 0 || any < 0)
        return -1;
    if (whole)
        return part_term(p, part, regex_empty(r), side, START_YES);
    int32_t later = part_term(p, part, any, side, START_NO);
    if (!part_at(p, part)->begins)
        return regex_cat(r, any, later);
    const struct char_range all = { 0, MAX_CODE_POINT };
    int32_t after = regex_cat(r, regex_chars(r, &all, 1), regex_cat(r, any, later));
    return regex_or(r, (int32_t[]){ part_term(p, part, any, side, START_YES), after }, 2);
}

int32_t schema_pattern(struct schema_reader *r, const char *text, size_t n_bytes, bool whole, bool is_refused)
{
    struct class_sides class;
    struct schema_pattern p = { .r = r, .at = text, .end = text + n_bytes, .class = &class };
    int32_t part = read_ways(&p);
    if (r->status == TUTTI_OK && p.at < p.end)
        schema_fail(r, "pattern: a ) has no opening (");
    int32_t term = r->status == TUTTI_OK
                       ? pattern_term(&p, part, whole, is_refused ? SIDE_REFUSE : SIDE_MATCH)
                       : -1;
    free(p.parts);
    ids_clear(&p.children);
    return r->status == TUTTI_OK ? term : -1;
}

int32_t schema_raw(struct schema_reader *r, const char *pattern, int32_t *node)
{
    bool was_raw = r->is_raw;
    r->is_raw = true;
    if (*node < 0)
        *node = regex_node(r, schema_pattern(r, pattern, strlen(pattern), true, false));
    r->is_raw = was_raw;
    return *node;
}
