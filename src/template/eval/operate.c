/* Operators, as in Python. */
#include "template/eval/eval.h"
#include "template/values/strings.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct value wrong_operands(struct render *r, enum token_kind op, struct value a, struct value b)
{
    struct value *undefined = a.kind == VALUE_UNDEFINED ? &a : b.kind == VALUE_UNDEFINED ? &b : NULL;
    if (undefined)
        return fail_type(r, "'%.*s' is undefined", (int)(undefined->n_bytes < 100 ? undefined->n_bytes : 100),
                         undefined->bytes);
    return fail_type(r, "unsupported operand types for %s: '%s' and '%s'", token_name(op), value_type_name(a),
                     value_type_name(b));
}

static int64_t floor_div(int64_t a, int64_t b)
{
    int64_t q = a / b;
    return q - ((a % b != 0) && ((a < 0) != (b < 0)));
}

static bool int_power(int64_t base, int64_t exponent, int64_t *out)
{
    *out = 1;
    while (exponent > 0) {
        if ((exponent & 1) && __builtin_mul_overflow(*out, base, out))
            return false;
        exponent >>= 1;
        if (exponent > 0 && __builtin_mul_overflow(base, base, &base))
            return false;
    }
    return true;
}

static struct value int_operation(struct render *r, enum token_kind op, int64_t a, int64_t b)
{
    int64_t out = 0;
    bool is_over = false;
    switch (op) {
    case TOKEN_ADD:
        is_over = __builtin_add_overflow(a, b, &out);
        break;
    case TOKEN_SUB:
        is_over = __builtin_sub_overflow(a, b, &out);
        break;
    case TOKEN_MUL:
        is_over = __builtin_mul_overflow(a, b, &out);
        break;
    case TOKEN_POW:
        is_over = !int_power(a, b, &out);
        break;
    default: /* // and % */
        if (b == 0)
            return fail_type(r, "division by zero");
        is_over = a == INT64_MIN && b == -1;
        if (!is_over)
            out = op == TOKEN_FLOORDIV ? floor_div(a, b) : a - floor_div(a, b) * b;
        break;
    }
    return is_over ? fail_type(r, "a number beyond 64 bits") : value_int(out);
}

static struct value number_operation(struct render *r, enum token_kind op, struct value a, struct value b)
{
    bool is_float = a.kind == VALUE_FLOAT || b.kind == VALUE_FLOAT || op == TOKEN_DIV;
    double x = value_number(a), y = value_number(b);
    if (!is_float && !(op == TOKEN_POW && value_integer(b) < 0))
        return int_operation(r, op, value_integer(a), value_integer(b));
    switch (op) {
    case TOKEN_ADD:
        return value_float(x + y);
    case TOKEN_SUB:
        return value_float(x - y);
    case TOKEN_MUL:
        return value_float(x * y);
    case TOKEN_POW:
        return value_float(pow(x, y));
    default:
        break;
    }
    if (!(y < 0 || y > 0 || isnan(y)))
        return fail_type(r, "division by zero");
    if (op == TOKEN_DIV)
        return value_float(x / y);
    double rest = fmod(x, y);
    if (rest * y < 0)
        rest += y;
    return value_float(op == TOKEN_MOD ? rest : floor((x - rest) / y + 0.5));
}

static struct value add_strings(struct render *r, struct value a, struct value b)
{
    struct text text = { 0 };
    bool escapes = a.is_markup || b.is_markup;
    if (!escapes && (a.n_bytes == 0 || b.n_bytes == 0))
        return a.n_bytes == 0 ? b : a;
    if (escapes) {
        text_add_escaped(r, &text, a);
        text_add_escaped(r, &text, b);
    } else {
        text_add_string(r, &text, a);
        text_add_string(r, &text, b);
    }
    struct value out = text_value(&text);
    out.is_markup = escapes;
    return out;
}

static struct value add_lists(struct render *r, const struct list *a, const struct list *b)
{
    struct value out = value_list(r, a->kind);
    list_add_all(r, out.list, a);
    list_add_all(r, out.list, b);
    return out;
}

