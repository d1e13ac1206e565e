#include "tokenizer/stages/pattern_read.h"

#include "tokenizer/stages/pattern_class.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

struct reader {
    const char *source;
    size_t n_bytes, at;
    struct pattern_text *out;
    struct class_prober prober;
    const char *why; /* set by the first error */
    bool has_memory;
    int depth;                                /* of groups */
    bool folds_case[PATTERN_MAX_NESTING + 1]; /* [depth] */
};

static bool refuse(struct reader *r, const char *why)
{
    if (!r->why)
        r->why = why;
    return false;
}

static bool remember(struct reader *r, bool has_memory)
{
    r->has_memory &= has_memory;
    return has_memory;
}

static bool put(struct reader *r, const char *bytes, size_t n_bytes)
{
    return remember(r, buf_add(&r->out->exact, bytes, n_bytes) && buf_add(&r->out->plain, bytes, n_bytes));
}

static int peek(const struct reader *r, size_t ahead)
{
    return r->at + ahead < r->n_bytes ? (uint8_t)r->source[r->at + ahead] : -1;
}

static bool starts_with(const struct reader *r, const char *text)
{
    size_t n = strlen(text);
    return r->n_bytes - r->at >= n && memcmp(r->source + r->at, text, n) == 0;
}

static bool copy(struct reader *r, size_t n)
{
    r->at += n;
    return put(r, r->source + r->at - n, n);
}

/* ---- properties ---- */

/* Numbers, punctuation and blanks have no case. */
enum { WITHOUT_CASE = 1 << 8 | 127 << 11 | 7 << 22 };

static bool add_property(struct reader *r, struct char_class *class, const char *name, size_t n_bytes,
                         bool is_negated)
{
    struct property property;
    if (!property_find(&property, name, n_bytes))
        return refuse(r, "a property that is not known");
    if (r->folds_case[r->depth] && (property.script || (property.mask & ~(uint32_t)WITHOUT_CASE)))
        return refuse(r, "a property of letters where case does not count");
    return remember(r, char_class_add_property(class, &r->prober, &property, is_negated));
}

/* \p{NAME}, \P{NAME}, \p{^NAME}. */
static bool read_property(struct reader *r, struct char_class *class)
{
    const char *begin = r->source + r->at, *end = memchr(begin, '}', r->n_bytes - r->at);
    if (peek(r, 2) != '{' || !end)
        return refuse(r, "expected {NAME} after \\p");
    const char *name = begin + 3;
    bool is_negated = begin[1] == 'P';
    if (*name == '^') {
        is_negated = !is_negated;
        name++;
    }
    if (!add_property(r, class, name, (size_t)(end - name), is_negated))
        return false;
    r->at += (size_t)(end + 1 - begin);
    return true;
}

/* Reads a class given by a one-letter escape. */
static bool read_letter(struct reader *r, struct char_class *class, const char *name, bool is_negated)
{
    r->at += 2;
    return add_property(r, class, name, strlen(name), is_negated);
}

/* The class of the escapes sSdDwWpP. Inside brackets Oniguruma's \w has six digits fewer. */
static bool read_class_escape(struct reader *r, struct char_class *class, bool in_brackets)
{
    const char *word = in_brackets ? "word" : "\\w";
    switch (peek(r, 1)) {
    case 's':
        return read_letter(r, class, "space", false);
    case 'S':
        return read_letter(r, class, "space", true);
    case 'd':
        return read_letter(r, class, "digit", false);
    case 'D':
        return read_letter(r, class, "digit", true);
    case 'w':
        return read_letter(r, class, word, false);
    case 'W':
        return read_letter(r, class, word, true);
    default:
        return read_property(r, class);
    }
}

/* ---- characters ---- */

/* Characters are written by code point, so that none is special in PCRE2's classes. */
static bool put_number(struct reader *r, uint32_t c)
{
    char text[16];
    snprintf(text, sizeof text, "\\x{%x}", c);
    return put(r, text, strlen(text));
}

/* Reads the next character; n_bytes > 0. */
static bool read_char(struct reader *r, uint32_t *value)
{
    utf8proc_int32_t code = -1;
    utf8proc_ssize_t n = utf8proc_iterate((const uint8_t *)r->source + r->at,
                                          (utf8proc_ssize_t)(r->n_bytes - r->at), &code);
    if (n <= 0)
        return refuse(r, "it is no UTF-8");
    *value = (uint32_t)code;
    r->at += (size_t)n;
    return true;
}

