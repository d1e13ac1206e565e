#include "cli/terminal/numbers.h"

#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool number_read_int(const char *text, int64_t *out)
{
    bool negative = *text == '-';
    const char *c = text + negative;
    int64_t value = 0;
    if (*c == '\0')
        return false;
    for (; *c != '\0'; c++) { /* accumulated as a negative number, whose range is larger by one */
        if (!text_is_digit(*c) || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_sub_overflow(value, *c - '0', &value))
            return false;
    }
    if (!negative && __builtin_sub_overflow(0, value, &value))
        return false;
    *out = value;
    return true;
}

/* Digits with at most one point and at least one digit; returns what follows them, NULL: not a
 * number. */
static const char *skip_decimal(const char *c)
{
    int n_digits = 0;
    for (; text_is_digit(*c); c++)
        n_digits++;
    if (*c == '.')
        for (c++; text_is_digit(*c); c++)
            n_digits++;
    return n_digits > 0 ? c : NULL;
}

bool number_read_float(const char *text, double *out)
{
    const char *c = skip_decimal(text + (*text == '-'));
    if (!c)
        return false;
    if (*c == 'e' || *c == 'E') {
        c++;
        c += *c == '-' || *c == '+';
        if (!text_is_digit(*c))
            return false;
        while (text_is_digit(*c))
            c++;
    }
    if (*c != '\0')
        return false;
    double value = strtod(text, NULL); /* LC_NUMERIC is never set, so this is the C locale's */
    if (!isfinite(value))
        return false;
    *out = value;
    return true;
}

bool number_read_size(const char *text, int64_t *out)
{
    static const char SUFFIXES[] = "KMGT";
    const char *end = skip_decimal(text);
    if (!end)
        return false;
    int shift = 0;
    const char *c = end;
    char upper = *c >= 'a' && *c <= 'z' ? (char)(*c - 'a' + 'A') : *c;
    const char *suffix = upper == '\0' ? NULL : strchr(SUFFIXES, upper);
    if (suffix) {
        shift = 10 * (int)(suffix - SUFFIXES + 1);
        c++;
        c += *c == 'i';
    }
    c += *c == 'B';
    if (*c != '\0')
        return false;
    if (!memchr(text, '.', (size_t)(end - text))) { /* whole numbers stay exact */
        int64_t value = 0;
        for (const char *d = text; d < end; d++)
            if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *d - '0', &value))
                return false;
        if (__builtin_mul_overflow(value, (int64_t)1 << shift, &value))
            return false;
        *out = value;
        return true;
    }
    double value = ldexp(strtod(text, NULL), shift);
    if (!(value < 0x1p63))
        return false;
    *out = (int64_t)value;
    return true;
}

const char *number_write_size(char *text, uint64_t bytes)
{
    static const char *const UNITS[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
    size_t unit = 0;
    double value = (double)bytes;
    for (; value >= 1024 && unit + 1 < sizeof UNITS / sizeof *UNITS; unit++)
        value /= 1024;
    snprintf(text, NUMBER_SIZE_BYTES, unit == 0 || value >= 100 ? "%.0f %s" : "%.1f %s", value, UNITS[unit]);
    return text;
}
