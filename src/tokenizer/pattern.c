#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/pattern.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PATTERN_BYTES = 65536, MAX_NESTING = 64 };

/* Steps of matching that are granted: to one search at first, and to all searches in a text. */
enum { STEPS_AT_FIRST = 1 << 14, STEPS_PER_BYTE = 1 << 10, STEPS_PER_TEXT = 1 << 22, HEAP_KIB = 64 * 1024 };

struct pattern {
    pcre2_code *code;
    bool has_jit;
};

struct pattern_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    uint64_t n_steps; /* left, for searches that take more than the first steps */
};

/* ---- from Ruby's syntax to PCRE2's ---- */

/* White_Space of Unicode. PCRE2's \s has U+180E too, which is none since Unicode 6.3. */
#define BLANKS                                                                                               \
    "\\t-\\r\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

struct reader {
    const char *source;
    size_t n_bytes, at;
    struct buf out;
    const char *why; /* set by the first error */
    bool has_memory;
};

static bool refuse(struct reader *r, const char *why)
{
    if (!r->why)
        r->why = why;
    return false;
}

static bool put(struct reader *r, const char *bytes, size_t n_bytes)
{
    if (!buf_add(&r->out, bytes, n_bytes))
        r->has_memory = false;
    return r->has_memory;
}

