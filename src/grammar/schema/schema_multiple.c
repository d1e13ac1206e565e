/* Grammars of the multiples of a number: digit by digit, with the remainder so far. */
#include "grammar/schema/schema_reader.h"

#include "base/json/json_print.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_MULTIPLE_DIGITS = 16, MAX_MODULUS = 4096 };

bool schema_read_multiple(struct schema_reader *r, const json_t *value, struct schema_decimal *out)
{
    double number = json_number_value(value);
    char text[NUMBER_TEXT_BYTES], *at = text;
    if (!json_is_number(value) || !(number > 0))
        return schema_fail(r, "multipleOf must be a number above 0") >= 0;
    number_shortest(text, number);
    *out = (struct schema_decimal){ 0, 0 };
    for (bool is_fraction = false; *at && *at != 'e'; at++) {
        if (*at == '.') {
            is_fraction = true;
            continue;
        }
        out->m = out->m * 10 + (*at - '0');
        out->exponent -= is_fraction;
    }
    if (*at == 'e')
        out->exponent += atoi(at + 1);
    while (out->m > 0 && out->m % 10 == 0) {
        out->m /= 10;
        out->exponent++;
    }
    if (out->exponent < -MAX_MULTIPLE_DIGITS || out->exponent > MAX_MULTIPLE_DIGITS)
        return schema_fail(r, "multipleOf must be between 1e-%d and 1e%d", MAX_MULTIPLE_DIGITS,
                           MAX_MULTIPLE_DIGITS) >= 0;
    return true;
}

static double power_of_ten(int exponent)
{
    double x = 1;
    for (int i = 0; i < abs(exponent); i++)
        x *= 10;
    return x;
}

bool schema_is_multiple(const struct schema_decimal *of, double x)
{
    double scale = power_of_ten(of->exponent);
    if (of->exponent >= 0)
        return fmod(x, (double)of->m * scale) == 0;
    /* A product of decimals is inexact; what is near an integer is meant to be that integer. */
    double units = x * scale;
    return fabs(units - rint(units)) <= fmin(fabs(units) * 1e-15, 0.01) &&
           fmod(rint(units), (double)of->m) == 0;
}

/* ---- digits ---- */

/* Writes the numbers low to high, in units of the last digit of the fraction, whose remainder is the
 * wanted one. */
struct multiples {
    struct schema_reader *r;
    int32_t modulus, wanted;
    int n_fraction;                                                   /* digits after the point */
    char low[MAX_MULTIPLE_DIGITS + 2], high[MAX_MULTIPLE_DIGITS + 2]; /* digits of the bounds */
    int n_digits;
    int32_t *free_rules; /* [n_digits + 1][modulus]: any further digits; -1: not made yet */
};

/* Whether the remaining n digits may be left out: they are zeros of the fraction. */
static bool may_end(const struct multiples *m, int n_left, int64_t rest)
{
    for (int i = 0; i < n_left; i++)
        rest = rest * 10 % m->modulus;
    return rest == m->wanted;
}

static int32_t digits_from(const struct multiples *m, int at, int32_t rest, bool is_low, bool is_high);

/* Whether a number may end before this place: only zeros of the fraction would follow. */
static bool may_stop(const struct multiples *m, int at, int32_t rest, bool is_low)
{
    int n_left = m->n_digits - at;
    bool may = n_left <= m->n_fraction && may_end(m, n_left, rest);
    for (int i = at; i < m->n_digits; i++)
        may = may && (!is_low || m->low[i] == '0');
    return may;
}

/* The digits from low to high at this place, and what follows each. */
static int32_t digit_ways(const struct multiples *m, int at, int32_t rest, bool is_low, bool is_high)
{
    struct syntax *s = m->r->out;
    int32_t ways[12];
    size_t n = 0;
    char first = is_low ? m->low[at] : '0', last = is_high ? m->high[at] : '9';
    bool is_point = m->n_digits - at == m->n_fraction, may = may_stop(m, at, rest, is_low);
    for (char c = first; c <= last; c++) {
        int32_t next = digits_from(m, at + 1, (int32_t)(((int64_t)rest * 10 + (c - '0')) % m->modulus),
                                   is_low && c == first, is_high && c == last);
        if (next >= 0)
            ways[n++] = SYNTAX_SEQ(s, syntax_bytes(s, &c, 1), next);
    }
    if (n == 0)
        return may ? syntax_empty(s) : -1;
    int32_t node = syntax_choice(s, ways, n);
    if (is_point)
        node = SYNTAX_SEQ(s, syntax_text(s, "."), node);
    return may ? SYNTAX_CHOICE(s, syntax_empty(s), node) : node;
}

/* The digits from a place on: -1: none fits. is_low, is_high: those before are those of the bound. */
static int32_t digits_from(const struct multiples *m, int at, int32_t rest, bool is_low, bool is_high)
{
    if (!schema_spend(m->r, 1))
        return -1;
    if (at == m->n_digits)
        return rest == m->wanted ? syntax_empty(m->r->out) : -1;
    if (is_low || is_high)
        return digit_ways(m, at, rest, is_low, is_high);
    int32_t *known = &m->free_rules[(size_t)(m->n_digits - at) * (size_t)m->modulus + (size_t)rest];
    if (*known == -2) {
        int32_t node = digit_ways(m, at, rest, false, false);
        *known = node < 0 ? -1 : schema_share(m->r, node);
    }
    return *known;
}

static void write_digits(char *out, int64_t number, int n_digits)
{
    for (int i = n_digits; i-- > 0; number /= 10)
        out[i] = (char)('0' + number % 10);
}

