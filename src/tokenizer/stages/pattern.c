#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/stages/pattern.h"

#include "base/utf8.h"
#include "tokenizer/unicode/substitutes.h"

#include <oniguruma.h>
#include <pcre2.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

enum { MAX_PATTERN_BYTES = 65536, MAX_NESTING = 1000 };

/* Limits of matching steps (times that a search goes back): of one search at first, and of all
 * searches in a text. */
enum { STEPS_AT_FIRST = 1 << 14, STEPS_PER_BYTE = 1 << 10, STEPS_PER_TEXT = 1 << 22 };
#define TOO_MANY_STEPS                                                                                       \
    "a pattern of the tokenizer exceeds its limit of 4,194,304 steps and 1,024 for each byte of the text"

/* Limits of memory for going back: about 64 MiB. */
enum { HEAP_KIB = 64 * 1024, ONIG_STACK_ENTRIES = 1600000 };
#define TOO_MUCH_MEMORY "a pattern of the tokenizer exceeds its limit of 64 MiB for a match"

/* Calls of a group by name or number, in one search. */
enum { MAX_GROUP_CALLS = 1 << 22 };

struct pattern {
    enum pattern_kind kind;
    pcre2_code *code; /* KNOWN and EXACT */
    bool has_jit;
    OnigRegex regex;        /* UNKNOWN */
    bool *lacks_substitute; /* [n_substitutes]; NULL: EXACT */
    bool is_by_threes; /* it finds runs of digits, of which groups of three from the end are the matches */
};

struct pattern_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    OnigMatchParam *param;
    OnigRegion *region;
    uint64_t n_steps; /* left, for searches that take more than the first steps */
    /* is_by_threes: the last match ended at next, and the run that it began ends at run_end. */
    const struct pattern *run_pattern;
    const char *run_text;
    size_t next, run_end;
    const char *why;
};

static enum tutti_status invalid(const char *name, const char *source, size_t n_bytes, const char *why,
                                 struct tutti_error *err)
{
    return error_set(err, TUTTI_E_FORMAT, "%s: the pattern \"%.*s\": %s", name,
                     (int)(n_bytes < 200 ? n_bytes : 200), source, why);
}

/* ---- PCRE2 ---- */

#define BLANKS                                                                                               \
    "\\t-\\r\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"

/* The syntax of known patterns with another meaning in PCRE2: its \s also matches U+180E, its
 * \p{Han} characters that are used with Han ones, and it has no intersections. (Kimi's: a class is
 * the complement of all other categories.) */
static const struct {
    const char *from, *to;
} REWRITTEN[] = {
    { "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]",
      "[^\\p{Ll}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]" },
    { "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]",
      "[^\\p{Lu}\\p{Lt}\\p{N}\\p{P}\\p{S}\\p{Z}\\p{C}\\p{sc:Han}]" },
    { "\\p{Han}", "\\p{sc:Han}" },
    { "\\S", "[^" BLANKS "]" },
};

/* The replacement of the syntax at source, which has n bytes; NULL: none. */
static const char *find_rewritten(const char *source, size_t *n)
{
    for (size_t i = 0; i < sizeof REWRITTEN / sizeof *REWRITTEN; i++) {
        *n = strlen(REWRITTEN[i].from);
        if (strncmp(source, REWRITTEN[i].from, *n) == 0)
            return REWRITTEN[i].to;
    }
    return NULL;
}

/* A class within a class is a part of it in Oniguruma: only the outer brackets remain. */
static bool rewrite_known(struct buf *out, const char *source)
{
    int depth = 0;
    bool ok = true;
    for (size_t at = 0, n; ok && source[at]; at += n) {
        const char *to = find_rewritten(source + at, &n);
        if (to) {
            ok = buf_add_string(out, to);
            continue;
        }
        if (strncmp(source + at, "\\s", 2) == 0) {
            n = 2;
            ok = buf_add_string(out, depth > 0 ? BLANKS : "[" BLANKS "]");
            continue;
        }
        n = source[at] == '\\' && source[at + 1] ? 2 : 1;
        bool is_inner = (source[at] == '[' && depth++ > 0) || (source[at] == ']' && depth > 0 && --depth > 0);
        ok = is_inner || buf_add(out, source + at, n);
    }
    return ok;
}

