/* Grammars of numbers between bounds, by their digits. */
#include "grammar/schema/schema_reader.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DIGITS = 16, FRACTION_DIGITS = 6 };

/* Means no bound: above every number of MAX_DIGITS digits. */
static const int64_t LARGEST = 9999999999999999;
/* Up to here double precision distinguishes a fraction of FRACTION_DIGITS digits from the next
 * integer. */
static const int64_t LARGEST_WITH_FRACTION = 999999999;

static int32_t digits(struct schema_reader *r, char low, char high)
{
    return syntax_chars(r->out, &(struct char_range){ (uint8_t)low, (uint8_t)high }, 1);
}

static int32_t any_digits(struct schema_reader *r, int32_t min, int32_t max)
{
    return syntax_repeat(r->out, digits(r, '0', '9'), min, max);
}

static bool is_all(const char *text, char c)
{
    for (; *text; text++)
        if (*text != c)
            return false;
    return true;
}

static int32_t same_length(struct schema_reader *r, const char *low, const char *high, bool is_fraction);

/* The digits after the first one. A fraction may end where only zeros are needed to make it large
 * enough. */
static int32_t further_digits(struct schema_reader *r, const char *low, const char *high, bool is_fraction)
{
    int32_t rest = same_length(r, low, high, is_fraction);
    return is_fraction && *low && is_all(low, '0') ? SYNTAX_CHOICE(r->out, syntax_empty(r->out), rest) : rest;
}

/* Digit strings of one length, from low to high, both within. A fraction may be shorter, with at
 * least one digit. */
static int32_t same_length(struct schema_reader *r, const char *low, const char *high, bool is_fraction)
{
    struct syntax *s = r->out;
    int32_t ways[3], n_rest = (int32_t)strlen(low) - 1;
    size_t n = 0;
    if (n_rest < 0)
        return syntax_empty(s);
    if (*low == *high)
        return SYNTAX_SEQ(s, digits(r, *low, *high), further_digits(r, low + 1, high + 1, is_fraction));
    char first = *low, last = *high, nines[24], zeros[24];
    memset(nines, '9', sizeof nines);
    memset(zeros, '0', sizeof zeros);
    nines[n_rest] = zeros[n_rest] = '\0';
    if (!is_all(low + 1, '0')) {
        ways[n++] = SYNTAX_SEQ(s, digits(r, first, first), further_digits(r, low + 1, nines, is_fraction));
        first++;
    }
    if (!is_all(high + 1, '9')) {
        ways[n++] = SYNTAX_SEQ(s, digits(r, last, last), further_digits(r, zeros, high + 1, is_fraction));
        last--;
    }
    if (first <= last)
        ways[n++] = SYNTAX_SEQ(s, digits(r, first, last), any_digits(r, is_fraction ? 0 : n_rest, n_rest));
    return syntax_choice(s, ways, n);
}

/* Integers from low to high, 0 or more, without leading zeros. An empty range matches nothing. */
static int32_t natural(struct schema_reader *r, int64_t low, int64_t high)
{
    int32_t ways[24];
    size_t n = 0;
    for (int length = 1; length <= 18; length++) {
        char first[24], last[24];
        int64_t smallest = 1, largest;
        for (int i = 1; i < length; i++)
            smallest *= 10;
        largest = smallest * 10 - 1;
        if (length == 1)
            smallest = 0;
        if (low > largest || high < smallest)
            continue;
        snprintf(first, sizeof first, "%lld", (long long)(low > smallest ? low : smallest));
        snprintf(last, sizeof last, "%lld", (long long)(high < largest ? high : largest));
        ways[n++] = same_length(r, first, last, false);
    }
    return syntax_choice(r->out, ways, n);
}

static int32_t with_minus(struct schema_reader *r, int32_t node)
{
    return SYNTAX_SEQ(r->out, syntax_text(r->out, "-"), node);
}

static int32_t integers(struct schema_reader *r, int64_t low, int64_t high)
{
    int32_t ways[2];
    size_t n = 0;
    if (high >= 0 && low <= high)
        ways[n++] = natural(r, low > 0 ? low : 0, high);
    if (low < 0 && low <= high)
        ways[n++] = with_minus(r, natural(r, high < 0 ? -high : 1, -low));
    return syntax_choice(r->out, ways, n);
}