static struct value repeat(struct render *r, struct value what, int64_t n)
{
    struct text text = { 0 };
    struct value out = what.kind == VALUE_LIST ? value_list(r, what.list->kind) : value_undefined("");
    bool is_empty = what.kind == VALUE_STRING ? what.n_bytes == 0 : what.list->n == 0;
    for (int64_t i = 0; i < n && !is_empty && spend(r, 0); i++) {
        if (what.kind == VALUE_STRING)
            text_add_string(r, &text, what);
        else
            list_add_all(r, out.list, what.list);
    }
    return what.kind == VALUE_STRING ? text_value(&text) : out;
}

static bool is_plain_list(struct value value)
{
    return value.kind == VALUE_LIST && (value.list->kind == LIST_LIST || value.list->kind == LIST_TUPLE);
}

struct value binary_value(struct render *r, enum token_kind op, struct value a, struct value b)
{
    if (value_is_number(a) && value_is_number(b))
        return number_operation(r, op, a, b);
    if (op == TOKEN_ADD && a.kind == VALUE_STRING && b.kind == VALUE_STRING)
        return add_strings(r, a, b);
    if (op == TOKEN_ADD && is_plain_list(a) && is_plain_list(b) && a.list->kind == b.list->kind)
        return add_lists(r, a.list, b.list);
    if (op == TOKEN_MOD && a.kind == VALUE_STRING)
        return format_percent(r, a, b);
    bool a_repeats = a.kind == VALUE_STRING || is_plain_list(a),
         b_repeats = b.kind == VALUE_STRING || is_plain_list(b);
    if (op == TOKEN_MUL && a_repeats && value_is_integer(b))
        return repeat(r, a, value_integer(b));
    if (op == TOKEN_MUL && b_repeats && value_is_integer(a))
        return repeat(r, b, value_integer(a));
    return wrong_operands(r, op, a, b);
}

static bool contains(struct render *r, struct value container, struct value item)
{
    if (container.kind == VALUE_STRING) {
        if (item.kind != VALUE_STRING) {
            fail_type(r, "'in <string>' requires string as left operand, not %s", value_type_name(item));
            return false;
        }
        return spend(r, container.n_bytes) &&
               text_find(container.bytes, container.n_bytes, 0, item.bytes, item.n_bytes) != SIZE_MAX;
    }
    if (container.kind == VALUE_DICT && value_is_key(r, item))
        return dict_find(r, container.dict, item) != NULL;
    struct list *list = value_iterate(r, container);
    for (size_t i = 0; list && i < list->n && spend(r, 0); i++) {
        if (value_equals(r, list->items[i], item))
            return true;
    }
    return false;
}

bool compare_values(struct render *r, enum token_kind op, struct value a, struct value b)
{
    switch (op) {
    case TOKEN_EQ:
        return value_equals(r, a, b);
    case TOKEN_NE:
        return !value_equals(r, a, b);
    case TOKEN_IN:
        return contains(r, b, a);
    case TOKEN_NOT_IN:
        return !contains(r, b, a);
    default:
        break;
    }
    if (a.kind == VALUE_UNDEFINED || b.kind == VALUE_UNDEFINED) {
        wrong_operands(r, op, a, b);
        return false;
    }
    bool is_nan = (a.kind == VALUE_FLOAT && isnan(a.f)) || (b.kind == VALUE_FLOAT && isnan(b.f));
    int order = value_compare(r, a, b);
    if (failed(r) || is_nan)
        return false;
    return op == TOKEN_LT ? order < 0 : op == TOKEN_LE ? order <= 0 : op == TOKEN_GT ? order > 0 : order >= 0;
}

/* ---- slices ---- */

/* Python's rules for a slice bound: negative counts from the end; clamped to the sequence. */
static int64_t bound_of(struct render *r, struct value bound, int64_t fallback, int64_t low, int64_t high,
                        int64_t n)
{
    if (bound.kind == VALUE_NONE)
        return fallback;
    if (!value_is_integer(bound)) {
        fail_type(r, "slice indices must be integers or None, not %s", value_type_name(bound));
        return 0;
    }
    int64_t i = value_integer(bound);
    if (i < 0 && __builtin_add_overflow(i, n, &i))
        i = low;
    return i < low ? low : i > high ? high : i;
}

