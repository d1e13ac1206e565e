/* Strings of values: built with the origin of each byte, accessed by characters. */
#include "base/utf8.h"
#include "template/values/value.h"

#include <string.h>

/* ---- building ---- */

static bool text_reserve(struct render *r, struct text *text, size_t n)
{
    size_t need;
    if (failed(r))
        return false;
    if (__builtin_add_overflow(text->n, n, &need) || need > r->limits.output_bytes) {
        fail(r, TUTTI_E_LIMIT, "more than %zu bytes of text", r->limits.output_bytes);
        return false;
    }
    if (need <= text->capacity && text->bytes)
        return true;
    size_t capacity = text->capacity ? text->capacity * 2 : 64;
    if (capacity < need)
        capacity = need;
    char *bytes = arena_take_raw(&r->arena, capacity);
    if (!bytes)
        return take(r, capacity, 1) != NULL; /* the same refusal, as an error */
    if (text->bytes)
        memcpy(bytes, text->bytes, text->n);
    if (text->marks) {
        uint8_t *marks = take(r, capacity, 1);
        if (!marks)
            return false;
        memcpy(marks, text->marks, text->n);
        text->marks = marks;
    }
    text->bytes = bytes;
    text->capacity = capacity;
    return true;
}

/* From here on each byte has its own mark. */
static bool mix(struct render *r, struct text *text)
{
    if (text->origin == ORIGIN_MIXED)
        return true;
    uint8_t *marks = take(r, text->capacity, 1);
    if (!marks)
        return false;
    memset(marks, text->origin == ORIGIN_USER, text->n);
    text->marks = marks;
    text->origin = ORIGIN_MIXED;
    return true;
}

static void text_append(struct render *r, struct text *text, const char *bytes, size_t n, enum origin origin,
                        const uint8_t *marks)
{
    if (n == 0 || !spend(r, n) || !text_reserve(r, text, n))
        return;
    if (text->n == 0 && origin != ORIGIN_MIXED && text->origin != ORIGIN_MIXED)
        text->origin = origin;
    if (text->origin != origin || origin == ORIGIN_MIXED) {
        if (!mix(r, text))
            return;
        if (origin == ORIGIN_MIXED)
            memcpy(text->marks + text->n, marks, n);
        else
            memset(text->marks + text->n, origin == ORIGIN_USER, n);
    }
    memcpy(text->bytes + text->n, bytes, n);
    text->n += n;
}

void text_add(struct render *r, struct text *text, const char *bytes, size_t n_bytes, enum origin origin)
{
    text_append(r, text, bytes, n_bytes, origin, NULL);
}

void text_add_string(struct render *r, struct text *text, struct value string)
{
    text_append(r, text, string.bytes, string.n_bytes, string.origin, string.marks);
}

void text_add_cstring(struct render *r, struct text *text, const char *trusted)
{
    text_append(r, text, trusted, strlen(trusted), ORIGIN_TRUSTED, NULL);
}

void text_add_escaped(struct render *r, struct text *text, struct value string)
{
    static const struct {
        char c;
        const char *name;
    } ESCAPES[] = { { '&', "&amp;" }, { '<', "&lt;" }, { '>', "&gt;" }, { '"', "&#34;" }, { '\'', "&#39;" } };
    size_t done = 0;
    for (size_t i = 0; i < string.n_bytes && !string.is_markup; i++) {
        for (size_t e = 0; e < sizeof ESCAPES / sizeof *ESCAPES; e++) {
            if (string.bytes[i] != ESCAPES[e].c)
                continue;
            bool is_user = string.origin == ORIGIN_MIXED ? string.marks[i] : string.origin == ORIGIN_USER;
            text_add_string(r, text, value_slice(string, done, i));
            text_add(r, text, ESCAPES[e].name, strlen(ESCAPES[e].name),
                     is_user ? ORIGIN_USER : ORIGIN_TRUSTED);
            done = i + 1;
        }
    }
    text_add_string(r, text, value_slice(string, done, string.n_bytes));
}

struct value text_value(const struct text *text)
{
    return (struct value){ .kind = VALUE_STRING,
                           .origin = text->n > 0 ? text->origin : ORIGIN_TRUSTED,
                           .bytes = text->bytes ? text->bytes : "",
                           .n_bytes = text->n,
                           .marks = text->marks };
}

/* ---- characters ---- */

int text_char(const char *bytes, size_t n_bytes, uint32_t *code)
{
    int n = utf8_decode(bytes, n_bytes, code);
    if (n > 0)
        return n;
    *code = (uint8_t)bytes[0];
    return 1;
}

size_t text_length(const char *bytes, size_t n_bytes)
{
    size_t n = 0;
    uint32_t code;
    for (size_t i = 0; i < n_bytes; n++)
        i += (size_t)text_char(bytes + i, n_bytes - i, &code);
    return n;
}

size_t text_offset(const char *bytes, size_t n_bytes, size_t n_chars)
{
    size_t i = 0;
    uint32_t code;
    while (i < n_bytes && n_chars-- > 0)
        i += (size_t)text_char(bytes + i, n_bytes - i, &code);
    return i;
}

size_t text_find(const char *bytes, size_t n_bytes, size_t from, const char *needle, size_t n_needle)
{
    if (from > n_bytes)
        return SIZE_MAX;
    if (n_needle == 0)
        return from;
    const char *at = memmem(bytes + from, n_bytes - from, needle, n_needle);
    return at ? (size_t)(at - bytes) : SIZE_MAX;
}
