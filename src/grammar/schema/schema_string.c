/* Grammars of strings: RFC 8259, section 7. Lengths count characters, and an escape is one. */
#include "grammar/schema/schema_reader.h"

#include "base/ids.h"

#include <string.h>

/* This many copies of a character make a grammar of about 400,000 edges. */
enum { MAX_BOUNDED_LENGTH = 32768 };

/* A pattern with a larger maxLength is written up to this length: each character needs states of its
 * own. */
enum { MAX_PATTERN_LENGTH = 1024 };

/* Formats as patterns. Dates are valid by the calendar. */
static const struct {
    const char *name, *pattern;
} FORMATS[] = {
#define YEAR "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
/* Divisible by 4, and by 400 if it is divisible by 100. */
#define LEAP_YEAR "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                                 \
    "(" YEAR                                                                                                 \
    "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|"       \
    "2[0-8]))|" LEAP_YEAR "-02-29)"
#define TIME     "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define COUNT    "[0-9]{1,4}"
#define MINUTES  COUNT "M(" COUNT "S)?"
#define PERIOD   "T(" COUNT "H(" MINUTES ")?|" MINUTES "|" COUNT "S)"
#define MONTHS   COUNT "M(" COUNT "D)?"
#define DAYS     COUNT "Y(" MONTHS ")?|" MONTHS "|" COUNT "D"
#define OCTET    "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define LABEL    "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
#define ATOM     "[A-Za-z0-9_+-]{1,32}"
#define NAME     "[A-Za-z]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
#define HOST     "((" LABEL "\\.){0,3}" NAME "|" IPV4 ")"
#define PORT     "(:[1-9][0-9]{1,3})?"
#define PATH     "(/[A-Za-z0-9_.~-]{1,64}){0,8}"
#define POINTER  "(/([A-Za-z0-9_.-]|~[01]){1,64}){0,8}"
#define URL_CHAR "[A-Za-z0-9._~!$&()*+,;=:@/-]|%[0-9A-Fa-f]{2}"
/* With all its parts below the 2,083 characters that Pydantic allows. */
#define AFTER_PATH             "(\\?(" URL_CHAR "|\\?){0,200})?(#(" URL_CHAR "|\\?){0,64})?"
#define URL                    "https?://" HOST PORT "(/(" URL_CHAR "){0,300})?" AFTER_PATH
#define USER                   "([A-Za-z0-9._~-]{1,32}(:[A-Za-z0-9._~-]{1,64})?@)?"
#define EMAIL                  ATOM "(\\." ATOM "){0,3}@(" LABEL "\\.){1,3}[A-Za-z]{2,16}"
#define HEX(n)                 "[0-9A-Fa-f]{" #n "}"
#define UUID(VERSION, VARIANT) "^" HEX(8) "-" HEX(4) "-" VERSION HEX(3) "-" VARIANT HEX(3) "-" HEX(12) "$"
#define IPV4                   OCTET "(\\." OCTET "){3}"
/* Groups, of which "::" leaves out some. */
#define GROUP               "[0-9A-Fa-f]{1,4}"
#define SKIP(before, after) "(" GROUP ":){1," #before "}(:" GROUP "){1," #after "}|"
#define IPV6                                                                                                 \
    "((" GROUP ":){7}" GROUP "|(" GROUP ":){1,7}:|" SKIP(6, 1) SKIP(5, 2) SKIP(4, 3) SKIP(3, 4) SKIP(2, 5)   \
        SKIP(1, 6) ":(:" GROUP "){1,7}|::)"
#define BASE64(CHARS, PAD)                                                                                   \
    "^(" CHARS "{4})*(" CHARS "[AQgw]" PAD PAD "|" CHARS "{2}[AEIMQUYcgkosw048]" PAD ")?$"
#define ANY_TEXT ""
    { "date", "^" DATE "$" },
    { "time", "^" TIME "$" },
    { "date-time", "^" DATE "T" TIME "$" },
    { "duration", "^P((" DAYS ")(" PERIOD ")?|" PERIOD "|" COUNT "W)$" },
    { "uuid", UUID(HEX(1), HEX(1)) },
    { "uuid1", UUID("1", "[89ABab]") },
    { "uuid3", UUID("3", "[89ABab]") },
    { "uuid4", UUID("4", "[89ABab]") },
    { "uuid5", UUID("5", "[89ABab]") },
    { "uuid6", UUID("6", "[89ABab]") },
    { "uuid7", UUID("7", "[89ABab]") },
    { "uuid8", UUID("8", "[89ABab]") },
    { "email", "^" EMAIL "$" },
    { "idn-email", "^" EMAIL "$" },
    { "name-email", "^[A-Za-z]{1,32}( [A-Za-z]{1,32}){0,3} <" EMAIL ">$" },
    { "hostname", "^" HOST "$" },
    { "idn-hostname", "^" HOST "$" },
    { "ipv4", "^" IPV4 "$" },
    { "ipv6", "^" IPV6 "$" },
    { "ipvanyaddress", "^(" IPV4 "|" IPV6 ")$" },
    { "ipv4network", "^" IPV4 "/32$" },
    { "ipv6network", "^" IPV6 "/128$" },
    { "ipvanynetwork", "^(" IPV4 "/32|" IPV6 "/128)$" },
    { "ipv4interface", "^" IPV4 "/([12]?[0-9]|3[0-2])$" },
    { "ipv6interface", "^" IPV6 "/([1-9]?[0-9]|1[01][0-9]|12[0-8])$" },
    { "ipvanyinterface", "^(" IPV4 "|" IPV6 ")$" },
    { "cidrv4", "^" IPV4 "/([12]?[0-9]|3[0-2])$" },
    { "cidrv6", "^" IPV6 "/([1-9]?[0-9]|1[01][0-9]|12[0-8])$" },
    { "uri", "^" URL "$" },
    { "url", "^" URL "$" }, /* other names of "uri", "hostname" and "ipv4" in older drafts and in use */
    { "host-name", "^" HOST "$" },
    { "ip-address", "^" IPV4 "$" },
    { "iri", "^" URL "$" },
    { "multi-host-uri", "^[a-z]{2,16}://" USER HOST PORT PATH "$" },
    { "uri-reference", "^(" URL "|" PATH AFTER_PATH ")$" },
    { "iri-reference", "^(" URL "|" PATH AFTER_PATH ")$" },
    { "uri-template", "^(https?://" HOST ")?(/[A-Za-z0-9_.~-]{1,64}|/\\{[a-z]{1,32}\\}){0,8}$" },
    { "json-pointer", "^" POINTER "$" },
    { "relative-json-pointer", "^(0|[1-9][0-9]{0,3})(#|" POINTER ")$" },
    { "regex", "^[A-Za-z0-9 _-]*$" },
    { "path", "^[^\\u0000]+$" },
    { "file-path", "^[^\\u0000]+$" },
    { "directory-path", "^[^\\u0000]+$" },
    { "base64", BASE64("[A-Za-z0-9+/]", "=") },
    { "base64url", BASE64("[A-Za-z0-9_-]", "=") },
    { "byte", BASE64("[A-Za-z0-9+/]", "=") },
    { "decimal", "^-?(0|[1-9][0-9]{0,15})(\\.[0-9]{1,16})?$" },
    { "color", "^#" HEX(6) "$" },
    { "e164", "^\\+[1-9][0-9]{6,14}$" },
    { "cuid", "^c[a-z0-9]{24}$" },
    { "cuid2", "^[a-z][a-z0-9]{23}$" },
    { "ulid", "^[0-7][0-9A-HJKMNP-TV-Z]{25}$" },
    { "xid", "^[0-9a-v]{20}$" },
    { "ksuid", "^[0-9A-Za-z]{27}$" },
    { "nanoid", "^[A-Za-z0-9_-]{21}$" },
    { "jwt", "^eyJ[A-Za-z0-9_-]{2,}\\.[A-Za-z0-9_-]{2,}\\.[A-Za-z0-9_-]{2,}$" },
    { "json-string", "^(null|true|false|-?(0|[1-9][0-9]{0,15})|\"[A-Za-z0-9 _-]*\")$" },
    { "lowercase", "^[a-z0-9 _.,-]*$" },
    { "uppercase", "^[A-Z0-9 _.,-]*$" },
    { "binary", ANY_TEXT },
    { "password", ANY_TEXT },
};

