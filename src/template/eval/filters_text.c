/* Filters over strings and numbers. */
#include "template/eval/eval.h"
#include "template/values/strings.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct value f_strip(struct render *r, struct value self, const struct args *a)
{
    struct value chars = arg_string(r, a, 0, NULL);
    return string_strip(r, value_to_string(r, self), chars, a->mode & STRIP_LEFT, a->mode & STRIP_RIGHT);
}

struct value f_case(struct render *r, struct value self, const struct args *a)
{
    return string_map(r, value_to_string(r, self), (enum case_mapping)a->mode);
}

struct value f_pad(struct render *r, struct value self, const struct args *a)
{
    return string_pad(r, value_to_string(r, self), arg_int(r, a, 0, 80), arg_string(r, a, 1, " "),
                      (enum padding)a->mode);
}

BUILTIN(f_string)
{
    return value_to_string(r, self);
}

BUILTIN(f_safe)
{
    struct value out = value_to_string(r, self);
    out.is_markup = true;
    return out;
}

BUILTIN(f_escape)
{
    struct text text = { 0 };
    text_add_escaped(r, &text, value_to_string(r, self));
    struct value out = text_value(&text);
    out.is_markup = true;
    return out;
}

BUILTIN(f_replace)
{
    struct value from = value_to_string(r, a->values[0]), to = value_to_string(r, a->values[1]);
    return string_replace(r, value_to_string(r, self), from, to, arg_int(r, a, 2, -1));
}

BUILTIN(f_format)
{
    struct value values = value_list(r, LIST_TUPLE), names = value_dict(r);
    list_add_all(r, values.list, &(struct list){ .items = a->given, .n = a->n_given });
    dict_add_keywords(r, names.dict, a);
    return failed(r) ? self : format_percent(r, value_to_string(r, self), a->n_keywords ? names : values);
}

/* Jinja's own indentation: lines as Python's splitlines() has them, joined by newlines. */
BUILTIN(f_indent)
{
    struct value s = self, lines;
    struct text text = { 0 };
    if (self.kind != VALUE_STRING)
        return fail_type(r, "indent: expected a string, found %s", value_type_name(self));
    struct value width = a->values[0];
    int64_t n_blanks = width.kind == VALUE_STRING ? 0 : arg_int(r, a, 0, 4);
    struct value mark = width.kind == VALUE_STRING ? width : value_cstring(" ");
    int64_t n_marks = width.kind == VALUE_STRING ? 1 : n_blanks;
    bool first = arg_bool(a, 1, false), blank = arg_bool(a, 2, false);
    struct text with_end = { 0 };
    text_add_string(r, &with_end, s);
    text_add_cstring(r, &with_end, "\n");
    lines = string_lines(r, text_value(&with_end), false);
    for (size_t i = 0; !failed(r) && i < lines.list->n; i++) {
        struct value line = lines.list->items[i];
        bool indents = i == 0 ? first : blank || line.n_bytes > 0;
        if (i > 0)
            text_add_cstring(r, &text, "\n");
        for (int64_t k = 0; indents && k < n_marks && !failed(r); k++)
            text_add_string(r, &text, mark);
        text_add_string(r, &text, line);
    }
    return text_value(&text);
}

BUILTIN(f_wordcount)
{
    int64_t n = 0;
    bool inside = false;
    struct value s = value_to_string(r, self);
    if (!spend_chars(r, s.n_bytes))
        return self;
    for (size_t i = 0; i < s.n_bytes;) {
        uint32_t c;
        i += (size_t)text_char(s.bytes + i, s.n_bytes - i, &c);
        bool is_word = text_is_alnum(c) || c == '_';
        n += is_word && !inside;
        inside = is_word;
    }
    return value_int(n);
}

