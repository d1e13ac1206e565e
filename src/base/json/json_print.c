#include "base/json/json_print.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t number_shortest(char out[NUMBER_TEXT_BYTES], double number)
{
    /* Different decimals of 15 digits are different doubles; %g drops its zeros at the end. Numbers below
     * DBL_MIN have fewer digits. */
    int n = 0;
    for (int digits = fabs(number) < DBL_MIN ? 1 : 15; digits <= 17; digits++) {
        n = snprintf(out, NUMBER_TEXT_BYTES, "%.*g", digits, number);
        if (strtod(out, NULL) == number)
            break;
    }
    return (size_t)n;
}

/* Powers of ten that are exact, as is a quotient of an integer up to 2^53 and one of them, rounded to nearest. */
enum { MOST_DECIMALS = 15 };
static const double TENS[MOST_DECIMALS + 1] = { 1e0, 1e1, 1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                                1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15 };
#define MOST_INTEGER 0x1p53

double number_of_float(float number)
{
    double x = fabs((double)number);
    for (int i = 0; i <= MOST_DECIMALS && x * TENS[i] < MOST_INTEGER; i++) {
        double shorter = nearbyint(x * TENS[i]) / TENS[i];
        if ((float)shorter == (float)x)
            return copysign(shorter, number);
    }
    return number;
}

/* The same text as number_shortest() of a number with few decimals, in a hundredth of the time. 0: another number. */
static size_t print_short(char out[NUMBER_TEXT_BYTES], double number)
{
    enum { FEW_DECIMALS = 10 };
    double x = fabs(number);
    if (!(x >= 1e-4 && x < 1e5) && x != 0)
        return 0;
    for (int i = 0; i <= FEW_DECIMALS; i++) {
        double scaled = nearbyint(x * TENS[i]);
        if (scaled / TENS[i] != x)
            continue;
        uint64_t digits = (uint64_t)scaled;
        char text[NUMBER_TEXT_BYTES];
        size_t n = 0, n_out = 0;
        for (; digits > 0 || n <= (size_t)i; digits /= 10)
            text[n++] = (char)('0' + digits % 10);
        if (signbit(number))
            out[n_out++] = '-';
        while (n > 0) {
            out[n_out++] = text[--n];
            if (n == (size_t)i && i > 0)
                out[n_out++] = '.';
        }
        out[n_out] = '\0';
        return n_out;
    }
    return 0;
}

/* Prints a real in jansson's format: with a point or an exponent; the exponent has no + and no
 * leading zeros. */
static size_t print_real(char out[NUMBER_TEXT_BYTES], double number)
{
    size_t n = print_short(out, number);
    if (n == 0)
        n = number_shortest(out, number);
    char *mark = strchr(out, 'e');
    if (!mark) {
        if (!strchr(out, '.'))
            n += (size_t)snprintf(out + n, NUMBER_TEXT_BYTES - n, ".0");
        return n;
    }
    char *to = mark + 1 + (mark[1] == '-'), *digits = to + (*to == '+');
    while (*digits == '0')
        digits++;
    memmove(to, digits, strlen(digits) + 1);
    return strlen(out);
}

static bool print_string(struct buf *out, const char *text, size_t n_bytes)
{
    static const char SHORT[] = "btn\0fr"; /* from \b on */
    bool ok = buf_add_string(out, "\"");
    size_t begin = 0;
    for (size_t i = 0; ok && i < n_bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= ' ' && c != '"' && c != '\\')
            continue;
        ok = buf_add(out, text + begin, i - begin);
        begin = i + 1;
        char escape = c >= ' ' ? (char)c : c >= '\b' && c <= '\r' ? SHORT[c - '\b'] : '\0';
        ok = ok && (escape ? buf_printf(out, "\\%c", escape) : buf_printf(out, "\\u%04X", c));
    }
    return ok && buf_add(out, text + begin, n_bytes - begin) && buf_add_string(out, "\"");
}

/* Before an element of a list or an object, or its end. */
static bool print_gap(struct buf *out, bool is_next, size_t flags, int depth)
{
    enum { MOST_INDENT = 0x1F }; /* JSON_INDENT() */
    int width = (int)(flags & MOST_INDENT) * depth;
    bool ok = !is_next || buf_add_string(out, ",");
    if (flags & MOST_INDENT)
        return ok && buf_printf(out, "\n%*s", width, "");
    return ok && (!is_next || (flags & JSON_COMPACT) || buf_add_string(out, " "));
}

static bool print_value(struct buf *out, const json_t *value, size_t flags, int depth);

static bool print_array(struct buf *out, const json_t *array, size_t flags, int depth)
{
    size_t n = json_array_size(array);
    bool ok = buf_add_string(out, "[");
    for (size_t i = 0; ok && i < n; i++)
        ok = print_gap(out, i > 0, flags, depth + 1) &&
             print_value(out, json_array_get(array, i), flags, depth + 1);
    return ok && (n == 0 || print_gap(out, false, flags, depth)) && buf_add_string(out, "]");
}

static bool print_object(struct buf *out, const json_t *object, size_t flags, int depth)
{
    const char *name;
    json_t *value;
    bool ok = buf_add_string(out, "{"), is_next = false;
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        ok = ok && print_gap(out, is_next, flags, depth + 1) && print_string(out, name, strlen(name)) &&
             buf_add_string(out, flags & JSON_COMPACT ? ":" : ": ") &&
             print_value(out, value, flags, depth + 1);
        is_next = true;
    }
    return ok && (!is_next || print_gap(out, false, flags, depth)) && buf_add_string(out, "}");
}

static bool print_value(struct buf *out, const json_t *value, size_t flags, int depth)
{
    char number[NUMBER_TEXT_BYTES];
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return print_object(out, value, flags, depth);
    case JSON_ARRAY:
        return print_array(out, value, flags, depth);
    case JSON_STRING:
        return print_string(out, json_string_value(value), json_string_length(value));
    case JSON_INTEGER:
        return buf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    case JSON_REAL:
        return buf_add(out, number, print_real(number, json_real_value(value)));
    default:
        return buf_add_string(out, json_is_null(value) ? "null" : json_is_true(value) ? "true" : "false");
    }
}

bool json_print_to(struct buf *out, const json_t *value, size_t flags)
{
    size_t before = out->n_bytes;
    bool can_print = value && ((flags & JSON_ENCODE_ANY) || json_is_object(value) || json_is_array(value));
    if (can_print && print_value(out, value, flags, 0))
        return true;
    if (out->bytes)
        buf_truncate(out, before);
    return false;
}

char *json_print(const json_t *value, size_t flags)
{
    struct buf text = { 0 };
    if (json_print_to(&text, value, flags))
        return text.bytes;
    buf_clear(&text);
    return NULL;
}
