/* Prints values: Python's str() and repr(), and JSON as Python's json.dumps. */
#include "template/values/value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers ---- */

/* The shortest digits that read back as the same number, in Python's layout. */
static void print_float(char out[40], double f, bool is_json)
{
    if (isnan(f) || isinf(f)) {
        const char *word = isnan(f) ? (is_json ? "NaN" : "nan") : is_json ? "Infinity" : "inf";
        snprintf(out, 40, "%s%s", f < 0 ? "-" : "", word);
        return;
    }
    char digits[40];
    for (int n = 0; n < 17; n++) {
        snprintf(digits, sizeof digits, "%.*e", n, f);
        double back = strtod(digits, NULL);
        if (memcmp(&back, &f, sizeof f) == 0)
            break;
    }
    char *mark = strchr(digits, 'e');
    int exponent = atoi(mark + 1), n_digits = (int)(mark - digits) - (digits[0] == '-');
    n_digits -= n_digits > 1; /* the point */
    if (exponent >= -4 && exponent < 16) {
        int n_after = n_digits - 1 - exponent;
        snprintf(out, 40, "%.*f", n_after > 1 ? n_after : 1, f);
        return;
    }
    *mark = '\0';
    snprintf(out, 40, "%.24se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent) % 1000);
}

static void print_number(struct render *r, struct text *out, struct value value, bool is_json)
{
    char number[40];
    if (value.kind == VALUE_FLOAT)
        print_float(number, value.f, is_json);
    else
        snprintf(number, sizeof number, "%lld", (long long)value.i);
    text_add_cstring(r, out, number);
}

/* ---- Python ---- */

static void add_repr(struct render *r, struct text *out, struct value value);

static void add_string_repr(struct render *r, struct text *out, struct value s)
{
    bool has_single = memchr(s.bytes, '\'', s.n_bytes), has_double = memchr(s.bytes, '"', s.n_bytes);
    char quote = has_single && !has_double ? '"' : '\'';
    text_add(r, out, &quote, 1, ORIGIN_TRUSTED);
    for (size_t i = 0; i < s.n_bytes && !failed(r);) {
        uint32_t c;
        size_t n = (size_t)text_char(s.bytes + i, s.n_bytes - i, &c);
        char escape[16] = "";
        if (c == (uint32_t)quote || c == '\\')
            snprintf(escape, sizeof escape, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            snprintf(escape, sizeof escape, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (!text_is_printable(c) && c != ' ')
            snprintf(escape, sizeof escape, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
        if (escape[0])
            text_add(r, out, escape, strlen(escape), ORIGIN_TRUSTED);
        else
            text_add_string(r, out, value_slice(s, i, i + n));
        i += n;
    }
    text_add(r, out, &quote, 1, ORIGIN_TRUSTED);
}

static void add_items_repr(struct render *r, struct text *out, const struct list *list)
{
    for (size_t i = 0; i < list->n && !failed(r); i++) {
        if (i > 0)
            text_add_cstring(r, out, ", ");
        add_repr(r, out, list->items[i]);
    }
}

static void add_list_repr(struct render *r, struct text *out, const struct list *list)
{
    static const struct {
        const char *open, *close;
    } BRACKETS[] = {
        [LIST_LIST] = { "[", "]" },
        [LIST_TUPLE] = { "(", ")" },
        [LIST_GENERATOR] = { "<generator", ">" },
        [LIST_RANGE] = { "range(", ")" },
        [LIST_KEYS] = { "dict_keys([", "])" },
        [LIST_VALUES] = { "dict_values([", "])" },
        [LIST_ITEMS] = { "dict_items([", "])" },
    };
    text_add_cstring(r, out, BRACKETS[list->kind].open);
    if (list->kind == LIST_RANGE) {
        struct value first = list->n > 0 ? list->items[0] : value_int(0);
        struct value second = value_int(list->n > 1 ? list->items[1].i - first.i : 1);
        struct value end = value_int(list->n > 0 ? list->items[list->n - 1].i + (second.i < 0 ? -1 : 1) : 0);
        add_repr(r, out, first);
        text_add_cstring(r, out, ", ");
        add_repr(r, out, end);
        if (second.i != 1) {
            text_add_cstring(r, out, ", ");
            add_repr(r, out, second);
        }
    } else if (list->kind != LIST_GENERATOR) {
        add_items_repr(r, out, list);
        if (list->kind == LIST_TUPLE && list->n == 1)
            text_add_cstring(r, out, ",");
    }
    text_add_cstring(r, out, BRACKETS[list->kind].close);
}

static void add_dict_repr(struct render *r, struct text *out, const struct dict *dict)
{
    text_add_cstring(r, out, "{");
    for (size_t i = 0; i < dict->n && !failed(r); i++) {
        if (i > 0)
            text_add_cstring(r, out, ", ");
        add_repr(r, out, dict->pairs[i].key);
        text_add_cstring(r, out, ": ");
        add_repr(r, out, dict->pairs[i].value);
    }
    text_add_cstring(r, out, "}");
}

static void add_repr(struct render *r, struct text *out, struct value value)
{
    if (enter(r) && spend(r, 0)) {
        switch (value.kind) {
        case VALUE_UNDEFINED:
        case VALUE_ABSENT:
            text_add_cstring(r, out, "Undefined");
            break;
        case VALUE_NONE:
            text_add_cstring(r, out, "None");
            break;
        case VALUE_BOOL:
            text_add_cstring(r, out, value.is_true ? "True" : "False");
            break;
        case VALUE_INT:
        case VALUE_FLOAT:
            print_number(r, out, value, false);
            break;
        case VALUE_STRING:
            text_add_cstring(r, out, value.is_markup ? "Markup(" : "");
            add_string_repr(r, out, value);
            text_add_cstring(r, out, value.is_markup ? ")" : "");
            break;
        case VALUE_LIST:
            add_list_repr(r, out, value.list);
            break;
        case VALUE_DICT:
            add_dict_repr(r, out, value.dict);
            break;
        case VALUE_NAMESPACE:
            text_add_cstring(r, out, "<Namespace ");
            add_dict_repr(r, out, value.dict);
            text_add_cstring(r, out, ">");
            break;
        default:
            text_add_cstring(r, out, "<");
            text_add_cstring(r, out, value_type_name(value));
            text_add_cstring(r, out, ">");
            break;
        }
    }
    leave(r);
}

void text_add_value(struct render *r, struct text *text, struct value value)
{
    if (value.kind == VALUE_STRING)
        text_add_string(r, text, value);
    else if (value.kind != VALUE_UNDEFINED && value.kind != VALUE_ABSENT)
        add_repr(r, text, value);
}

struct value value_to_string(struct render *r, struct value value)
{
    if (value.kind == VALUE_STRING)
        return value;
    struct text text = { 0 };
    text_add_value(r, &text, value);
    return text_value(&text);
}

struct value value_repr(struct render *r, struct value value)
{
    struct text text = { 0 };
    add_repr(r, &text, value);
    return text_value(&text);
}

/* ---- JSON ---- */

struct json_writer {
    struct render *r;
    struct text *out;
    const struct json_style *style;
    struct value item, colon;
    int level;
};

static void write_escape(struct json_writer *w, uint32_t c)
{
    static const char SHORT[] = "\"\\\b\f\n\r\t", LETTER[] = "\"\\bfnrt";
    char escape[16];
    const char *at = c < 0x80 && c > 0 ? strchr(SHORT, (int)c) : NULL;
    if (at)
        snprintf(escape, sizeof escape, "\\%c", LETTER[at - SHORT]);
    else if (c < 0x10000)
        snprintf(escape, sizeof escape, "\\u%04x", c);
    else
        snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xD800 + ((c - 0x10000) >> 10),
                 0xDC00 + (c & 0x3FF));
    text_add_cstring(w->r, w->out, escape);
}

static void write_string(struct json_writer *w, struct value s)
{
    size_t done = 0;
    text_add_cstring(w->r, w->out, "\"");
    for (size_t i = 0; i < s.n_bytes && !failed(w->r);) {
        uint32_t c;
        size_t n = (size_t)text_char(s.bytes + i, s.n_bytes - i, &c);
        if (c < 0x20 || c == '"' || c == '\\' || (c >= 0x7F + 1 && w->style->ensure_ascii)) {
            text_add_string(w->r, w->out, value_slice(s, done, i));
            write_escape(w, c);
            done = i + n;
        }
        i += n;
    }
    text_add_string(w->r, w->out, value_slice(s, done, s.n_bytes));
    text_add_cstring(w->r, w->out, "\"");
}

static void write_line(struct json_writer *w)
{
    if (w->style->indent.kind == VALUE_NONE)
        return;
    text_add_cstring(w->r, w->out, "\n");
    for (int i = 0; i < w->level && !failed(w->r); i++) {
        if (w->style->indent.kind == VALUE_STRING)
            text_add_string(w->r, w->out, w->style->indent);
        for (int64_t blank = 0; w->style->indent.kind == VALUE_INT && blank < w->style->indent.i; blank++)
            text_add_cstring(w->r, w->out, " ");
    }
}

static void write_value(struct json_writer *w, struct value value);

static void write_list(struct json_writer *w, const struct list *list)
{
    if (list->kind != LIST_LIST && list->kind != LIST_TUPLE) {
        fail_type(
            w->r, "Object of type %s is not JSON serializable",
            value_type_name((struct value){ .kind = VALUE_LIST, .list = (struct list *)(uintptr_t)list }));
        return;
    }
    text_add_cstring(w->r, w->out, "[");
    w->level++;
    for (size_t i = 0; i < list->n && !failed(w->r); i++) {
        if (i > 0)
            text_add_string(w->r, w->out, w->item);
        write_line(w);
        write_value(w, list->items[i]);
    }
    w->level--;
    if (list->n > 0)
        write_line(w);
    text_add_cstring(w->r, w->out, "]");
}

static void write_key(struct json_writer *w, struct value key)
{
    struct text text = { 0 };
    if (key.kind == VALUE_STRING) {
        write_string(w, key);
        return;
    }
    if (key.kind == VALUE_BOOL)
        text_add_cstring(w->r, &text, key.is_true ? "true" : "false");
    else if (key.kind == VALUE_NONE)
        text_add_cstring(w->r, &text, "null");
    else if (value_is_number(key))
        print_number(w->r, &text, key, true);
    else
        fail_type(w->r, "keys must be str, int, float, bool or None, not %s", value_type_name(key));
    write_string(w, text_value(&text));
}

static void write_dict(struct json_writer *w, const struct dict *dict)
{
    struct pair *pairs = dict->pairs;
    if (w->style->sort_keys && dict->n > 0) {
        pairs = take(w->r, dict->n, sizeof *pairs);
        if (!pairs)
            return;
        memcpy(pairs, dict->pairs, dict->n * sizeof *pairs);
        pairs_sort(w->r, pairs, dict->n, false);
    }
    text_add_cstring(w->r, w->out, "{");
    w->level++;
    for (size_t i = 0; i < dict->n && !failed(w->r); i++) {
        if (i > 0)
            text_add_string(w->r, w->out, w->item);
        write_line(w);
        write_key(w, pairs[i].key);
        text_add_string(w->r, w->out, w->colon);
        write_value(w, pairs[i].value);
    }
    w->level--;
    if (dict->n > 0)
        write_line(w);
    text_add_cstring(w->r, w->out, "}");
}

static void write_value(struct json_writer *w, struct value value)
{
    if (enter(w->r) && spend(w->r, 0)) {
        switch (value.kind) {
        case VALUE_NONE:
            text_add_cstring(w->r, w->out, "null");
            break;
        case VALUE_BOOL:
            text_add_cstring(w->r, w->out, value.is_true ? "true" : "false");
            break;
        case VALUE_INT:
        case VALUE_FLOAT:
            print_number(w->r, w->out, value, true);
            break;
        case VALUE_STRING:
            write_string(w, value);
            break;
        case VALUE_LIST:
            write_list(w, value.list);
            break;
        case VALUE_DICT:
            write_dict(w, value.dict);
            break;
        default:
            fail_type(w->r, "Object of type %s is not JSON serializable", value_type_name(value));
            break;
        }
    }
    leave(w->r);
}

struct value value_to_json(struct render *r, struct value value, const struct json_style *style)
{
    struct text text = { 0 };
    bool is_flat = style->indent.kind == VALUE_NONE;
    struct json_writer writer = {
        .r = r, .out = &text, .style = style, .item = style->item, .colon = style->colon
    };
    if (writer.item.kind != VALUE_STRING)
        writer.item = value_cstring(is_flat ? ", " : ",");
    if (writer.colon.kind != VALUE_STRING)
        writer.colon = value_cstring(": ");
    write_value(&writer, value);
    return text_value(&text);
}