BUILTIN(f_truncate)
{
    struct value end = arg_string(r, a, 2, "...");
    int64_t length = arg_int(r, a, 0, 255), leeway = arg_int(r, a, 3, 5), n;
    bool is_list = self.kind == VALUE_LIST && self.list->kind != LIST_GENERATOR;
    if (self.kind == VALUE_STRING && spend_chars(r, self.n_bytes))
        n = (int64_t)text_length(self.bytes, self.n_bytes);
    else
        n = is_list ? (int64_t)self.list->n : self.kind == VALUE_DICT ? (int64_t)self.dict->n : 0;
    if (self.kind != VALUE_STRING && !is_list && self.kind != VALUE_DICT && self.kind != VALUE_UNDEFINED)
        return fail_type(r, "object of type '%s' has no len()", value_type_name(self));
    if (failed(r) || n - leeway <= length)
        return self;
    int64_t n_end = (int64_t)text_length(end.bytes, end.n_bytes);
    if (self.kind != VALUE_STRING || length < n_end)
        return fail_type(r, "truncate: expected a string and a length of at least %lld", (long long)n_end);
    struct value s = value_slice(self, 0, text_offset(self.bytes, self.n_bytes, (size_t)(length - n_end)));
    for (size_t i = s.n_bytes; !arg_bool(a, 1, false) && i-- > 0;) {
        if (s.bytes[i] == ' ') {
            s = value_slice(s, 0, i);
            break;
        }
    }
    return binary_value(r, TOKEN_ADD, s, end);
}

BUILTIN(f_tojson)
{
    struct json_style style = { .ensure_ascii = arg_bool(a, 0, false),
                                .sort_keys = arg_bool(a, 3, false),
                                .indent = a->values[1] };
    if (!arg_given(a, 1))
        style.indent = value_none();
    else if (style.indent.kind == VALUE_BOOL)
        style.indent = value_int(style.indent.is_true);
    else if (style.indent.kind != VALUE_INT && style.indent.kind != VALUE_STRING)
        return fail_type(r, "tojson: indent must be a number or a string");
    if (arg_given(a, 2)) {
        struct value pair = a->values[2];
        bool is_pair = pair.kind == VALUE_LIST && pair.list->n == 2 &&
                       pair.list->items[0].kind == VALUE_STRING && pair.list->items[1].kind == VALUE_STRING;
        if (!is_pair)
            return fail_type(r, "tojson: separators must be two strings");
        style.item = pair.list->items[0];
        style.colon = pair.list->items[1];
    }
    return value_to_json(r, self, &style);
}

/* ---- numbers ---- */

/* Parses a string like Python's int() and float(); false: not a number. */
static bool parse_number(struct render *r, struct value s, int base, struct value *out)
{
    char digits[400], *end;
    size_t n = 0;
    s = string_strip(r, s, value_absent(), true, true);
    for (size_t i = 0; i < s.n_bytes; i++) {
        bool joins = s.bytes[i] == '_' && i > 0 && i + 1 < s.n_bytes && s.bytes[i - 1] != '_' &&
                     s.bytes[i + 1] != '_';
        if (joins)
            continue;
        if (n + 1 >= sizeof digits || s.bytes[i] <= ' ' || s.bytes[i] == '(')
            return false;
        digits[n++] = s.bytes[i];
    }
    digits[n] = '\0';
    errno = 0;
    if (n == 0)
        return false;
    if (base > 0) {
        long long i = strtoll(digits, &end, base);
        *out = value_int(i);
        return *end == '\0' && errno == 0;
    }
    bool is_hex = strpbrk(digits, "xX");
    *out = value_float(strtod(digits, &end));
    return *end == '\0' && !is_hex;
}

BUILTIN(f_int)
{
    struct value number, fallback = a->values[0].kind == VALUE_ABSENT ? value_int(0) : a->values[0];
    int64_t base = arg_int(r, a, 1, 10);
    if (self.kind == VALUE_UNDEFINED)
        return fail_type(r, "int: the value is undefined");
    if (self.kind == VALUE_STRING) {
        if (base < 2 || base > 36)
            return fail_type(r, "int: the base must lie between 2 and 36");
        if (parse_number(r, self, (int)base, &number))
            return number;
        if (!parse_number(r, self, 0, &number))
            return fallback;
        self = number;
    }
    if (self.kind == VALUE_BOOL)
        return value_int(self.is_true);
    if (self.kind == VALUE_FLOAT && self.f > -9.2e18 && self.f < 9.2e18)
        return value_int((int64_t)self.f);
    return self.kind == VALUE_INT ? self : fallback;
}

