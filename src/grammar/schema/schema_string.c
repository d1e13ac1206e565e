/* Grammars of strings: RFC 8259, section 7. Lengths count characters, and an escape is one. */
#include "grammar/schema/schema_reader.h"

#include <stdio.h>
#include <string.h>

/* This many copies of a character make a grammar of about 400,000 edges. */
enum { MAX_BOUNDED_LENGTH = 32768 };

/* Formats as patterns. Dates are valid by the calendar: February has 28 days. */
static const struct {
    const char *name, *pattern;
} FORMATS[] = {
#define YEAR "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
#define DATE                                                                                                 \
    YEAR "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|"  \
         "2[0-8]))"
#define TIME   "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define OCTET  "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define LABEL  "[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?"
#define ATOM   "[A-Za-z0-9_+-]{1,32}"
#define HEX(n) "[0-9a-f]{" #n "}"
    { "date", "^" DATE "$" },
    { "time", "^" TIME "$" },
    { "date-time", "^" DATE "T" TIME "$" },
    { "duration", "^P([0-9]{1,4}D(T([0-9]{1,4}H)?[0-9]{1,4}M)?|T[0-9]{1,4}[HMS])$" },
    { "uuid", "^" HEX(8) "-" HEX(4) "-" HEX(4) "-" HEX(4) "-" HEX(12) "$" },
    { "email", "^" ATOM "(\\." ATOM "){0,3}@" LABEL "(\\." LABEL "){1,3}$" },
    { "hostname", "^" LABEL "(\\." LABEL "){0,3}$" },
    { "ipv4", "^" OCTET "(\\." OCTET "){3}$" },
    { "ipv6", "^" HEX(4) "(:" HEX(4) "){7}$" },
    { "uri", "^https?://" LABEL "(\\." LABEL "){0,3}(:[1-9][0-9]{1,3})?(/[A-Za-z0-9_.~-]{1,64}){0,8}$" },
};

static int32_t quoted(struct schema_reader *r, int32_t inside)
{
    return SYNTAX_SEQ(r->out, syntax_text(r->out, "\""), inside, syntax_text(r->out, "\""));
}

/* ---- characters ---- */

/* Literal characters and the two-character escapes. */
#define PLAIN_CHAR "[ !#-\\[\\]-\\u{10FFFF}]|\\\\[\"\\\\/bfnrt]"
/* Also \uXXXX: no U+0000, and surrogates in pairs. */
#define HEX_DIGIT  "[0-9a-fA-F]"
#define NOT_ZERO   "[1-9a-fA-F]"
#define SURROGATES "[dD][89abAB]" HEX_DIGIT "{2}\\\\u[dD][c-fC-F]" HEX_DIGIT "{2}"
#define FREE_CHAR                                                                                            \
    PLAIN_CHAR "|\\\\u([1-9a-cA-CeEfF]" HEX_DIGIT "{3}|0" NOT_ZERO HEX_DIGIT "{2}|00" NOT_ZERO HEX_DIGIT     \
               "|000" NOT_ZERO "|[dD][0-7]" HEX_DIGIT "{2}|" SURROGATES ")"

static int32_t plain_char(struct schema_reader *r)
{
    return schema_raw(r, PLAIN_CHAR, &r->plain_char);
}

