#include "tokenizer/unicode/unicode.h"

#include "base/utf8.h"
#include "tokenizer/unicode/substitutes.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Characters that all versions treat equally, the most common ones outside of ASCII. */
enum { CJK_FIRST = 0x3400, CJK_LAST = 0x9FA5 };

static const char REPLACEMENT[] = "\xEF\xBF\xBD"; /* U+FFFD */

/* The code points of a piece of text. */
struct points {
    int32_t *codes;
    size_t n, capacity;
    int32_t *sorted; /* [capacity] */
};

static bool points_reserve(struct points *p, size_t n_more)
{
    if (p->capacity - p->n >= n_more)
        return true;
    size_t capacity = 2 * p->capacity + n_more + 64;
    int32_t *codes = realloc(p->codes, capacity * sizeof *codes);
    if (codes)
        p->codes = codes;
    int32_t *sorted = realloc(p->sorted, capacity * sizeof *sorted);
    if (sorted)
        p->sorted = sorted;
    if (!codes || !sorted)
        return false;
    p->capacity = capacity;
    return true;
}

static int combining_class(int32_t code)
{
    return (uint8_t)utf8proc_get_property(code)->combining_class;
}

/* Sorts the marks [begin, end), none of class 0, stably by class. The library's own sort is
 * quadratic, so it gets them sorted. */
static void sort_marks(struct points *p, size_t begin, size_t end)
{
    bool is_sorted = true;
    for (size_t i = begin + 1; i < end && is_sorted; i++)
        is_sorted = combining_class(p->codes[i - 1]) <= combining_class(p->codes[i]);
    if (is_sorted)
        return;
    size_t first[257] = { 0 };
    for (size_t i = begin; i < end; i++)
        first[combining_class(p->codes[i]) + 1]++;
    for (int c = 0; c < 256; c++)
        first[c + 1] += first[c];
    for (size_t i = begin; i < end; i++)
        p->sorted[first[combining_class(p->codes[i])]++] = p->codes[i];
    memcpy(p->codes + begin, p->sorted, (end - begin) * sizeof *p->codes);
}

static void sort_all_marks(struct points *p)
{
    for (size_t i = 0; i < p->n;) {
        size_t end = i;
        while (end < p->n && combining_class(p->codes[end]) != 0)
            end++;
        sort_marks(p, i, end);
        i = end > i ? end : i + 1;
    }
}

bool unicode_set_has(const uint32_t *toggles, size_t n, uint32_t c)
{
    size_t lo = 0, hi = n; /* toggles before lo are at most c, from hi on greater */
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        if (toggles[mid] <= c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo % 2 == 1;
}

/* Whether the installed library may normalize the character, but the reference library does not. */
static bool is_not_normalized(utf8proc_int32_t code)
{
    const struct unicode_tables *t = &UNICODE_TABLES;
    return !(code >= CJK_FIRST && code <= CJK_LAST) &&
           unicode_set_has(t->not_normalized, t->n_not_normalized, (uint32_t)code);
}

/* Decomposes up to a character that is left unchanged; *n_done: bytes. */
static bool decompose(struct points *p, const char *text, size_t n_bytes, utf8proc_option_t options,
                      size_t *n_done)
{
    size_t at = 0;
    p->n = 0;
    for (*n_done = 0; at < n_bytes; *n_done = at) {
        utf8proc_int32_t code;
        utf8proc_ssize_t n = utf8proc_iterate((const uint8_t *)text + at, (utf8proc_ssize_t)(n_bytes - at),
                                              &code);
        if (n <= 0 || !points_reserve(p, 32)) /* no character decomposes into more */
            return false;
        if (is_not_normalized(code))
            return true;
        int boundary = 0;
        utf8proc_ssize_t got = utf8proc_decompose_char(code, p->codes + p->n, 32, options, &boundary);
        if (got < 0 || got > 32)
            return false;
        p->n += (size_t)got;
        at += (size_t)n;
    }
    return true;
}

static bool add_codes(const int32_t *codes, size_t n, struct buf *out)
{
    for (size_t i = 0; i < n; i++) {
        uint8_t bytes[4];
        if (!buf_add(out, bytes, (size_t)utf8proc_encode_char(codes[i], bytes)))
            return false;
    }
    return true;
}

/* The end of the leading ASCII run. Its last character may combine with what follows. */
static size_t ascii_run(const char *text, size_t n_bytes)
{
    size_t n = 0;
    uint64_t word;
    for (; n + 8 <= n_bytes; n += 8) {
        memcpy(&word, text + n, 8);
        if (word & 0x8080808080808080)
            break;
    }
    while (n < n_bytes && !(text[n] & 0x80))
        n++;
    return n;
}

/* Normalizes text with at most one leading ASCII character; the rest is not ASCII. */
static bool normalize_run(struct points *p, const char *text, size_t n_bytes, utf8proc_option_t options,
                          struct buf *out)
{
    while (n_bytes > 0) {
        size_t n;
        if (!decompose(p, text, n_bytes, options, &n))
            return false;
        sort_all_marks(p);
        utf8proc_ssize_t left = utf8proc_normalize_utf32(p->codes, (utf8proc_ssize_t)p->n, options);
        if (left < 0 || !add_codes(p->codes, (size_t)left, out))
            return false;
        text += n;
        n_bytes -= n;
        n = n_bytes > 0 ? (size_t)utf8_char(text, n_bytes)
                        : 0; /* an unchanged character: not a mark, does not combine */
        if (!buf_add(out, text, n))
            return false;
        text += n;
        n_bytes -= n;
    }
    return true;
}

bool unicode_normalize(enum unicode_form form, const char *text, size_t n_bytes, struct buf *out)
{
    bool composes = form == UNICODE_NFC || form == UNICODE_NFKC;
    utf8proc_option_t options = UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE);
    if (form == UNICODE_NFKC || form == UNICODE_NFKD)
        options |= UTF8PROC_COMPAT;
    struct points p = { 0 };
    bool ok = buf_reserve(out, n_bytes + 1);
    while (ok && n_bytes > 0) {
        size_t n = ascii_run(text, n_bytes);
        n -= n > 0 && n < n_bytes;
        ok = buf_add(out, text, n);
        text += n;
        n_bytes -= n;
        if (!ok || n_bytes == 0)
            break;
        n = 1; /* one ASCII character, or the first byte of another, and all non-ASCII bytes after it */
        while (n < n_bytes && (text[n] & 0x80))
            n++;
        ok = normalize_run(&p, text, n, options, out);
        text += n;
        n_bytes -= n;
    }
    free(p.codes);
    free(p.sorted);
    return ok;
}

