#include "cli/terminal/numbers.h"

#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool number_read_int(const char *text, int64_t *out)
{
    char *end;
    if (!text_is_digit(text[*text == '-'])) /* strtoll() would take blanks and a plus sign */
        return false;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (*end != '\0' || errno != 0)
        return false;
    *out = value;
    return true;
}

/* True: a digit comes first, possibly after a point. strtod() would also take blanks, signs and words. */
static bool is_decimal(const char *text)
{
    return text_is_digit(text[*text == '.']);
}

bool number_read_float(const char *text, double *out)
{
    char *end;
    if (!is_decimal(text + (*text == '-')) || text[strspn(text, "-+.0123456789eE")] != '\0')
        return false;
    double value = strtod(text, &end); /* LC_NUMERIC is never set, so this is the C locale's */
    if (*end != '\0' || !isfinite(value))
        return false;
    *out = value;
    return true;
}

bool number_read_size(const char *text, int64_t *out)
{
    static const char SUFFIXES[] = "KMGT";
    const char *unit = text + strspn(text, ".0123456789"), *c = unit;
    int shift = 0;
    const char *suffix = *c == '\0' ? NULL : strchr(SUFFIXES, toupper((unsigned char)*c));
    if (suffix) {
        shift = 10 * (int)(suffix - SUFFIXES + 1);
        c++;
        c += *c == 'i';
    }
    c += *c == 'B';
    if (!is_decimal(text) || *c != '\0')
        return false;
    char *end;
    errno = 0;
    int64_t whole = strtoll(text, &end, 10);
    if (end == unit) { /* stays exact */
        if (errno != 0 || __builtin_mul_overflow(whole, (int64_t)1 << shift, &whole))
            return false;
        *out = whole;
        return true;
    }
    double value = ldexp(strtod(text, &end), shift);
    if (end != unit || !(value < 0x1p63))
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