/* Numbers of one length, without the sign. */
static int32_t of_length(struct multiples *m, int64_t low, int64_t high, int n_digits)
{
    write_digits(m->low, low, n_digits);
    write_digits(m->high, high, n_digits);
    m->n_digits = n_digits;
    return digits_from(m, 0, 0, true, true);
}

/* Units from low to high, 0 or more. */
static int32_t naturals(struct multiples *m, int64_t low, int64_t high)
{
    struct syntax *s = m->r->out;
    int32_t ways[24];
    size_t n = 0;
    int64_t smallest = 0, largest = 9;
    for (int i = 0; i < m->n_fraction; i++)
        largest = largest * 10 + 9;
    for (int length = m->n_fraction + 1; length <= MAX_MULTIPLE_DIGITS; length++) {
        int64_t from = low > smallest ? low : smallest, to = high < largest ? high : largest;
        int32_t node = from <= to ? of_length(m, from, to, length) : -1;
        if (node >= 0)
            ways[n++] = node;
        smallest = largest + 1;
        largest = largest * 10 + 9;
    }
    return syntax_choice(s, ways, n);
}

/* Units from low to high with the wanted remainder of their absolute value; zeros: digits 0 that are
 * appended to each but 0. */
static int32_t of_units(struct multiples *m, int64_t low, int64_t high, const char *zeros)
{
    struct syntax *s = m->r->out;
    int32_t ways[3];
    size_t n = 0, n_rules = (MAX_MULTIPLE_DIGITS + 2) * (size_t)m->modulus;
    if (!schema_spend(m->r, n_rules / 8) || !schema_take_bytes(m->r, n_rules * sizeof *m->free_rules))
        return -1;
    m->free_rules = malloc(n_rules * sizeof *m->free_rules);
    if (!m->free_rules)
        return schema_no_memory(m->r);
    for (size_t i = 0; i < n_rules; i++)
        m->free_rules[i] = -2;
    if (low <= 0 && high >= 0 && m->wanted == 0)
        ways[n++] = syntax_text(s, "0");
    if (high > 0)
        ways[n++] = SYNTAX_SEQ(s, naturals(m, low > 1 ? low : 1, high), syntax_text(s, zeros));
    if (low < 0)
        ways[n++] = SYNTAX_SEQ(s, syntax_text(s, "-"), naturals(m, high < -1 ? -high : 1, -low),
                               syntax_text(s, zeros));
    free(m->free_rules);
    return m->r->status == TUTTI_OK ? syntax_choice(s, ways, n) : -1;
}

/* ---- bounds ---- */

static const double LARGEST_UNIT = 9999999999999999.0;

/* The bounds in units of 10^exponent: the outermost integers that are within. */
static void units_within(const struct schema_bounds *b, int exponent, int64_t *low, int64_t *high)
{
    double scale = power_of_ten(exponent);
    double first = exponent < 0 ? b->low * scale : b->low / scale;
    double last = exponent < 0 ? b->high * scale : b->high / scale;
    /* Products of decimals are inexact; what is near an integer is meant to be that integer. */
    first = fabs(first - rint(first)) < fabs(first) * 1e-15 ? rint(first) + b->low_is_out
            : b->low_is_out && first == rint(first)         ? first + 1
                                                            : ceil(first);
    last = fabs(last - rint(last)) < fabs(last) * 1e-15 ? rint(last) - b->high_is_out
           : b->high_is_out && last == rint(last)       ? last - 1
                                                        : floor(last);
    *low = first < -LARGEST_UNIT ? -(int64_t)LARGEST_UNIT : first > LARGEST_UNIT ? 1 : (int64_t)first;
    *high = last > LARGEST_UNIT ? (int64_t)LARGEST_UNIT : last < -LARGEST_UNIT ? -1 : (int64_t)last;
    if (first > LARGEST_UNIT || last < -LARGEST_UNIT) /* none */
        *low = 1, *high = 0;
}

int32_t schema_multiples(struct schema_reader *r, const struct schema_bounds *b,
                         const struct schema_decimal *of, bool is_integer)
{
    struct multiples m = { .r = r };
    int64_t modulus = of->m, low, high;
    int exponent = of->exponent;
    char zeros[MAX_MULTIPLE_DIGITS + 2] = "";
    for (; is_integer && exponent < 0; exponent++) /* integers only: divide by what 10 shares with m */
        modulus = modulus % 10 == 0                      ? modulus / 10
                  : modulus % 5 == 0 && modulus % 2 == 0 ? modulus / 10
                  : modulus % 5 == 0                     ? modulus / 5
                  : modulus % 2 == 0                     ? modulus / 2
                                                         : modulus;
    if (modulus > MAX_MODULUS)
        return schema_fail(r, "multipleOf has more than the digits of %d, apart from zeros at its end",
                           MAX_MODULUS);
    units_within(b, exponent, &low, &high);
    for (int i = 0; i < exponent; i++)
        zeros[i] = '0';
    if (exponent > 0) {
        int64_t largest = (int64_t)(LARGEST_UNIT / power_of_ten(exponent));
        low = low < -largest ? -largest : low;
        high = high > largest ? largest : high;
    }
    m.modulus = (int32_t)modulus;
    m.n_fraction = exponent < 0 ? -exponent : 0;
    return of_units(&m, low, high, zeros);
}

int32_t schema_remainders(struct schema_reader *r, const struct schema_bounds *b, int32_t modulus,
                          int32_t remainder)
{
    struct multiples m = { .r = r, .modulus = modulus, .wanted = remainder };
    int64_t low, high;
    if (!schema_integer_range(b, &low, &high))
        return syntax_choice(r->out, NULL, 0);
    return of_units(&m, low, high, "");
}
