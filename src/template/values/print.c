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
        if (strtod(digits, NULL) == f)
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

/* ---- strings ---- */

static void add_string_repr(struct render *r, struct text *out, struct value s)
{
    bool has_single = memchr(s.bytes, '\'', s.n_bytes), has_double = memchr(s.bytes, '"', s.n_bytes);
    char quote = has_single && !has_double ? '"' : '\'';
    text_add_cstring(r, out, s.is_markup ? "Markup(" : "");
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
    text_add_cstring(r, out, s.is_markup ? ")" : "");
}

struct writer {
    struct render *r;
    struct text *out;
    const struct json_style *style; /* NULL: Python's repr() */
    struct value item, colon;
    int level;
};

static void write_escape(struct writer *w, uint32_t c)
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

static void write_json_string(struct writer *w, struct value s)
{
    size_t done = 0;
    text_add_cstring(w->r, w->out, "\"");
    for (size_t i = 0; i < s.n_bytes && !failed(w->r);) {
        uint32_t c;
        size_t n = (size_t)text_char(s.bytes + i, s.n_bytes - i, &c);
        if (c < 0x20 || c == '"' || c == '\\' || (c >= 0x7F && w->style->ensure_ascii)) {
            text_add_string(w->r, w->out, value_slice(s, done, i));
            write_escape(w, c);
            done = i + n;
        }
        i += n;
    }
    text_add_string(w->r, w->out, value_slice(s, done, s.n_bytes));
    text_add_cstring(w->r, w->out, "\"");
}

/* ---- all kinds ---- */

static void write_line(struct writer *w)
{
    if (!w->style || w->style->indent.kind == VALUE_NONE)
        return;
    text_add_cstring(w->r, w->out, "\n");
    for (int i = 0; i < w->level && !failed(w->r); i++) {
        if (w->style->indent.kind == VALUE_STRING)
            text_add_string(w->r, w->out, w->style->indent);
        for (int64_t blank = 0; w->style->indent.kind == VALUE_INT && blank < w->style->indent.i; blank++)
            text_add_cstring(w->r, w->out, " ");
    }
}

static void write_value(struct writer *w, struct value value);

static void write_word(const struct writer *w, const char *json, const char *python)
{
    text_add_cstring(w->r, w->out, w->style ? json : python);
}

static void write_items(struct writer *w, const struct value *items, size_t n)
{
    w->level++;
    for (size_t i = 0; i < n && !failed(w->r); i++) {
        if (i > 0)
            text_add_string(w->r, w->out, w->item);
        write_line(w);
        write_value(w, items[i]);
    }
    w->level--;
    if (n > 0)
        write_line(w);
}

static void write_range(struct writer *w, const struct list *list)
{
    int64_t first = list->n > 0 ? list->items[0].i : 0, step = list->n > 1 ? list->items[1].i - first : 1;
    int64_t end = list->n > 0 ? list->items[list->n - 1].i + (step < 0 ? -1 : 1) : 0;
    write_items(w, (struct value[]){ value_int(first), value_int(end), value_int(step) }, step != 1 ? 3 : 2);
}

static void write_list(struct writer *w, struct value value)
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
    const struct list *list = value.list;
    if (w->style && list->kind != LIST_LIST && list->kind != LIST_TUPLE) {
        fail_type(w->r, "Object of type %s is not JSON serializable", value_type_name(value));
        return;
    }
    write_word(w, "[", BRACKETS[list->kind].open);
    if (list->kind == LIST_RANGE)
        write_range(w, list);
    else if (list->kind != LIST_GENERATOR)
        write_items(w, list->items, list->n);
    if (list->kind == LIST_TUPLE && list->n == 1)
        write_word(w, "", ",");
    write_word(w, "]", BRACKETS[list->kind].close);
}

static void write_key(struct writer *w, struct value key)
{
    struct text text = { 0 };
    if (!w->style) {
        write_value(w, key);
        return;
    }
    if (key.kind == VALUE_STRING) {
        write_json_string(w, key);
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
    write_json_string(w, text_value(&text));
}

static void write_dict(struct writer *w, const struct dict *dict)
{
    struct pair *pairs = dict->pairs;
    if (w->style && w->style->sort_keys && dict->n > 0) {
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

/* The kinds that JSON lacks. */
static void write_other(struct writer *w, struct value value)
{
    if (w->style) {
        fail_type(w->r, "Object of type %s is not JSON serializable", value_type_name(value));
    } else if (value.kind == VALUE_UNDEFINED || value.kind == VALUE_ABSENT) {
        text_add_cstring(w->r, w->out, "Undefined");
    } else {
        text_add_cstring(w->r, w->out, "<");
        if (value.kind == VALUE_NAMESPACE) {
            text_add_cstring(w->r, w->out, "Namespace ");
            write_dict(w, value.dict);
        } else {
            text_add_cstring(w->r, w->out, value_type_name(value));
        }
        text_add_cstring(w->r, w->out, ">");
    }
}

static void write_value(struct writer *w, struct value value)
{
    if (enter(w->r) && spend(w->r, 0)) {
        switch (value.kind) {
        case VALUE_NONE:
            write_word(w, "null", "None");
            break;
        case VALUE_BOOL:
            write_word(w, value.is_true ? "true" : "false", value.is_true ? "True" : "False");
            break;
        case VALUE_INT:
        case VALUE_FLOAT:
            print_number(w->r, w->out, value, w->style != NULL);
            break;
        case VALUE_STRING:
            if (w->style)
                write_json_string(w, value);
            else
                add_string_repr(w->r, w->out, value);
            break;
        case VALUE_LIST:
            write_list(w, value);
            break;
        case VALUE_DICT:
            write_dict(w, value.dict);
            break;
        default:
            write_other(w, value);
            break;
        }
    }
    leave(w->r);
}

static void add_repr(struct render *r, struct text *out, struct value value)
{
    struct writer w = { .r = r, .out = out, .item = value_cstring(", "), .colon = value_cstring(": ") };
    write_value(&w, value);
}

/* ---- str(), repr() and json.dumps() ---- */

struct value value_repr(struct render *r, struct value value)
{
    struct text text = { 0 };
    add_repr(r, &text, value);
    return text_value(&text);
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

struct value value_to_json(struct render *r, struct value value, const struct json_style *style)
{
    struct text text = { 0 };
    bool is_flat = style->indent.kind == VALUE_NONE;
    struct writer writer = {
        .r = r, .out = &text, .style = style, .item = style->item, .colon = style->colon
    };
    if (writer.item.kind != VALUE_STRING)
        writer.item = value_cstring(is_flat ? ", " : ",");
    if (writer.colon.kind != VALUE_STRING)
        writer.colon = value_cstring(": ");
    write_value(&writer, value);
    return text_value(&text);
}