/* The pattern of a format; "": any text. NULL: error. A format of another name is that of the pattern next to
 * it, as Zod writes formats of its users. */
static const char *pattern_of_format(struct schema_reader *r, const json_t *format, bool has_pattern)
{
    const char *name = json_string_value(format);
    for (size_t i = 0; name && i < sizeof FORMATS / sizeof *FORMATS; i++)
        if (!strcmp(name, FORMATS[i].name))
            return FORMATS[i].pattern;
    if (name && has_pattern)
        return ANY_TEXT;
    schema_fail(r, "the format \"%.64s\" is not supported; say the form of the text with pattern",
                name ? name : "(not a string)");
    return NULL;
}

/* ---- terms ---- */

static int32_t any_of_texts(struct schema_reader *r, const json_t *list)
{
    struct ids texts = { 0 };
    size_t i;
    const json_t *entry;
    bool ok = true;
    json_array_foreach(list, i, entry)
    {
        if (json_is_string(entry) && ok)
            ok = ids_add(&texts, regex_text(r, json_string_value(entry), json_string_length(entry)));
    }
    int32_t term = ok ? regex_or(r, texts.ids, texts.n) : schema_no_memory(r);
    ids_clear(&texts);
    return term;
}

static int32_t pattern_term(struct schema_reader *r, const json_t *pattern, bool is_refused)
{
    if (!json_is_string(pattern))
        return schema_fail(r, "pattern must be a string");
    return schema_pattern(r, json_string_value(pattern), json_string_length(pattern), false, is_refused);
}

static int32_t format_term(struct schema_reader *r, const json_t *format, bool has_pattern)
{
    const char *pattern = pattern_of_format(r, format, has_pattern);
    return pattern ? schema_pattern(r, pattern, strlen(pattern), false, false) : -1;
}