static enum tutti_status compile_pcre2(struct pattern *pattern, const char *source, size_t n_bytes,
                                       const char *name, struct tutti_error *err)
{
    int code;
    size_t at;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context)
        return error_out_of_memory(name, err);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pattern->code = pcre2_compile((PCRE2_SPTR)source, n_bytes,
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code,
                                  &at, context);
    pcre2_compile_context_free(context);
    if (!pattern->code) {
        char why[128];
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return invalid(name, source, n_bytes, why, err);
    }
    pattern->has_jit = pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE) == 0;
    return TUTTI_OK;
}

/* A search that needs more than its first steps spends those of the whole text. False: there are
 * not so many left. */
static bool next_limit(struct pattern_matcher *m, uint32_t *limit)
{
    *limit = *limit < UINT32_MAX / 4 ? 4 * *limit : UINT32_MAX;
    if (*limit > m->n_steps)
        return false;
    m->n_steps -= *limit;
    return true;
}

static int search_pcre2(const struct pattern *pattern, struct pattern_matcher *m, const char *text,
                        size_t n_bytes, size_t from, size_t *begin, size_t *end)
{
    uint32_t limit = STEPS_AT_FIRST;
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (pattern->has_jit)
        rc = pcre2_jit_match(pattern->code, (PCRE2_SPTR)text, n_bytes, from, 0, m->data, NULL);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        do {
            pcre2_set_match_limit(m->context, limit);
            rc = pcre2_match(pattern->code, (PCRE2_SPTR)text, n_bytes, from, PCRE2_NO_UTF_CHECK, m->data,
                             m->context);
        } while (rc == PCRE2_ERROR_MATCHLIMIT && next_limit(m, &limit));
    }
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0) {
        m->why = rc == PCRE2_ERROR_MATCHLIMIT  ? TOO_MANY_STEPS
                 : rc == PCRE2_ERROR_HEAPLIMIT ? TOO_MUCH_MEMORY
                                               : NULL;
        return -1;
    }
    const size_t *range = pcre2_get_ovector_pointer(m->data);
    *begin = range[0];
    *end = range[1];
    return 1;
}

/* ---- Oniguruma ---- */

static OnigSyntaxType syntax;

/* Oniguruma's own syntax, as in tokenizers, but without calls of the program. */
static void start_oniguruma(void)
{
    OnigEncoding encodings[] = { ONIG_ENCODING_UTF8 };
    onig_initialize(encodings, 1);
    onig_set_parse_depth_limit(MAX_NESTING);
    onig_set_subexp_call_limit_in_search(MAX_GROUP_CALLS);
    onig_copy_syntax(&syntax, ONIG_SYNTAX_ONIGURUMA);
    onig_set_syntax_op2(&syntax, onig_get_syntax_op2(&syntax) & ~(ONIG_SYN_OP2_QMARK_BRACE_CALLOUT_CONTENTS |
                                                                  ONIG_SYN_OP2_ASTERISK_CALLOUT_NAME));
}

/* The one class that changed between versions of Oniguruma: since 6.9.9 it has all symbols. */
static bool rewrite_punctuation(struct buf *out, const char *source, size_t n_bytes)
{
    static const char *const NAMES[][2] = { { "[:punct:]", "\\p{P}\\p{S}" },
                                            { "[:^punct:]", "[^\\p{P}\\p{S}]" } };
    int depth = 0;
    bool ok = true;
    for (size_t at = 0, n; ok && at < n_bytes; at += n) {
        const char *to = source + at;
        size_t n_to = n = source[at] == '\\' && at + 1 < n_bytes ? 2 : 1;
        for (int i = 0; i < 2 && depth > 0; i++) {
            size_t length = strlen(NAMES[i][0]);
            if (n_bytes - at >= length && memcmp(source + at, NAMES[i][0], length) == 0) {
                n = length;
                to = NAMES[i][1];
                n_to = strlen(to);
            }
        }
        depth += (n == 1 && *to == '[') - (n == 1 && *to == ']' && depth > 0);
        ok = buf_add(out, to, n_to);
    }
    return ok;
}

