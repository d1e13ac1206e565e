#include "template/values/strings.h"

#include "base/utf8.h"

#include <string.h>

static bool is_stripped(struct value chars, uint32_t code)
{
    if (chars.kind != VALUE_STRING)
        return text_is_blank(code);
    for (size_t i = 0; i < chars.n_bytes;) {
        uint32_t c;
        i += (size_t)text_char(chars.bytes + i, chars.n_bytes - i, &c);
        if (c == code)
            return true;
    }
    return false;
}

struct value string_strip(struct render *r, struct value s, struct value chars, bool left, bool right)
{
    size_t begin = 0, end = 0;
    uint32_t c;
    if (!spend_chars(r, s.n_bytes * (chars.kind == VALUE_STRING ? chars.n_bytes + 1 : 1)))
        return s;
    while (left && begin < s.n_bytes) {
        size_t n = (size_t)text_char(s.bytes + begin, s.n_bytes - begin, &c);
        if (!is_stripped(chars, c))
            break;
        begin += n;
    }
    end = begin;
    for (size_t i = begin; i < s.n_bytes;) {
        i += (size_t)text_char(s.bytes + i, s.n_bytes - i, &c);
        if (!is_stripped(chars, c))
            end = i;
    }
    return value_slice(s, begin, right ? end : s.n_bytes);
}

/* Word borders of Jinja's title filter. */
static bool starts_word(uint32_t c)
{
    return text_is_blank(c) || (c < 0x80 && c && strchr("-({[<", (int)c));
}

static uint32_t map_char(uint32_t c, enum case_mapping mapping, bool at_start)
{
    switch (mapping) {
    case CASE_UPPER:
        return text_upper(c);
    case CASE_LOWER:
        return text_lower(c);
    case CASE_SWAP:
        return text_upper(c) != c ? text_upper(c) : text_lower(c);
    default:
        return at_start ? text_upper(c) : text_lower(c);
    }
}

struct value string_map(struct render *r, struct value s, enum case_mapping mapping)
{
    struct text text = { 0 };
    bool at_start = true;
    size_t done = 0;
    if (!spend_chars(r, s.n_bytes))
        return s;
    for (size_t i = 0; i < s.n_bytes && !failed(r);) {
        uint32_t c;
        char out[4];
        size_t n = (size_t)text_char(s.bytes + i, s.n_bytes - i, &c);
        bool is_text = n > 1 || c < 0x80; /* else: invalid UTF-8 */
        uint32_t to = is_text ? map_char(c, mapping, at_start) : c;
        if (to != c) {
            struct value one = value_slice(s, i, i + n);
            size_t n_out = (size_t)utf8_encode(to, out);
            bool is_user = one.origin == ORIGIN_MIXED ? one.marks[0] : one.origin == ORIGIN_USER;
            text_add_string(r, &text, value_slice(s, done, i));
            text_add(r, &text, out, n_out, is_user ? ORIGIN_USER : ORIGIN_TRUSTED);
            done = i + n;
        }
        if (mapping == CASE_TITLE)
            at_start = !text_is_letter(c);
        else
            at_start = mapping == CASE_TITLE_FILTER && starts_word(c);
        i += n;
    }
    if (done == 0)
        return s;
    text_add_string(r, &text, value_slice(s, done, s.n_bytes));
    return text_value(&text);
}

/* Inserts between the characters, before the first and after the last. */
static struct value replace_nothing(struct render *r, struct value s, struct value to, int64_t n)
{
    struct text text = { 0 };
    for (size_t i = 0; i <= s.n_bytes && !failed(r);) {
        uint32_t c;
        if (n != 0) {
            text_add_string(r, &text, to);
            n--;
        }
        if (i == s.n_bytes)
            break;
        size_t n_char = (size_t)text_char(s.bytes + i, s.n_bytes - i, &c);
        text_add_string(r, &text, value_slice(s, i, i + n_char));
        i += n_char;
    }
    return text_value(&text);
}

struct value string_replace(struct render *r, struct value s, struct value from, struct value to, int64_t n)
{
    struct text text = { 0 };
    size_t done = 0, at;
    if (from.n_bytes == 0)
        return replace_nothing(r, s, to, n);
    if (!spend(r, s.n_bytes))
        return s;
    while (n != 0 && !failed(r) &&
           (at = text_find(s.bytes, s.n_bytes, done, from.bytes, from.n_bytes)) != SIZE_MAX) {
        text_add_string(r, &text, value_slice(s, done, at));
        text_add_string(r, &text, to);
        done = at + from.n_bytes;
        n -= n > 0;
        if (!spend(r, 0))
            break;
    }
    if (done == 0)
        return s;
    text_add_string(r, &text, value_slice(s, done, s.n_bytes));
    return text_value(&text);
}

static void reverse(struct list *list)
{
    for (size_t i = 0, k = list->n; i + 1 < k; i++) {
        struct value other = list->items[--k];
        list->items[k] = list->items[i];
        list->items[i] = other;
    }
}