/* \uXXXX, \xXX, \x{X...}. */
static bool read_number(struct reader *r, uint32_t *value)
{
    static const char HEX[] = "0123456789abcdefABCDEF";
    char digits[8] = "";
    size_t n = peek(r, 1) == 'u' ? 4 : 2, begin = 2;
    if (peek(r, 2) == '{') {
        const char *end = memchr(r->source + r->at, '}', r->n_bytes - r->at);
        n = end ? (size_t)(end - r->source) - r->at - 3 : 0;
        begin = 3;
    }
    if (n == 0 || n > 6)
        return refuse(r, "expected hexadecimal digits of a character");
    for (size_t i = 0; i < n; i++) {
        int digit = peek(r, begin + i);
        if (digit <= 0 || !strchr(HEX, digit))
            return refuse(r, "expected hexadecimal digits of a character");
        digits[i] = (char)digit;
    }
    *value = (uint32_t)strtoul(digits, NULL, 16);
    if (*value >= CODE_POINTS || (*value >= 0xD800 && *value < 0xE000))
        return refuse(r, "it is the number of no character");
    if (peek(r, 1) == 'x' && begin == 2 && *value >= 0x80)
        return refuse(r, "\\x with a byte that is no ASCII");
    r->at += begin + n + (begin == 3);
    return true;
}