/* An entry of a flat schema's list "not": strings that are not allowed. */
static int32_t refused_term(struct schema_reader *r, const json_t *entry)
{
    const json_t *pattern = json_object_get(entry, "pattern");
    return regex_not(r, pattern ? pattern_term(r, pattern, true)
                                : any_of_texts(r, json_object_get(entry, "enum")));
}

/* Other encodings than these are annotations. */
static int32_t encoding_term(struct schema_reader *r, const json_t *encoding)
{
    const char *name = json_string_value(encoding);
    if (!name)
        return schema_fail(r, "contentEncoding must be a string");
    return !strcmp(name, "base64") || !strcmp(name, "base64url") ? format_term(r, encoding, false)
                                                                 : regex_any(r);
}

/* Adds the term of a keyword, whose value is one or in a flat schema a list of several. */
static bool add_string_terms(struct schema_reader *r, struct ids *terms, const json_t *schema,
                             const char *key)
{
    const json_t *value = json_object_get(schema, key);
    size_t n = json_is_array(value) ? json_array_size(value) : value != NULL;
    for (size_t i = 0; i < n && r->status == TUTTI_OK; i++) {
        const json_t *entry = json_is_array(value) ? json_array_get(value, i) : value;
        int32_t term = !strcmp(key, "pattern")  ? pattern_term(r, entry, false)
                       : !strcmp(key, "format") ? format_term(r, entry, json_object_get(schema, "pattern"))
                       : !strcmp(key, "not")    ? refused_term(r, entry)
                                                : encoding_term(r, entry);
        if (!ids_add(terms, term))
            schema_no_memory(r);
    }
    return r->status == TUTTI_OK;
}

int32_t schema_string_term(struct schema_reader *r, const json_t *schema)
{
    static const struct char_range ANY_CHAR = { 0, MAX_CODE_POINT };
    const json_t *list = json_object_get(schema, "enum");
    int32_t min = schema_count(r, schema, "minLength", 0),
            max = schema_count(r, schema, "maxLength", REPEAT_FOREVER), shortest, longest, term = -1;
    struct ids terms = { 0 };
    if (r->status == TUTTI_OK && add_string_terms(r, &terms, schema, "pattern") &&
        add_string_terms(r, &terms, schema, "format") && add_string_terms(r, &terms, schema, "not") &&
        add_string_terms(r, &terms, schema, "contentEncoding")) {
        term = regex_and(r, terms.ids, terms.n);
        if (json_is_array(list))
            term = regex_and(r, (int32_t[]){ term, any_of_texts(r, list) }, 2);
    }
    ids_clear(&terms);
    if (term < 0)
        return -1;
    regex_lengths(r, term, &shortest, &longest);
    if (shortest >= min && (max == REPEAT_FOREVER || (longest != REPEAT_FOREVER && longest <= max)))
        return term;
    if (max != REPEAT_FOREVER && max < min)
        return regex_none(r);
    if (max > MAX_PATTERN_LENGTH)
        max = min > MAX_PATTERN_LENGTH ? min : MAX_PATTERN_LENGTH;
    return regex_and(r, (int32_t[]){ term, regex_repeat(r, regex_chars(r, &ANY_CHAR, 1), min, max) }, 2);
}

/* ---- strings ---- */

/* Two numbers that tell strings apart. */
static uint64_t string_key(int32_t a, int32_t b)
{
    return mix64((uint64_t)(uint32_t)a << 32 | (uint32_t)b);
}

/* The string with this inside. Strings of the same key have one rule: schemas often bound hundreds of strings
 * alike, and the states of each copy would count. */
static int32_t add_string(struct schema_reader *r, uint64_t key, int32_t inside)
{
    int32_t rule = syntax_add_rule(r->out, NULL, 0);
    if (rule < 0)
        return -1;
    if (!key_map_add(&r->strings, key, rule))
        return schema_no_memory(r);
    syntax_define(r->out, rule, schema_quoted(r, inside));
    return syntax_rule(r->out, rule);
}

int32_t schema_string_of_term(struct schema_reader *r, int32_t term)
{
    uint64_t key = string_key(-1, term);
    int32_t rule = key_map_find(&r->strings, key);
    if (term < 0)
        return -1;
    return rule >= 0 ? syntax_rule(r->out, rule)
                     : add_string(r, key, schema_note_nothing(r, regex_node(r, term)));
}

static int32_t string_of_length(struct schema_reader *r, int32_t min, int32_t max)
{
    uint64_t key = string_key(min, max);
    int32_t rule = key_map_find(&r->strings, key);
    return rule >= 0 ? syntax_rule(r->out, rule)
                     : add_string(r, key, syntax_repeat(r->out, schema_plain_char(r), min, max));
}

int32_t schema_string(struct schema_reader *r, const json_t *schema)
{
    if (json_object_get(schema, "pattern") || json_object_get(schema, "format") ||
        json_object_get(schema, "contentEncoding") || json_object_get(schema, "not")) {
        int32_t term = schema_string_term(r, schema);
        return term == regex_any(r) ? schema_any_string(r) : schema_string_of_term(r, term);
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
    return string_of_length(r, min, max);
}