bool unicode_clean(const char *text, size_t n_bytes, struct buf *out)
{
    if (!buf_reserve(out, n_bytes + 1))
        return false;
    while (n_bytes > 0) {
        size_t n = 0;
        int step;
        while (n < n_bytes && (step = utf8_char(text + n, n_bytes - n)) > 0)
            n += (size_t)step;
        if (!buf_add(out, text, n))
            return false;
        text += n;
        n_bytes -= n;
        if (n_bytes == 0)
            return true;
        n = 1;
        while (n < n_bytes && utf8_is_start(text, n + 1))
            n++;
        if (!buf_add(out, REPLACEMENT, 3))
            return false;
        text += n;
        n_bytes -= n;
    }
    return true;
}

/* Start of the last character. n_bytes >= 1. */
static size_t last_start(const char *text, size_t n_bytes)
{
    size_t at = n_bytes - 1;
    while (at > 0 && utf8_is_continuation(text[at]))
        at--;
    return at;
}

static bool is_blank(int32_t code)
{
    return (code >= 9 && code <= 13) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
           code == 0x205F || code == 0x3000;
}

static bool is_word(int32_t code)
{
    static const uint32_t OTHERS[] = { 0x200C,  0x200E,  0x24B6,  0x24EA,  0x1F130,
                                       0x1F14A, 0x1F150, 0x1F16A, 0x1F170, 0x1F18A };
    if (code < 0)
        return false;
    const struct substitute *run = substitute_find((uint32_t)code);
    switch (utf8proc_category(run ? (int32_t)run->by : code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return unicode_set_has(OTHERS, sizeof OTHERS / sizeof *OTHERS, (uint32_t)code);
    }
}

size_t unicode_blanks_at_start(const char *text, size_t n_bytes)
{
    size_t at = 0, n;
    while (at < n_bytes && is_blank(utf8_code_at(text + at, n_bytes - at, &n)))
        at += n;
    return at;
}

size_t unicode_blanks_at_end(const char *text, size_t n_bytes)
{
    size_t end = n_bytes, n;
    while (end > 0) {
        size_t at = last_start(text, end);
        if (!is_blank(utf8_code_at(text + at, end - at, &n)))
            break;
        end = at;
    }
    return n_bytes - end;
}

bool unicode_starts_with_word(const char *text, size_t n_bytes)
{
    size_t n;
    return n_bytes > 0 && is_word(utf8_code_at(text, n_bytes, &n));
}

bool unicode_ends_with_word(const char *text, size_t n_bytes)
{
    size_t at = n_bytes > 0 ? last_start(text, n_bytes) : 0, n;
    return n_bytes > 0 && is_word(utf8_code_at(text + at, n_bytes - at, &n));
}