static bool put_string(struct reader *r, const char *text)
{
    return put(r, text, strlen(text));
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

/* \p{...}: a general category; or a script, which PCRE2 would take for its extensions. */
static bool read_property(struct reader *r)
{
    const char *begin = r->source + r->at, *end = memchr(begin, '}', r->n_bytes - r->at);
    if (peek(r, 2) != '{' || !end)
        return refuse(r, "expected {NAME} behind \\p");
    size_t n = (size_t)(end + 1 - begin), n_name = n - 4;
    const char *name = begin + 3;
    bool negates = n_name > 0 && *name == '^';
    name += negates;
    n_name -= negates;
    for (size_t i = 0; i < n_name; i++) {
        char c = (char)(name[i] | 0x20);
        if ((c < 'a' || c > 'z') && name[i] != '_')
            return refuse(r, "the name of a property is not made of letters");
    }
    if (n_name == 0 || n_name > 40)
        return refuse(r, "the name of a property has no, or more than 40 letters");
    if (n_name <= 2 || (n_name == 3 && memcmp(name, "Any", 3) == 0))
        return copy(r, n);
    char text[64] = "";
    strcat(text, *(begin + 1) == 'P' ? "\\P{" : "\\p{");
    strcat(text, negates ? "^sc:" : "sc:");
    strncat(text, name, n_name);
    strcat(text, "}");
    r->at += n;
    return put_string(r, text);
}

static bool read_escape(struct reader *r, bool in_class)
{
    int c = peek(r, 1);
    switch (c) {
    case 's':
        r->at += 2;
        return put_string(r, in_class ? BLANKS : "[" BLANKS "]");
    case 'S':
        r->at += 2;
        return put_string(r, in_class ? "\\S\\x{180e}" : "[^" BLANKS "]");
    case 'p':
    case 'P':
        return read_property(r);
    case 'v':
        r->at += 2;
        return put_string(r, "\\x{0b}");
    case 'A':
    case 'z':
    case 'B':
    case 'b':
        return in_class ? refuse(r, "\\A, \\z, \\B or \\b in a class") : copy(r, 2);
    case 'd':
    case 'D':
    case 'w':
    case 'W':
    case 'n':
    case 'r':
    case 't':
    case 'f':
    case 'a':
    case 'e':
        return copy(r, 2);
    case 'u':
    case 'x': {
        static const char HEX[] = "0123456789abcdefABCDEF";
        char text[16] = "\\x{";
        size_t n = c == 'u' ? 4 : 2, begin = 2;
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
            text[3 + i] = (char)digit;
        }
        if (c == 'x' && begin == 2 && strtol(text + 3, NULL, 16) >= 0x80)
            return refuse(r, "\\x with a byte that is no ASCII");
        r->at += begin + n + (begin == 3);
        return put_string(r, text) && put_string(r, "}");
    }
    default:
        if (c < 0)
            return refuse(r, "it ends with a backslash");
        if ((c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
            return refuse(r, "an escape that the libraries read differently");
        return copy(r, 2);
    }
}

/* A class within a class is joined to it, as Oniguruma does. */
static bool read_class(struct reader *r, int depth)
{
    bool is_outer = depth == 0, is_first = true;
    if (depth > MAX_NESTING)
        return refuse(r, "classes are nested too deep");
    r->at++;
    if (is_outer && !put_string(r, "["))
        return false;
    if (peek(r, 0) == '^') {
        if (!is_outer)
            return refuse(r, "a negated class within a class");
        if (!copy(r, 1))
            return false;
    }
    for (;; is_first = false) {
        int c = peek(r, 0);
        if (c < 0)
            return refuse(r, "a class without an end");
        if (c == ']' && is_first) {
            r->at++;
            if (!put_string(r, "\\]"))
                return false;
        } else if (c == ']') {
            r->at++;
            return !is_outer || put_string(r, "]");
        } else if (starts_with(r, "&&")) {
            return refuse(r, "an intersection of classes");
        } else if (starts_with(r, "[:")) {
            const char *end = memmem(r->source + r->at, r->n_bytes - r->at, ":]", 2);
            if (!end || !copy(r, (size_t)(end + 2 - r->source) - r->at))
                return refuse(r, "expected :] behind [:");
        } else if (c == '[') {
            if (!read_class(r, depth + 1))
                return false;
        } else if (!(c == '\\' ? read_escape(r, true) : copy(r, 1))) {
            return false;
        }
    }
}

static bool read_group(struct reader *r)
{
    static const char *const OPENINGS[] = { "(?:", "(?=",  "(?!",   "(?<=", "(?<!",
                                            "(?>", "(?i:", "(?-i:", "(?i)" };
    if (starts_with(r, "(*"))
        return refuse(r, "(* is a command of PCRE2");
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
        return refuse(r, "expected a number behind {");
    n += peek(r, n) == ',';
    while (peek(r, n) >= '0' && peek(r, n) <= '9')
        n++;
    if (peek(r, n) != '}')
        return refuse(r, "expected {n}, {n,} or {n,m}");
    if (peek(r, n + 1) == '+')
        return refuse(r, "{n,m}+ means different things to different libraries");
    return copy(r, n + 1);
}

static bool translate(struct reader *r)
{
    while (r->at < r->n_bytes) {
        int c = peek(r, 0);
        bool ok = c == '\\'  ? read_escape(r, false)
                  : c == '[' ? read_class(r, 0)
                  : c == '(' ? read_group(r)
                  : c == '{' ? read_count(r)
                             : copy(r, 1);
        if (!ok)
            return false;
    }
    return true;
}

/* ---- compiling ---- */

static enum tutti_status compile(struct pattern *pattern, const char *text, size_t n_bytes, bool is_known,
                                 const char *name, struct tutti_error *err)
{
    int code;
    size_t at;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", name);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, MAX_NESTING);
    pattern->code = pcre2_compile((PCRE2_SPTR)text, n_bytes,
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code,
                                  &at, context);
    pcre2_compile_context_free(context);
    if (!pattern->code) {
        char why[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return error_set(err, TUTTI_E_FORMAT, "%s: at byte %zu of the pattern \"%.*s\": %s", name, at,
                         (int)(n_bytes < 200 ? n_bytes : 200), text, why);
    }
    pattern->has_jit = is_known && pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE) == 0;
    return TUTTI_OK;
}

enum tutti_status pattern_new(struct pattern **out, const char *source, size_t n_bytes, bool is_known,
                              const char *name, struct tutti_error *err)
{
    struct reader r = { .source = source, .n_bytes = n_bytes, .has_memory = true };
    if (n_bytes == 0 || n_bytes > MAX_PATTERN_BYTES)
        return error_set(err, TUTTI_E_FORMAT, "%s: a pattern of %zu bytes, expected 1 to %d", name, n_bytes,
                         MAX_PATTERN_BYTES);
    if (memchr(source, 0, n_bytes))
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: a pattern holds a zero byte", name);
    struct pattern *pattern = calloc(1, sizeof *pattern);
    enum tutti_status st = TUTTI_OK;
    if (!pattern || (!translate(&r) && !r.why))
        st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", name);
    else if (r.why)
        st = error_set(err, TUTTI_E_UNSUPPORTED, "%s: at byte %zu of the pattern \"%.*s\": %s", name, r.at,
                       (int)(n_bytes < 200 ? n_bytes : 200), source, r.why);
    else
        st = compile(pattern, r.out.bytes, r.out.n_bytes, is_known, name, err);
    buf_clear(&r.out);
    if (st == TUTTI_OK) {
        *out = pattern;
        pattern = NULL;
    }
    pattern_free(pattern);
    return st;
}

enum tutti_status pattern_new_literal(struct pattern **out, const char *text, size_t n_bytes,
                                      const char *name, struct tutti_error *err)
{
    struct buf source = { 0 };
    bool ok = true;
    for (size_t i = 0; ok && i < n_bytes; i++)
        ok = (strchr("\\^$.[]|()?*+{}-", text[i]) && text[i] ? buf_add(&source, "\\", 1) : true) &&
             buf_add(&source, text + i, 1);
    enum tutti_status st = ok ? pattern_new(out, source.bytes, source.n_bytes, true, name, err)
                              : error_set(err, TUTTI_E_MEMORY, "%s: out of memory", name);
    buf_clear(&source);
    return st;
}

void pattern_free(struct pattern *pattern)
{
    if (!pattern)
        return;
    pcre2_code_free(pattern->code);
    free(pattern);
}

/* ---- matching ---- */

struct pattern_matcher *pattern_matcher_new(size_t n_text_bytes)
{
    struct pattern_matcher *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    if (!m->data || !m->context) {
        pattern_matcher_free(m);
        return NULL;
    }
    pcre2_set_heap_limit(m->context, HEAP_KIB);
    m->n_steps = STEPS_PER_TEXT + (uint64_t)STEPS_PER_BYTE * n_text_bytes;
    return m;
}

void pattern_matcher_free(struct pattern_matcher *m)
{
    if (!m)
        return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    free(m);
}

/* A search that needs more than its first steps takes them from those of the whole text. */
static int search_with_limit(const struct pattern *pattern, struct pattern_matcher *m, const char *text,
                             size_t n_bytes, size_t from)
{
    uint32_t limit = STEPS_AT_FIRST;
    for (;;) {
        pcre2_set_match_limit(m->context, limit);
        int rc = pcre2_match(pattern->code, (PCRE2_SPTR)text, n_bytes, from, PCRE2_NO_UTF_CHECK, m->data,
                             m->context);
        if (rc != PCRE2_ERROR_MATCHLIMIT)
            return rc;
        limit = limit < UINT32_MAX / 4 ? 4 * limit : UINT32_MAX;
        if (limit > m->n_steps)
            return rc;
        m->n_steps -= limit;
    }
}

int pattern_find(const struct pattern *pattern, struct pattern_matcher *m, const char *text, size_t n_bytes,
                 size_t from, size_t *begin, size_t *end)
{
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (pattern->has_jit)
        rc = pcre2_jit_match(pattern->code, (PCRE2_SPTR)text, n_bytes, from, 0, m->data, NULL);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = search_with_limit(pattern, m, text, n_bytes, from);
    if (rc < 0)
        return rc == PCRE2_ERROR_NOMATCH ? 0 : -1;
    const size_t *range = pcre2_get_ovector_pointer(m->data);
    *begin = range[0];
    *end = range[1];
    return 1;
}
