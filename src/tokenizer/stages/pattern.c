#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/stages/pattern.h"

#include "tokenizer/stages/pattern_read.h"

#include <pcre2.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { MAX_PATTERN_BYTES = 65536 };

/* Limits of matching steps: of one search at first, and of all searches in a text. */
enum { STEPS_AT_FIRST = 1 << 14, STEPS_PER_BYTE = 1 << 10, STEPS_PER_TEXT = 1 << 22, HEAP_KIB = 64 * 1024 };

enum { PAGE_BITS = 6, N_PAGES = CODE_POINTS >> PAGE_BITS };

struct pattern_code {
    pcre2_code *code;
    bool has_jit;
};

struct pattern {
    struct pattern_code exact, plain; /* plain.code: NULL if there are no differing characters */
    struct char_set differing;
    uint64_t pages[N_PAGES / 64]; /* those with a differing character */
};

struct pattern_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    uint64_t n_steps; /* left, for searches that take more than the first steps */
};

/* ---- compiling ---- */

static enum tutti_status compile(struct pattern_code *out, const struct buf *text, bool is_known,
                                 const char *name, struct tutti_error *err)
{
    int code;
    size_t at;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return error_set(err, TUTTI_E_MEMORY, "%s: out of memory", name);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, PATTERN_MAX_NESTING);
    out->code = pcre2_compile((PCRE2_SPTR)text->bytes, text->n_bytes,
                              PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &at,
                              context);
    pcre2_compile_context_free(context);
    if (!out->code) {
        char why[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return error_set(err, TUTTI_E_FORMAT, "%s: at byte %zu of the pattern \"%.*s\": %s", name, at,
                         (int)(text->n_bytes < 200 ? text->n_bytes : 200), text->bytes, why);
    }
    out->has_jit = is_known && pcre2_jit_compile(out->code, PCRE2_JIT_COMPLETE) == 0;
    return TUTTI_OK;
}

static enum tutti_status compile_both(struct pattern *pattern, struct pattern_text *text, bool is_known,
                                      const char *name, struct tutti_error *err)
{
    enum tutti_status st = compile(&pattern->exact, &text->exact, is_known, name, err);
    if (st != TUTTI_OK || text->differing.n == 0)
        return st;
    pattern->differing = text->differing;
    text->differing = (struct char_set){ .n = 0 };
    for (size_t i = 0; i < pattern->differing.n; i += 2) {
        uint32_t last = (pattern->differing.toggles[i + 1] - 1) >> PAGE_BITS;
        for (uint32_t page = pattern->differing.toggles[i] >> PAGE_BITS; page <= last; page++)
            pattern->pages[page / 64] |= (uint64_t)1 << page % 64;
    }
    return compile(&pattern->plain, &text->plain, is_known, name, err);
}

enum tutti_status pattern_new(struct pattern **out, const char *source, size_t n_bytes, bool is_known,
                              const char *name, struct tutti_error *err)
{
    struct pattern_text text = { .exact = { 0 } };
    const char *why = NULL;
    size_t at = 0;
    if (n_bytes == 0 || n_bytes > MAX_PATTERN_BYTES)
        return error_set(err, TUTTI_E_FORMAT, "%s: a pattern of %zu bytes, expected 1 to %d", name, n_bytes,
                         MAX_PATTERN_BYTES);
    if (memchr(source, 0, n_bytes))
        return error_set(err, TUTTI_E_UNSUPPORTED, "%s: a pattern holds a zero byte", name);
    struct pattern *pattern = calloc(1, sizeof *pattern);
    enum tutti_status st = TUTTI_OK;
    if (!pattern || (!pattern_read(source, n_bytes, &text, &why, &at) && !why))
        st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", name);
    else if (why)
        st = error_set(err, TUTTI_E_UNSUPPORTED, "%s: at byte %zu of the pattern \"%.*s\": %s", name, at,
                       (int)(n_bytes < 200 ? n_bytes : 200), source, why);
    else
        st = compile_both(pattern, &text, is_known, name, err);
    pattern_text_clear(&text);
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
    pcre2_code_free(pattern->exact.code);
    pcre2_code_free(pattern->plain.code);
    char_set_clear(&pattern->differing);
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

/* A search that needs more than its first steps spends those of the whole text. */
static int search_with_limit(const struct pattern_code *code, struct pattern_matcher *m, const char *text,
                             size_t n_bytes, size_t from)
{
    uint32_t limit = STEPS_AT_FIRST;
    for (;;) {
        pcre2_set_match_limit(m->context, limit);
        int rc = pcre2_match(code->code, (PCRE2_SPTR)text, n_bytes, from, PCRE2_NO_UTF_CHECK, m->data,
                             m->context);
        if (rc != PCRE2_ERROR_MATCHLIMIT)
            return rc;
        limit = limit < UINT32_MAX / 4 ? 4 * limit : UINT32_MAX;
        if (limit > m->n_steps)
            return rc;
        m->n_steps -= limit;
    }
}

/* The page of the character at text. */
static uint32_t page_of(const uint8_t *text)
{
    if (*text < 0xE0)
        return *text & 0x1F;
    if (*text < 0xF0)
        return (uint32_t)(*text & 0x0F) << 6 | (text[1] & 0x3F);
    return (uint32_t)(*text & 0x07) << 12 | (uint32_t)(text[1] & 0x3F) << 6 | (text[2] & 0x3F);
}

static bool is_differing(const struct pattern *pattern, const char *text, size_t n_bytes)
{
    utf8proc_int32_t code = -1;
    utf8proc_iterate((const uint8_t *)text, (utf8proc_ssize_t)n_bytes, &code);
    return toggles_have(pattern->differing.toggles, pattern->differing.n, (uint32_t)code);
}

/* Characters of ASCII have pages too. */
static uint64_t differs_in_ascii(const struct pattern *pattern)
{
    return pattern->pages[0] & 3;
}

bool pattern_differs(const struct pattern *pattern, const char *text, size_t n_bytes)
{
    uint64_t word;
    if (pattern->differing.n == 0)
        return false;
    if (differs_in_ascii(pattern))
        return true;
    for (size_t at = 0; at < n_bytes;) {
        if (at + 8 <= n_bytes) {
            memcpy(&word, text + at, 8);
            if (!(word & 0x8080808080808080)) {
                at += 8;
                continue;
            }
        }
        if (!(text[at] & 0x80)) {
            at++;
            continue;
        }
        const uint8_t *c = (const uint8_t *)text + at;
        uint32_t page = page_of(c);
        if ((pattern->pages[page / 64] >> page % 64 & 1) && is_differing(pattern, text + at, n_bytes - at))
            return true;
        at += *c < 0xE0 ? 2 : *c < 0xF0 ? 3 : 4;
    }
    return false;
}

int pattern_find(const struct pattern *pattern, struct pattern_matcher *m, bool differs, const char *text,
                 size_t n_bytes, size_t from, size_t *begin, size_t *end)
{
    const struct pattern_code *code = differs || !pattern->plain.code ? &pattern->exact : &pattern->plain;
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (code->has_jit)
        rc = pcre2_jit_match(code->code, (PCRE2_SPTR)text, n_bytes, from, 0, m->data, NULL);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = search_with_limit(code, m, text, n_bytes, from);
    if (rc < 0)
        return rc == PCRE2_ERROR_NOMATCH ? 0 : -1;
    const size_t *range = pcre2_get_ovector_pointer(m->data);
    *begin = range[0];
    *end = range[1];
    return 1;
}