/* ---- bounds ---- */

void schema_round(const json_t *value, double *below, double *above)
{
    *below = *above = json_number_value(value);
    if (!json_is_integer(value))
        return;
    json_int_t exact = json_integer_value(value);
    if (*above >= 0x1p63 || (json_int_t)*above > exact)
        *below = nextafter(*below, -INFINITY);
    else if ((json_int_t)*above < exact)
        *above = nextafter(*above, INFINITY);
}

/* An integer that a double cannot hold is rounded to the inside of the bounds. */
static bool read_bound(struct schema_reader *r, const json_t *schema, const char *name, bool is_lower,
                       double *out)
{
    const json_t *value = json_object_get(schema, name);
    if (!value)
        return false;
    if (!json_is_number(value)) {
        schema_fail(r, "%s must be a number", name);
        return false;
    }
    double below, above;
    schema_round(value, &below, &above);
    *out = is_lower ? above : below;
    return true;
}

/* The formats of numbers in OpenAPI; those of strings have no effect on numbers. */
static void bound_by_format(const char *format, struct schema_bounds *b)
{
    static const struct {
        const char *name;
        double low, high;
    } RANGES[] = {
        { "int8", -128, 127 },       { "int16", -32768, 32767 }, { "int32", -2147483648.0, 2147483647 },
        { "uint8", 0, 255 },         { "uint16", 0, 65535 },     { "uint32", 0, 4294967295.0 },
        { "uint", 0, 4294967295.0 }, { "uint64", 0, INFINITY }
    };
    for (size_t i = 0; format && i < sizeof RANGES / sizeof *RANGES; i++) {
        if (strcmp(format, RANGES[i].name))
            continue;
        b->has_any = true;
        b->low = fmax(b->low, RANGES[i].low);
        b->high = fmin(b->high, RANGES[i].high);
    }
}

struct schema_bounds schema_bounds(struct schema_reader *r, const json_t *schema)
{
    struct schema_bounds b = { -INFINITY, INFINITY, false, false, false };
    const json_t *format = json_object_get(schema, "format"), *entry; /* a list in merged schemas */
    size_t i;
    double x;
    bound_by_format(json_string_value(format), &b);
    json_array_foreach(format, i, entry) bound_by_format(json_string_value(entry), &b);
    if (read_bound(r, schema, "minimum", true, &x) && (b.has_any = true) && x > b.low)
        b.low = x;
    if (read_bound(r, schema, "exclusiveMinimum", true, &x) && (b.has_any = true) && x >= b.low)
        b.low = x, b.low_is_out = true;
    if (read_bound(r, schema, "maximum", false, &x) && (b.has_any = true) && x < b.high)
        b.high = x;
    if (read_bound(r, schema, "exclusiveMaximum", false, &x) && (b.has_any = true) && x <= b.high)
        b.high = x, b.high_is_out = true;
    return b;
}

bool schema_is_within(const struct schema_bounds *b, double x)
{
    return (b->low_is_out ? x > b->low : x >= b->low) && (b->high_is_out ? x < b->high : x <= b->high);
}

bool schema_integer_range(const struct schema_bounds *b, int64_t *low, int64_t *high)
{
    double first = ceil(b->low), last = floor(b->high);
    if (first > (double)LARGEST || last < -(double)LARGEST)
        return false;
    *low = first < -(double)LARGEST ? -LARGEST : (int64_t)first;
    *high = last > (double)LARGEST ? LARGEST : (int64_t)last;
    /* Here, since a double above 2^53 may not have the next integer. */
    *low += b->low_is_out && first == b->low && (double)*low == first;
    *high -= b->high_is_out && last == b->high && (double)*high == last;
    return *low <= *high;
}

/* ---- fractions ---- */

/* n.f for n from low to high, 0 or more: all of them lie in [low, high + 1). */
static int32_t with_fraction(struct schema_reader *r, int64_t low, int64_t high)
{
    struct syntax *s = r->out;
    return SYNTAX_SEQ(s, natural(r, low, high), syntax_text(s, "."), any_digits(r, 1, FRACTION_DIGITS));
}