static enum tutti_status compile_oniguruma(struct pattern *pattern, const char *source, size_t n_bytes,
                                           const char *name, struct tutti_error *err)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* compiling is not thread-safe, searching is */
    const OnigUChar *begin = (const OnigUChar *)source;
    OnigErrorInfo info;
    pthread_once(&once, start_oniguruma);
    pthread_mutex_lock(&lock);
    int code = onig_new(&pattern->regex, begin, begin + n_bytes, ONIG_OPTION_NONE, ONIG_ENCODING_UTF8,
                        &syntax, &info);
    OnigUChar why[ONIG_MAX_ERROR_MESSAGE_LEN + 1] = "";
    if (code != ONIG_NORMAL) {
        pattern->regex = NULL;
        onig_error_code_to_str(why, code, &info);
    }
    pthread_mutex_unlock(&lock);
    if (code == ONIGERR_MEMORY)
        return error_out_of_memory(name, err);
    return code == ONIG_NORMAL ? TUTTI_OK : invalid(name, source, n_bytes, (const char *)why, err);
}

static int search_oniguruma(const struct pattern *pattern, struct pattern_matcher *m, const char *text,
                            size_t n_bytes, size_t from, size_t *begin, size_t *end)
{
    const OnigUChar *first = (const OnigUChar *)text, *last = first + n_bytes;
    uint32_t limit = STEPS_AT_FIRST;
    int rc;
    do {
        onig_set_retry_limit_in_search_of_match_param(m->param, limit);
        onig_set_retry_limit_in_match_of_match_param(m->param, limit);
        rc = onig_search_with_param(pattern->regex, first, last, first + from, last, m->region,
                                    ONIG_OPTION_NONE, m->param);
    } while ((rc == ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER || rc == ONIGERR_RETRY_LIMIT_IN_MATCH_OVER) &&
             next_limit(m, &limit));
    if (rc == ONIG_MISMATCH)
        return 0;
    if (rc < 0) {
        m->why = rc == ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER || rc == ONIGERR_RETRY_LIMIT_IN_MATCH_OVER ||
                         rc == ONIGERR_SUBEXP_CALL_LIMIT_IN_SEARCH_OVER
                     ? TOO_MANY_STEPS
                 : rc == ONIGERR_MATCH_STACK_LIMIT_OVER ? TOO_MUCH_MEMORY
                                                        : NULL;
        return -1;
    }
    *begin = (size_t)m->region->beg[0];
    *end = (size_t)m->region->end[0];
    return 1;
}

/* ---- digits in groups of three ---- */

/* Each match looks ahead over all digits that follow, which takes quadratic time, in which no limit counts
 * anything, because nothing goes back. So a whole run is found at once, and then divided. */
static const char *const BY_THREES[][2] = {
    { "\\d{1,3}(?=(?:\\d{3})*\\b)", "(?<!\\d)\\d++\\b" },
    { "\\p{N}{1,3}(?=(?:\\p{N}{3})*(?!\\p{N}))", "\\p{N}++" },
};

/* The pattern of runs of a pattern of groups; NULL: another pattern. */
static const char *find_by_threes(const char *source, size_t n_bytes)
{
    for (size_t i = 0; i < sizeof BY_THREES / sizeof *BY_THREES; i++)
        if (strlen(BY_THREES[i][0]) == n_bytes && memcmp(source, BY_THREES[i][0], n_bytes) == 0)
            return BY_THREES[i][1];
    return NULL;
}

static int find_once(const struct pattern *pattern, struct pattern_matcher *m, const char *text,
                     size_t n_bytes, size_t from, size_t *begin, size_t *end)
{
    return (pattern->kind == PATTERN_UNKNOWN ? search_oniguruma : search_pcre2)(pattern, m, text, n_bytes,
                                                                                from, begin, end);
}

