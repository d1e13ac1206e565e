#include "engine/requests/rewrite.h"

#include "base/utf8.h"

#include <string.h>

static const char TIME[] = "[[训练时间]]", YEAR[] = "2023年";

static const struct mark {
    char narrow;
    const char *wide; /* three bytes */
} MARKS[] = { { ',', "，" }, { '!', "！" }, { ':', "：" }, { ';', "；" }, { '?', "？" } };

void rewrite_clear(struct rewrite *r)
{
    buf_clear(&r->held);
    r->is_behind_han = false;
}

/* U+4E00 to U+9FFF: E4 B8 80 to E9 BF BF. */
static bool is_han(const char *c, size_t n_bytes)
{
    return n_bytes >= 3 && utf8_char(c, n_bytes) == 3 && memcmp(c, "\xE4\xB8\x80", 3) >= 0 &&
           memcmp(c, "\xE9\xBF\xBF", 3) <= 0;
}

static const char *wide_form(char c)
{
    for (size_t i = 0; i < sizeof MARKS / sizeof *MARKS; i++) {
        if (MARKS[i].narrow == c)
            return MARKS[i].wide;
    }
    return NULL;
}

/* True: more text could complete whole. */
static bool is_beginning(const char *text, size_t n_bytes, const char *whole)
{
    return n_bytes < strlen(whole) && memcmp(text, whole, n_bytes) == 0;
}

/* Takes one character, or the mark, from the held text: returns its bytes and sets its replacement.
 * 0: more text is needed. */
static size_t take_character(const struct rewrite *r, const char *text, size_t n_bytes, bool widens_marks,
                             bool is_end, const char **to, size_t *n_to)
{
    size_t n_time = sizeof TIME - 1;
    *to = text;
    if (n_bytes >= n_time && memcmp(text, TIME, n_time) == 0) {
        *to = YEAR;
        *n_to = sizeof YEAR - 1;
        return n_time;
    }
    if (!is_end && (is_beginning(text, n_bytes, TIME) || utf8_is_start(text, n_bytes)))
        return 0;
    const char *wide = widens_marks ? wide_form(*text) : NULL;
    bool knows_next = is_end || (n_bytes > 1 && !utf8_is_start(text + 1, n_bytes - 1));
    if (wide && !r->is_behind_han && !knows_next)
        return 0;
    if (wide && (r->is_behind_han || is_han(text + 1, n_bytes - 1))) {
        *to = wide;
        *n_to = 3;
        return 1;
    }
    int n = utf8_char(text, n_bytes);
    *n_to = n > 0 ? (size_t)n : 1;
    return *n_to;
}

bool rewrite_push(struct rewrite *r, const char *text, size_t n_bytes, bool widens_marks, bool is_end,
                  struct buf *out)
{
    if (!buf_add(&r->held, text, n_bytes))
        return false;
    size_t at = 0, n = r->held.n_bytes;
    while (at < n) {
        const char *to;
        size_t n_to,
            n_taken = take_character(r, r->held.bytes + at, n - at, widens_marks, is_end, &to, &n_to);
        if (n_taken == 0)
            break;
        if (!buf_add(out, to, n_to))
            return false;
        r->is_behind_han = n_to >= 3 && is_han(to + n_to - 3, 3);
        at += n_taken;
    }
    if (at > 0)
        memmove(r->held.bytes, r->held.bytes + at, n - at);
    buf_truncate(&r->held, n - at);
    return true;
}