/* An escape of one character. */
static bool read_escaped(struct reader *r, uint32_t *value)
{
    static const char LETTERS[] = "nrtfaev", VALUES[] = "\n\r\t\f\a\x1b\v";
    int c = peek(r, 1);
    if (c < 0)
        return refuse(r, "it ends with a backslash");
    if (c == 'u' || c == 'x')
        return read_number(r, value);
    const char *letter = strchr(LETTERS, c);
    if (letter) {
        *value = (uint8_t)VALUES[letter - LETTERS];
        r->at += 2;
        return true;
    }
    if ((c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
        return refuse(r, "an escape that the libraries read differently");
    r->at++;
    return read_char(r, value);
}

/* ---- classes ---- */

/* One character within a class. */
static bool read_member(struct reader *r, uint32_t *value)
{
    return peek(r, 0) == '\\' ? read_escaped(r, value) : read_char(r, value);
}

static bool stands_for_class(int c)
{
    return c > 0 && strchr("sSdDwWpP", c);
}

/* A character, or FROM-TO. */
static bool read_range(struct reader *r, struct char_class *class)
{
    uint32_t from = 0, to = 0;
    if (!read_member(r, &from))
        return false;
    to = from;
    if (peek(r, 0) == '-' && peek(r, 1) >= 0 && peek(r, 1) != ']') {
        if (peek(r, 1) == '[' || (peek(r, 1) == '\\' && stands_for_class(peek(r, 2))))
            return refuse(r, "a range that ends with a class");
        r->at++;
        if (!read_member(r, &to))
            return false;
    }
    if (from > to)
        return refuse(r, "a range that ends before it begins");
    return remember(r, char_class_add_range(class, from, to));
}

/* [:NAME:] or [:^NAME:]. */
static bool read_posix(struct reader *r, struct char_class *class)
{
    static const char NAMES[] =
        " alpha upper lower digit alnum space blank cntrl graph print punct xdigit word ascii ";
    const char *name = r->source + r->at + 2;
    const char *end = memmem(name, r->n_bytes - r->at - 2, ":]", 2);
    if (!end)
        return refuse(r, "expected :] after [:");
    bool is_negated = *name == '^';
    name += is_negated;
    char spaced[16] = "";
    if (end > name && end - name < 8) {
        spaced[0] = ' ';
        memcpy(spaced + 1, name, (size_t)(end - name));
        strcat(spaced, " ");
    }
    if (spaced[0] == 0 || !strstr(NAMES, spaced))
        return refuse(r, "[: with a name that is not known");
    if (!add_property(r, class, name, (size_t)(end - name), is_negated))
        return false;
    r->at = (size_t)(end + 2 - r->source);
    return true;
}

static bool read_members(struct reader *r, struct char_class *class, int depth);

/* &&[...] or &&[^...], up to the end of the class or the next of these. */
static bool read_intersection(struct reader *r, struct char_class *class)
{
    struct char_class other = { .text = { 0 } };
    r->at += 2;
    if (peek(r, 0) != '[' || starts_with(r, "[:"))
        return refuse(r, "an intersection with what is no class in brackets");
    if (r->folds_case[r->depth])
        return refuse(r, "an intersection where case does not count");
    bool is_negated = peek(r, 1) == '^';
    r->at += is_negated; /* read_members() expects the bracket here */
    bool ok = read_members(r, &other, 1) && remember(r, char_class_intersect(class, &other, is_negated));
    char_class_clear(&other);
    if (ok && peek(r, 0) != ']' && !starts_with(r, "&&"))
        return refuse(r, "characters after an intersection");
    return ok;
}

/* Reads members; a nested class is joined, as in Oniguruma. Starts at the bracket. */
static bool read_members(struct reader *r, struct char_class *class, int depth)
{
    bool is_first = true;
    if (depth > PATTERN_MAX_NESTING)
        return refuse(r, "classes are nested too deep");
    r->at++;
    if (peek(r, 0) == '^')
        return refuse(r, "a negated class within a class");
    for (;; is_first = false) {
        int c = peek(r, 0);
        bool ok;
        if (c < 0)
            return refuse(r, "a class without an end");
        if (c == ']' && !is_first) {
            r->at++;
            return true;
        }
        if (starts_with(r, "&&") && depth > 0)
            return refuse(r, "an intersection within a class of a class");
        if (starts_with(r, "&&")) {
            if (!read_intersection(r, class))
                return false;
            continue;
        }
        if (starts_with(r, "[:"))
            ok = read_posix(r, class);
        else if (c == '[')
            ok = read_members(r, class, depth + 1);
        else if (c == '\\' && stands_for_class(peek(r, 1)))
            ok = read_class_escape(r, class, true);
        else
            ok = read_range(r, class);
        if (!ok)
            return false;
    }
}

static bool put_class(struct reader *r, struct char_class *class, bool is_negated)
{
    struct pattern_text *out = r->out;
    return remember(r, char_class_write(class, is_negated, &out->exact, &out->plain, &out->differing));
}

static bool read_class(struct reader *r)
{
    struct char_class class = { .text = { 0 } };
    bool is_negated = peek(r, 1) == '^';
    r->at += is_negated; /* read_members() expects the bracket here */
    bool ok = read_members(r, &class, 0) && put_class(r, &class, is_negated);
    char_class_clear(&class);
    return ok;
}

/* ---- the rest ---- */

/* PCRE2 defines words differently. */
static bool read_boundary(struct reader *r, bool is_negated)
{
    struct char_class word = { .text = { 0 } };
    static const char *const PARTS[2][5] = { { "(?:(?<=", ")(?!", ")|(?<!", ")(?=", "))" },
                                             { "(?:(?<=", ")(?=", ")|(?<!", ")(?!", "))" } };
    bool ok = read_letter(r, &word, "\\w", false);
    for (int i = 0; ok && i < 5; i++) {
        const char *part = PARTS[is_negated][i];
        ok = put(r, part, strlen(part)) && (i == 4 || put_class(r, &word, false));
    }
    char_class_clear(&word);
    return ok;
}

static bool read_escape(struct reader *r)
{
    struct char_class class = { .text = { 0 } };
    uint32_t value = 0;
    int c = peek(r, 1);
    if (c == 'A' || c == 'z')
        return copy(r, 2);
    if (c == 'b' || c == 'B')
        return read_boundary(r, c == 'B');
    if (!stands_for_class(c))
        return read_escaped(r, &value) && put_number(r, value);
    bool ok = read_class_escape(r, &class, false) && put_class(r, &class, false);
    char_class_clear(&class);
    return ok;
}

static bool read_group(struct reader *r)
{
    static const char *const OPENINGS[] = { "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:" };
    if (starts_with(r, "(*"))
        return refuse(r, "(* is a command of PCRE2");
    if (starts_with(r, "(?i)")) { /* elsewhere its scope differs between the libraries */
        r->folds_case[0] = true;
        return r->at == 0 ? copy(r, 4) : refuse(r, "(?i) after the beginning");
    }
    if (r->depth == PATTERN_MAX_NESTING)
        return refuse(r, "groups are nested too deep");
    r->depth++;
    r->folds_case[r->depth] = starts_with(r, "(?i:") ||
                              (r->folds_case[r->depth - 1] && !starts_with(r, "(?-i:"));
    if (peek(r, 1) != '?')
        return copy(r, 1);
    for (size_t i = 0; i < sizeof OPENINGS / sizeof *OPENINGS; i++) {
        if (starts_with(r, OPENINGS[i]))
            return copy(r, strlen(OPENINGS[i]));
    }
    return refuse(r, "a kind of group that is not known");
}

/* {n}, {n,} or {n,m}. */
static bool read_count(struct reader *r)
{
    size_t n = 1;
    while (peek(r, n) >= '0' && peek(r, n) <= '9')
        n++;
    if (n == 1)
        return refuse(r, "expected a number after {");
    n += peek(r, n) == ',';
    while (peek(r, n) >= '0' && peek(r, n) <= '9')
        n++;
    if (peek(r, n) != '}')
        return refuse(r, "expected {n}, {n,} or {n,m}");
    if (peek(r, n + 1) == '+')
        return refuse(r, "{n,m}+ means different things to different libraries");
    return copy(r, n + 1);
}

static bool read_one(struct reader *r)
{
    switch (peek(r, 0)) {
    case '\\':
        return read_escape(r);
    case '[':
        return read_class(r);
    case '(':
        return read_group(r);
    case ')':
        r->depth -= r->depth > 0;
        return copy(r, 1);
    case '{':
        return read_count(r);
    default:
        return copy(r, 1);
    }
}

bool pattern_read(const char *source, size_t n_bytes, struct pattern_text *out, const char **why, size_t *at)
{
    struct reader r = { .source = source, .n_bytes = n_bytes, .out = out, .has_memory = true };
    bool ok = true;
    while (ok && r.at < n_bytes)
        ok = read_one(&r);
    class_prober_clear(&r.prober);
    *why = r.has_memory ? r.why : NULL;
    *at = r.at;
    return ok;
}

void pattern_text_clear(struct pattern_text *text)
{
    buf_clear(&text->exact);
    buf_clear(&text->plain);
    char_set_clear(&text->differing);
}