/* Characters [begin, end) with a step. */
static struct value slice_string(struct render *r, struct value s, int64_t begin, int64_t end, int64_t step)
{
    if (step == 1) {
        size_t from = text_offset(s.bytes, s.n_bytes, (size_t)begin);
        size_t n = end > begin ? (size_t)(end - begin) : 0;
        return value_slice(s, from, from + text_offset(s.bytes + from, s.n_bytes - from, n));
    }
    struct text text = { 0 };
    struct list *chars = value_iterate(r, s);
    for (int64_t i = begin; chars && (step > 0 ? i < end : i > end) && !failed(r);) {
        text_add_string(r, &text, chars->items[i]);
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    return text_value(&text);
}

struct value slice_value(struct render *r, struct value object, struct value begin, struct value end,
                         struct value step)
{
    int64_t by = step.kind == VALUE_NONE ? 1 : step.kind == VALUE_INT ? step.i : 0;
    bool is_list = object.kind == VALUE_LIST && object.list->kind != LIST_GENERATOR &&
                   object.list->kind < LIST_KEYS;
    if (object.kind == VALUE_UNDEFINED)
        return wrong_operands(r, TOKEN_LBRACKET, object, object);
    if (object.kind != VALUE_STRING && !is_list)
        return value_undefined("a slice of what has no order");
    if (by == 0)
        return fail_type(r, "the step of a slice must be a number other than 0");
    if (!spend_chars(r, object.kind == VALUE_STRING ? object.n_bytes : 0))
        return object;
    int64_t n = object.kind == VALUE_STRING ? (int64_t)text_length(object.bytes, object.n_bytes)
                                            : (int64_t)object.list->n;
    int64_t low = by < 0 ? -1 : 0, high = by < 0 ? n - 1 : n;
    int64_t from = bound_of(r, begin, by < 0 ? high : low, low, high, n);
    int64_t to = bound_of(r, end, by < 0 ? low : high, low, high, n);
    if (failed(r))
        return object;
    if (object.kind == VALUE_STRING)
        return slice_string(r, object, from, to, by);
    struct value out = value_list(r, object.list->kind == LIST_TUPLE ? LIST_TUPLE : LIST_LIST);
    if (by == 1 && from < to &&
        !failed(r)) { /* no copy: templates look at messages[loop.index:] in each round */
        object.list->is_shared = out.list->is_shared = true;
        out.list->items = object.list->items + from;
        out.list->n = out.list->capacity = (size_t)(to - from);
        return out;
    }
    for (int64_t i = from; (by > 0 ? i < to : i > to) && spend(r, 0);) {
        list_add(r, out.list, object.list->items[i]);
        if (__builtin_add_overflow(i, by, &i))
            break;
    }
    return out;
}

/* ---- "..." % values ---- */

struct conversion {
    char flags[8], letter;
    int width, precision; /* -1: none */
};

static size_t read_conversion(const char *text, size_t n, struct conversion *c)
{
    size_t i = 0, n_flags = 0;
    *c = (struct conversion){ .width = -1, .precision = -1 };
    while (i < n && text[i] && strchr("-+ 0#", text[i]) && n_flags + 1 < sizeof c->flags)
        c->flags[n_flags++] = text[i++];
    for (; i < n && text[i] >= '0' && text[i] <= '9' && c->width < 10000; i++)
        c->width = (c->width < 0 ? 0 : c->width) * 10 + (text[i] - '0');
    if (i < n && text[i] == '.') {
        c->precision = 0;
        for (i++; i < n && text[i] >= '0' && text[i] <= '9' && c->precision < 10000; i++)
            c->precision = c->precision * 10 + (text[i] - '0');
    }
    c->letter = i < n ? text[i++] : '\0';
    return i;
}

static void add_padded(struct render *r, struct text *out, const struct conversion *c, struct value s)
{
    if (!spend(r, s.n_bytes))
        return;
    if (c->precision >= 0)
        s = value_slice(s, 0, text_offset(s.bytes, s.n_bytes, (size_t)c->precision));
    enum padding padding = strchr(c->flags, '-') ? PAD_RIGHT : PAD_LEFT;
    text_add_string(r, out, string_pad(r, s, c->width, value_cstring(" "), padding));
}

static void add_conversion(struct render *r, struct text *out, const struct conversion *c, struct value value)
{
    char format[48], *number;
    int precision = c->precision < 0 ? -1 : c->precision > 60 ? 60 : c->precision;
    int width = c->width < 0 ? 0 : c->width;
    if (c->letter == 's' || c->letter == 'r') {
        add_padded(r, out, c, c->letter == 's' ? value_to_string(r, value) : value_repr(r, value));
        return;
    }
    if (!c->letter || !strchr("diuxXoeEfFgG", c->letter)) {
        fail_type(r, "unsupported format character '%c'",
                  c->letter >= ' ' && c->letter < 127 ? c->letter : '?');
        return;
    }
    if (!value_is_number(value)) {
        fail_type(r, "%%%c format: a number is required, not %s", c->letter, value_type_name(value));
        return;
    }
    bool is_int = strchr("diuxXo", c->letter);
    size_t size = (size_t)width + 400;
    number = take(r, size, 1);
    if (!number)
        return;
    if (is_int) {
        double f = value_number(value);
        if (value.kind == VALUE_FLOAT && !(f > -9.2e18 && f < 9.2e18)) {
            fail_type(r, "a number beyond 64 bits");
            return;
        }
        int64_t i = value.kind == VALUE_FLOAT ? (int64_t)f : value_integer(value);
        snprintf(format, sizeof format, "%%%s*ll%c", c->flags,
                 c->letter == 'u' || c->letter == 'i' ? 'd' : c->letter);
        snprintf(number, size, format, width, (long long)i);
    } else {
        snprintf(format, sizeof format, "%%%s*.*%c", c->flags, c->letter);
        snprintf(number, size, format, width, precision < 0 ? 6 : precision, value_number(value));
    }
    text_add_cstring(r, out, number);
}

struct value format_percent(struct render *r, struct value format, struct value values)
{
    struct text out = { 0 };
    bool is_tuple = values.kind == VALUE_LIST && values.list->kind == LIST_TUPLE;
    size_t n_values = is_tuple ? values.list->n : 1, n_used = 0, done = 0;
    for (size_t i = 0; i < format.n_bytes && !failed(r);) {
        if (format.bytes[i] != '%') {
            i++;
            continue;
        }
        text_add_string(r, &out, value_slice(format, done, i));
        struct conversion c;
        i++;
        if (i < format.n_bytes && format.bytes[i] == '%') {
            done = i++; /* the second sign is the text's */
            continue;
        }
        struct value value = value_absent();
        if (i < format.n_bytes && format.bytes[i] == '(' && values.kind == VALUE_DICT) {
            size_t end = text_find(format.bytes, format.n_bytes, i, ")", 1);
            if (end == SIZE_MAX)
                return fail_type(r, "incomplete format key");
            struct value key = value_slice(format, i + 1, end), *found = dict_find(r, values.dict, key);
            if (!found)
                return fail_type(r, "a format's key is missing");
            value = *found;
            i = end + 1;
        }
        i += read_conversion(format.bytes + i, format.n_bytes - i, &c);
        if (value.kind == VALUE_ABSENT) {
            if (n_used >= n_values)
                return fail_type(r, "not enough arguments for format string");
            value = is_tuple ? values.list->items[n_used] : values;
            n_used++;
        }
        add_conversion(r, &out, &c, value);
        done = i;
    }
    text_add_string(r, &out, value_slice(format, done, format.n_bytes));
    bool is_scalar = value_is_number(values) || values.kind == VALUE_STRING || values.kind == VALUE_NONE;
    bool is_left_over = is_tuple || is_scalar; /* Python ignores unused values that can be indexed */
    if (n_used < n_values && is_left_over)
        return fail_type(r, "not all arguments converted during string formatting");
    return text_value(&out);
}
