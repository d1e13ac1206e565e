#include "base/json/json_print.h"

#include <float.h>
#include <math.h>
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

/* Prints a real in jansson's format: with a point or an exponent; the exponent has no + and no
 * leading zeros. */
static size_t print_real(char out[NUMBER_TEXT_BYTES], double number)
{
    size_t n = number_shortest(out, number);
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

/* Length of a string with its quotes, of a number, or 1. */
static size_t token_length(const char *text, size_t n_bytes, bool *is_real)
{
    size_t n = 1;
    *is_real = false;
    if (*text == '"') {
        for (; n < n_bytes && text[n] != '"'; n++)
            n += text[n] == '\\';
        return n < n_bytes ? n + 1 : n_bytes;
    }
    if (*text != '-' && (*text < '0' || *text > '9'))
        return 1;
    for (n = 0; n < n_bytes && strchr("-+.eE0123456789", text[n]) && text[n] != '\0'; n++)
        *is_real |= text[n] == '.' || (text[n] | 32) == 'e';
    return n;
}

/* Rewrites the reals of a JSON text in place: the shortest form is never longer. Returns the new
 * length. */
static size_t shorten_reals(char *text, size_t n_bytes)
{
    size_t from = 0, to = 0;
    while (from < n_bytes) {
        bool is_real;
        char number[NUMBER_TEXT_BYTES];
        size_t n = token_length(text + from, n_bytes - from, &is_real), n_short = n;
        if (is_real)
            n_short = print_real(number, strtod(text + from, NULL));
        memmove(text + to, is_real ? number : text + from, n_short);
        from += n;
        to += n_short;
    }
    return to;
}

char *json_print(const json_t *value, size_t flags)
{
    char *text = json_dumps(value, flags | JSON_REAL_PRECISION(17));
    if (text)
        text[shorten_reals(text, strlen(text))] = '\0';
    return text;
}

static int add_bytes(const char *bytes, size_t n_bytes, void *out)
{
    return buf_add(out, bytes, n_bytes) ? 0 : -1;
}

bool json_print_to(struct buf *out, const json_t *value, size_t flags)
{
    size_t before = out->n_bytes;
    if (!value || json_dump_callback(value, add_bytes, out, flags | JSON_REAL_PRECISION(17)) != 0) {
        if (out->bytes)
            buf_truncate(out, before);
        return false;
    }
    buf_truncate(out, before + shorten_reals(out->bytes + before, out->n_bytes - before));
    return true;
}