/* Units of 10^-FRACTION_DIGITS from low to high, 0 or more, with a point and at least one digit
 * after it. */
static int32_t scaled(struct schema_reader *r, int64_t low, int64_t high)
{
    struct syntax *s = r->out;
    const int64_t unit = 1000000;
    int32_t ways[3];
    size_t n = 0;
    char first[16], last[16];
    int64_t whole_low = low / unit, whole_high = high / unit;
    snprintf(first, sizeof first, "%06lld", (long long)(low % unit));
    snprintf(last, sizeof last, "%06lld", (long long)(high % unit));
    if (whole_low == whole_high)
        return SYNTAX_SEQ(s, natural(r, whole_low, whole_low), syntax_text(s, "."),
                          same_length(r, first, last, true));
    ways[n++] = SYNTAX_SEQ(s, natural(r, whole_low, whole_low), syntax_text(s, "."),
                           same_length(r, first, "999999", true));
    ways[n++] = SYNTAX_SEQ(s, natural(r, whole_high, whole_high), syntax_text(s, "."),
                           same_length(r, "000000", last, true));
    if (whole_low + 1 < whole_high)
        ways[n++] = with_fraction(r, whole_low + 1, whole_high - 1);
    return syntax_choice(s, ways, n);
}

static double value_of_scaled(int64_t x)
{
    char text[40];
    snprintf(text, sizeof text, "%s%lld.%06lld", x < 0 ? "-" : "", (long long)(llabs(x) / 1000000),
             (long long)(llabs(x) % 1000000));
    return strtod(text, NULL);
}

/* Decimals within bounds near 0: the smallest and the largest one that parse back to numbers
 * within the bounds. */
static int32_t decimals(struct schema_reader *r, const struct schema_bounds *b)
{
    double limit = (double)LARGEST_WITH_FRACTION, low = fmax(b->low, -limit), high = fmin(b->high, limit);
    int32_t ways[2];
    size_t n = 0;
    if (low > high)
        return syntax_choice(r->out, NULL, 0);
    int64_t first = (int64_t)ceil(low * 1e6) - 2, last = (int64_t)floor(high * 1e6) + 2;
    while (first <= last && !schema_is_within(b, value_of_scaled(first)) && value_of_scaled(first) <= low)
        first++;
    while (first <= last && !schema_is_within(b, value_of_scaled(last)) && value_of_scaled(last) >= high)
        last--;
    if (first > last || !schema_is_within(b, value_of_scaled(first)) ||
        !schema_is_within(b, value_of_scaled(last)))
        return syntax_choice(r->out, NULL, 0);
    if (last >= 0)
        ways[n++] = scaled(r, first > 0 ? first : 0, last);
    if (first < 0)
        ways[n++] = with_minus(r, scaled(r, last < 0 ? -last : 1, -first));
    return syntax_choice(r->out, ways, n);
}

/* ---- all together ---- */

int32_t schema_number(struct schema_reader *r, const json_t *schema, bool is_integer)
{
    struct schema_bounds b = schema_bounds(r, schema);
    const json_t *multiple = json_object_get(schema, "multipleOf");
    struct schema_decimal of;
    int32_t ways[2];
    size_t n = 0;
    int64_t low, high;
    if (r->status != TUTTI_OK || (multiple && !schema_read_multiple(r, multiple, &of)))
        return -1;
    if (multiple)
        return schema_multiples(r, &b, &of, is_integer);
    if (!b.has_any) {
#define WHOLE "-?(0|[1-9][0-9]{0,15})" /* MAX_DIGITS */
        return is_integer ? schema_raw(r, WHOLE, &r->any_integer)
                          : schema_raw(r, WHOLE "(\\.[0-9]{1,16})?([Ee][+-]?[0-9]{1,2})?", &r->any_number);
    }
    if (schema_integer_range(&b, &low, &high))
        ways[n++] = integers(r, low, high);
    if (!is_integer)
        ways[n++] = decimals(r, &b);
    return syntax_choice(r->out, ways, n);
}