BUILTIN(f_float)
{
    struct value number, fallback = a->values[0].kind == VALUE_ABSENT ? value_float(0) : a->values[0];
    if (self.kind == VALUE_UNDEFINED)
        return fail_type(r, "float: the value is undefined");
    if (self.kind == VALUE_STRING)
        return parse_number(r, self, 0, &number) ? number : fallback;
    return value_is_number(self) ? value_float(value_number(self)) : fallback;
}

BUILTIN(f_abs)
{
    if (!value_is_number(self))
        return fail_type(r, "bad operand type for abs(): '%s'", value_type_name(self));
    if (self.kind == VALUE_FLOAT)
        return value_float(fabs(self.f));
    return value_is_true(self) && value_number(self) < 0 ? binary_value(r, TOKEN_SUB, value_int(0), self)
                                                         : value_int((int64_t)value_number(self));
}

/* Rounds half to even, as Python's round(). */
BUILTIN(f_round)
{
    int64_t precision = arg_int(r, a, 0, 0);
    struct value method = arg_string(r, a, 1, "common");
    if (!value_is_number(self))
        return fail_type(r, "round: a number is required, not %s", value_type_name(self));
    if (precision < -20 || precision > 20)
        return fail_type(r, "round: the precision must lie between -20 and 20");
    double scale = pow(10, (double)precision), x = value_number(self);
    if (value_is_string(method, "ceil"))
        return value_float(ceil(x * scale) / scale);
    if (value_is_string(method, "floor"))
        return value_float(floor(x * scale) / scale);
    if (!value_is_string(method, "common"))
        return fail_type(r, "round: the method must be common, ceil or floor");
    if (self.kind != VALUE_FLOAT && precision >= 0)
        return value_int((int64_t)x);
    if (precision < 0)
        return value_float(nearbyint(x * scale) / scale);
    /* Python rounds the exact decimal value: 2.675 is stored as slightly less. */
    char text[16];
    snprintf(text, sizeof text, "%%.%df", (int)precision);
    struct value number = value_float(x);
    bool is_read = isfinite(x) && parse_number(r, format_percent(r, value_cstring(text), self), 0, &number);
    return is_read ? number : value_float(x);
}

const struct builtin TEXT_FILTERS[] = {
    { "abs", f_abs, { NULL }, 0 },
    { "capitalize", f_case, { NULL }, 0, CASE_CAPITALIZE },
    { "center", f_pad, { "width" }, 0, PAD_BOTH },
    { "e", f_escape, { NULL }, 0 },
    { "escape", f_escape, { NULL }, 0 },
    { "float", f_float, { "default" }, 0 },
    { "forceescape", f_escape, { NULL }, 0 },
    { "format", f_format, { NULL }, -1 },
    { "indent", f_indent, { "width", "first", "blank" }, 0 },
    { "int", f_int, { "default", "base" }, 0 },
    { "lower", f_case, { NULL }, 0, CASE_LOWER },
    { "replace", f_replace, { "old", "new", "count" }, 2 },
    { "round", f_round, { "precision", "method" }, 0 },
    { "safe", f_safe, { NULL }, 0 },
    { "string", f_string, { NULL }, 0 },
    { "title", f_case, { NULL }, 0, CASE_TITLE_FILTER },
    { "tojson", f_tojson, { "ensure_ascii", "indent", "separators", "sort_keys" }, 0 },
    { "trim", f_strip, { "chars" }, 0, STRIP_LEFT | STRIP_RIGHT },
    { "truncate", f_truncate, { "length", "killwords", "end", "leeway" }, 0 },
    { "upper", f_case, { NULL }, 0, CASE_UPPER },
    { "wordcount", f_wordcount, { NULL }, 0 },
    { 0 },
};