int32_t schema_chars(struct schema_reader *r, const struct char_range *ranges, size_t n)
{
    static const struct {
        uint32_t code;
        const char *text;
    } ESCAPES[] = { { '"', "\\\"" }, { '\\', "\\\\" }, { '\b', "\\b" }, { '\f', "\\f" },
                    { '\n', "\\n" }, { '\r', "\\r" },  { '\t', "\\t" } };
    struct syntax *s = r->out;
    int32_t ways[40];
    size_t n_ways = 0, n_raw = 0;
    static const struct char_range RAW[] = { { ' ', '!' }, { '#', '[' }, { ']', MAX_CODE_POINT } };
    struct char_range raw[512];
    if (n > 128)
        return schema_fail(r, "pattern: a class of more than 128 ranges");
    if (r->is_raw)
        return syntax_chars(s, ranges, n);
    n_raw = ranges_intersect(ranges, n, RAW, 3, raw);
    for (size_t i = 0; i < n; i++) {
        for (size_t k = 0; k < sizeof ESCAPES / sizeof *ESCAPES; k++)
            if (ESCAPES[k].code >= ranges[i].low && ESCAPES[k].code <= ranges[i].high && n_ways < 30)
                ways[n_ways++] = syntax_text(s, ESCAPES[k].text);
    }
    if (n_raw > 0)
        ways[n_ways++] = syntax_chars(s, raw, n_raw);
    return syntax_choice(s, ways, n_ways);
}

/* ---- strings ---- */

int32_t schema_any_string(struct schema_reader *r)
{
    if (r->any_string < 0)
        r->any_string = schema_share(
            r, quoted(r, syntax_repeat(r->out, schema_raw(r, FREE_CHAR, &r->free_char), 0, REPEAT_FOREVER)));
    return r->any_string;
}

static const char *pattern_of_format(struct schema_reader *r, const json_t *format)
{
    const char *name = json_string_value(format);
    for (size_t i = 0; name && i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (!strcmp(name, FORMATS[i].name))
            return FORMATS[i].pattern;
    schema_fail(r,
                "the format %.64s is not supported; known are date, time, date-time, duration, uuid, email, "
                "hostname, ipv4, ipv6 and uri",
                name ? name : "(not a string)");
    return NULL;
}

static int32_t by_pattern(struct schema_reader *r, const json_t *schema, const char *pattern, size_t n_bytes)
{
    int32_t min = schema_count(r, schema, "minLength", 0),
            max = schema_count(r, schema, "maxLength", REPEAT_FOREVER);
    bool is_bounded = json_object_get(schema, "maxLength");
    int32_t shortest, longest, node = schema_pattern(r, pattern, n_bytes, !is_bounded, &shortest, &longest);
    if (r->status != TUTTI_OK)
        return -1;
    if (shortest < min || (is_bounded && (longest == REPEAT_FOREVER || longest > max)))
        return schema_fail(
            r,
            "a pattern or format for texts of %d to %s%.0d characters cannot be put together with "
            "minLength or maxLength; say the length in the pattern",
            shortest, longest == REPEAT_FOREVER ? "any number of" : "", longest < 0 ? 0 : longest);
    return quoted(r, node);
}

int32_t schema_string(struct schema_reader *r, const json_t *schema)
{
    const json_t *pattern = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format");
    if (pattern && format)
        return schema_fail(r, "pattern together with format is not supported");
    if (pattern && !json_is_string(pattern))
        return schema_fail(r, "pattern must be a string");
    if (pattern)
        return by_pattern(r, schema, json_string_value(pattern), json_string_length(pattern));
    if (format) {
        const char *text = pattern_of_format(r, format);
        return text ? by_pattern(r, schema, text, strlen(text)) : -1;
    }
    int32_t min = schema_count(r, schema, "minLength", 0),
            max = schema_count(r, schema, "maxLength", REPEAT_FOREVER);
    if (r->status != TUTTI_OK)
        return -1;
    if (max == REPEAT_FOREVER && min == 0)
        return schema_any_string(r);
    if (min > MAX_BOUNDED_LENGTH)
        return schema_fail(r, "minLength is %d, at most %d is supported", min, MAX_BOUNDED_LENGTH);
    if (max != REPEAT_FOREVER && max < min)
        return syntax_choice(r->out, NULL, 0);
    if (max > MAX_BOUNDED_LENGTH)
        max = MAX_BOUNDED_LENGTH;
    return quoted(r, syntax_repeat(r->out, plain_char(r), min, max));
}