static int find_by_three(const struct pattern *pattern, struct pattern_matcher *m, const char *text,
                         size_t n_bytes, size_t from, size_t *begin, size_t *end)
{
    size_t n_first = 3;
    bool is_within = m->run_pattern == pattern && m->run_text == text && from > 0 && m->next == from;
    if (!is_within || from == m->run_end) {
        int found = find_once(pattern, m, text, n_bytes, from, begin, &m->run_end);
        if (found <= 0)
            return found;
        size_t n = utf8_count(text + *begin, m->run_end - *begin);
        n_first = n % 3 > 0 ? n % 3 : 3;
        from = *begin;
    }
    *begin = from;
    *end = from;
    for (size_t i = 0; i < n_first; i++)
        for (++*end; *end < m->run_end && utf8_is_continuation(text[*end]);)
            ++*end;
    m->run_pattern = pattern;
    m->run_text = text;
    m->next = *end;
    return 1;
}

/* ---- patterns ---- */

/* The number of an escaped character, \xHH, \x{H...} or \uHHHH; *n: its bytes. -1: another escape. */
static int32_t escaped_number(const char *source, size_t n_bytes, size_t *n)
{
    char digits[9] = "";
    size_t begin = 2, n_digits = source[1] == 'u' ? 4 : 2;
    *n = 2;
    if (n_bytes < 4 || (source[1] != 'x' && source[1] != 'u'))
        return -1;
    if (source[1] == 'x' && source[2] == '{') {
        begin = 3;
        n_digits = 8;
    }
    memcpy(digits, source + begin, n_bytes - begin < n_digits ? n_bytes - begin : n_digits);
    char *end = NULL;
    unsigned long number = strtoul(digits, &end, 16);
    *n = begin + (size_t)(end - digits);
    *n += begin == 3 && *n < n_bytes && source[*n] == '}';
    return end > digits && number < 0x110000 ? (int32_t)number : -1;
}

/* A character of a pattern. n_bytes >= 1. */
static int32_t read_character(const char *source, size_t n_bytes, size_t *n)
{
    utf8proc_int32_t c = -1;
    if (source[0] == '\\' && n_bytes > 1)
        return escaped_number(source, n_bytes, n);
    utf8proc_ssize_t length = utf8proc_iterate((const uint8_t *)source, (utf8proc_ssize_t)n_bytes, &c);
    *n = length > 0 ? (size_t)length : 1;
    return c;
}

/* A pattern may list blocks of characters by their first and last ones. A newer character cannot be
 * replaced where only one of it and its substitute is in the block. */
static void drop_substitutes(struct pattern *pattern, uint32_t first, uint32_t last)
{
    for (size_t i = 0; i < UNICODE_TABLES.n_substitutes; i++) {
        const struct substitute *run = &UNICODE_TABLES.substitutes[i];
        bool is_in = run->first <= last && run->last >= first;
        if (is_in != (run->by >= first && run->by <= last))
            pattern->lacks_substitute[i] = true;
    }
}

static bool choose_substitutes(struct pattern *pattern, const char *source, size_t n_bytes)
{
    pattern->lacks_substitute = calloc(UNICODE_TABLES.n_substitutes, sizeof *pattern->lacks_substitute);
    if (!pattern->lacks_substitute)
        return false;
    for (size_t at = 0, n; at < n_bytes;) {
        int32_t first = read_character(source + at, n_bytes - at, &n), last = first;
        at += n;
        if (first >= 0 && at + 1 < n_bytes && source[at] == '-') {
            int32_t end = read_character(source + at + 1, n_bytes - at - 1, &n);
            if (end > first) {
                last = end;
                at += 1 + n;
            }
        }
        if (last >= 0x80)
            drop_substitutes(pattern, (uint32_t)first, (uint32_t)last);
    }
    return true;
}