/* Splits from the right, at most n times. */
static struct value split_right(struct render *r, struct value s, struct value separator, int64_t n)
{
    struct value out = value_list(r, LIST_LIST);
    size_t end = s.n_bytes;
    for (size_t at = s.n_bytes; at-- > 0 && n != 0 && !failed(r);) {
        if (at + separator.n_bytes > end || s.bytes[at] != separator.bytes[0] ||
            !spend(r, separator.n_bytes) || memcmp(s.bytes + at, separator.bytes, separator.n_bytes) != 0)
            continue;
        list_add(r, out.list, value_slice(s, at + separator.n_bytes, end));
        end = at;
        n -= n > 0;
    }
    list_add(r, out.list, value_slice(s, 0, end));
    if (!failed(r))
        reverse(out.list);
    return out;
}

static struct value split_blanks(struct render *r, struct value s, int64_t n)
{
    struct value out = value_list(r, LIST_LIST);
    size_t begin = SIZE_MAX;
    for (size_t i = 0; i < s.n_bytes && !failed(r);) {
        uint32_t c;
        size_t n_char = (size_t)text_char(s.bytes + i, s.n_bytes - i, &c);
        if (!text_is_blank(c) && begin == SIZE_MAX) {
            begin = i;
            if (n == 0) { /* the rest is one piece */
                list_add(r, out.list,
                         string_strip(r, value_slice(s, i, s.n_bytes), value_absent(), false, true));
                return out;
            }
        } else if (text_is_blank(c) && begin != SIZE_MAX) {
            list_add(r, out.list, value_slice(s, begin, i));
            begin = SIZE_MAX;
            n -= n > 0;
        }
        i += n_char;
    }
    if (begin != SIZE_MAX)
        list_add(r, out.list, value_slice(s, begin, s.n_bytes));
    return out;
}

/* The same from the right: words are found backwards. */
static struct value split_blanks_right(struct render *r, struct value s, int64_t n)
{
    struct value words = split_blanks(r, s, -1);
    if (failed(r) || n < 0 || (uint64_t)n >= words.list->n)
        return words;
    size_t n_first = words.list->n - (size_t)n;
    struct value out = value_list(r, LIST_LIST), last = words.list->items[n_first - 1];
    size_t end = (size_t)(last.bytes - s.bytes) + last.n_bytes; /* blanks before it stay */
    list_add(r, out.list, value_slice(s, 0, end));
    for (size_t i = n_first; i < words.list->n && !failed(r); i++)
        list_add(r, out.list, words.list->items[i]);
    return out;
}

struct value string_split(struct render *r, struct value s, struct value separator, int64_t n,
                          bool from_right)
{
    if (!spend(r, s.n_bytes))
        return s;
    if (separator.kind != VALUE_STRING)
        return from_right ? split_blanks_right(r, s, n) : split_blanks(r, s, n);
    if (separator.n_bytes == 0)
        return fail_type(r, "empty separator");
    if (from_right)
        return split_right(r, s, separator, n);
    struct value out = value_list(r, LIST_LIST);
    size_t begin = 0, at;
    while (n != 0 && spend(r, 0) &&
           (at = text_find(s.bytes, s.n_bytes, begin, separator.bytes, separator.n_bytes)) != SIZE_MAX) {
        list_add(r, out.list, value_slice(s, begin, at));
        begin = at + separator.n_bytes;
        n -= n > 0;
    }
    list_add(r, out.list, value_slice(s, begin, s.n_bytes));
    return out;
}

struct value string_lines(struct render *r, struct value s, bool keeps_ends)
{
    struct value out = value_list(r, LIST_LIST);
    size_t begin = 0;
    if (!spend_chars(r, s.n_bytes))
        return out;
    for (size_t i = 0; i < s.n_bytes && !failed(r);) {
        uint32_t c;
        size_t end = i;
        i += (size_t)text_char(s.bytes + i, s.n_bytes - i, &c);
        if (!text_is_line_end(c))
            continue;
        i += c == '\r' && i < s.n_bytes && s.bytes[i] == '\n';
        list_add(r, out.list, value_slice(s, begin, keeps_ends ? i : end));
        begin = i;
    }
    if (begin < s.n_bytes)
        list_add(r, out.list, value_slice(s, begin, s.n_bytes));
    return out;
}

struct value string_pad(struct render *r, struct value s, int64_t width, struct value fill,
                        enum padding padding)
{
    struct text text = { 0 };
    if (!spend_chars(r, s.n_bytes))
        return s;
    int64_t pad = width - (int64_t)text_length(s.bytes, s.n_bytes);
    if (pad <= 0)
        return s;
    /* For an odd width Python puts the extra blank on the left. */
    int64_t left = padding == PAD_LEFT ? pad : padding == PAD_RIGHT ? 0 : pad / 2 + (pad & width & 1);
    for (int64_t i = 0; i < left && !failed(r); i++)
        text_add_string(r, &text, fill);
    text_add_string(r, &text, s);
    for (int64_t i = left; i < pad && !failed(r); i++)
        text_add_string(r, &text, fill);
    return text_value(&text);
}

struct value string_join(struct render *r, struct value separator, const struct list *items, bool converts)
{
    struct text text = { 0 };
    for (size_t i = 0; i < items->n && !failed(r); i++) {
        if (i > 0)
            text_add_string(r, &text, separator);
        if (!converts && items->items[i].kind != VALUE_STRING)
            return fail_type(r, "sequence item %zu: expected str instance, %s found", i,
                             value_type_name(items->items[i]));
        text_add_value(r, &text, items->items[i]);
        if (!spend(r, 0))
            break;
    }
    return text_value(&text);
}