static enum tutti_status compile(struct pattern *pattern, const char *source, size_t n_bytes,
                                 const char *name, struct tutti_error *err)
{
    if (pattern->kind == PATTERN_EXACT)
        return compile_pcre2(pattern, source, n_bytes, name, err);
    bool is_known = pattern->kind == PATTERN_KNOWN;
    const char *runs = find_by_threes(source, n_bytes);
    struct buf text = { 0 };
    if (runs) {
        pattern->is_by_threes = true;
        source = runs;
        n_bytes = strlen(runs);
    }
    bool ok = choose_substitutes(pattern, source, n_bytes) &&
              (is_known ? rewrite_known(&text, source) : rewrite_punctuation(&text, source, n_bytes));
    enum tutti_status st = !ok ? error_out_of_memory(name, err)
                               : (is_known ? compile_pcre2 : compile_oniguruma)(pattern, text.bytes,
                                                                                text.n_bytes, name, err);
    buf_clear(&text);
    return st;
}

enum tutti_status pattern_new(struct pattern **out, const char *source, size_t n_bytes,
                              enum pattern_kind kind, const char *name, struct tutti_error *err)
{
    if (n_bytes == 0 || n_bytes > MAX_PATTERN_BYTES)
        return error_set(err, TUTTI_E_FORMAT, "%s: a pattern of %zu bytes, expected 1 to %d", name, n_bytes,
                         MAX_PATTERN_BYTES);
    struct pattern *pattern = calloc(1, sizeof *pattern);
    if (!pattern)
        return error_out_of_memory(name, err);
    pattern->kind = kind;
    enum tutti_status st = compile(pattern, source, n_bytes, name, err);
    if (st == TUTTI_OK)
        *out = pattern;
    else
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
    enum tutti_status st = ok ? pattern_new(out, source.bytes, source.n_bytes, PATTERN_EXACT, name, err)
                              : error_out_of_memory(name, err);
    buf_clear(&source);
    return st;
}

void pattern_free(struct pattern *pattern)
{
    if (!pattern)
        return;
    pcre2_code_free(pattern->code);
    if (pattern->regex)
        onig_free(pattern->regex);
    free(pattern->lacks_substitute);
    free(pattern);
}

bool pattern_prepare(const struct pattern *pattern, const char *text, size_t n_bytes, struct buf *out)
{
    if (!buf_add(out, text, n_bytes))
        return false;
    if (pattern->kind == PATTERN_EXACT)
        return true;
    uint8_t *copy = (uint8_t *)out->bytes + out->n_bytes - n_bytes;
    for (size_t at = 0; at < n_bytes;) {
        utf8proc_int32_t c = copy[at];
        utf8proc_ssize_t n = c < 0x80 ? 1 : utf8proc_iterate(copy + at, (utf8proc_ssize_t)(n_bytes - at), &c);
        const struct substitute *run = n > 1 ? substitute_find((uint32_t)c) : NULL;
        if (run && !pattern->lacks_substitute[run - UNICODE_TABLES.substitutes])
            utf8proc_encode_char((utf8proc_int32_t)run->by, copy + at);
        at += n > 0 ? (size_t)n : 1;
    }
    return true;
}

int pattern_find(const struct pattern *pattern, struct pattern_matcher *m, const char *text, size_t n_bytes,
                 size_t from, size_t *begin, size_t *end)
{
    return (pattern->is_by_threes ? find_by_three : find_once)(pattern, m, text, n_bytes, from, begin, end);
}

/* ---- matchers ---- */

struct pattern_matcher *pattern_matcher_new(size_t n_text_bytes)
{
    struct pattern_matcher *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    m->param = onig_new_match_param();
    m->region = onig_region_new();
    if (!m->data || !m->context || !m->param || !m->region) {
        pattern_matcher_free(m);
        return NULL;
    }
    pcre2_set_heap_limit(m->context, HEAP_KIB);
    onig_initialize_match_param(m->param);
    onig_set_match_stack_limit_size_of_match_param(m->param, ONIG_STACK_ENTRIES);
    m->n_steps = STEPS_PER_TEXT + (uint64_t)STEPS_PER_BYTE * n_text_bytes;
    return m;
}

void pattern_matcher_free(struct pattern_matcher *m)
{
    if (!m)
        return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    if (m->param)
        onig_free_match_param(m->param);
    if (m->region)
        onig_region_free(m->region, 1);
    free(m);
}

const char *pattern_matcher_why(const struct pattern_matcher *m)
{
    return m->why;
}
