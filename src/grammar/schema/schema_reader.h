/* The compiler of JSON schemas: state and functions that its files share. */
#ifndef TUTTI_GRAMMAR_SCHEMA_SCHEMA_READER_H
#define TUTTI_GRAMMAR_SCHEMA_SCHEMA_READER_H

#include "base/containers/key_map.h"
#include "base/rng.h"
#include "grammar/schema/schema.h"
#include "grammar/schema/schema_regex.h"

#include <jansson.h>

/* Recursion and its bounds: schema_value() up to MAX_SCHEMA_DEPTH schemas, with about 3 KB of
 * stack each. Inside it: schema_flatten() up to MAX_COMBINED_DEPTH, schema_are_disjoint() up to 8
 * levels and its types 8 more, patterns 32 groups, property names 64 letters, digits 18, JSON
 * values 256 levels. */
enum {
    MAX_SCHEMA_DEPTH = 200,
    MAX_COMBINED_DEPTH = 32, /* of allOf, anyOf, oneOf and $ref that are merged */
    MAX_SCHEMA_REFS = 2048,
    MAX_SCHEMA_WAYS = 256, /* alternatives of anyOf within allOf, multiplied */
};

enum json_types {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_NUMBER = 8, /* not an integer */
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_ANY = 127,
};

/* How values are written. */
enum schema_dialect {
    SCHEMA_JSON,
    /* JSON within which "</" and "<|" never occur, because a mark that begins so ends the value: in strings
     * either character is escaped. */
    SCHEMA_JSON_IN_MARKS,
    SCHEMA_PYTHON, /* literals of Python: True, None, 'text' */
};

struct schema_reader {
    struct syntax *out;
    enum schema_dialect dialect;
    json_t *root;
    json_t *made; /* list that owns schemas merged from others */
    struct tutti_error *err;
    enum tutti_status status; /* of the first error */
    char path[200];           /* of the current schema, for messages: "$.properties.a" */
    size_t n_path;
    int depth;
    bool is_raw;         /* plain text instead of JSON: characters without JSON escapes */
    struct key_map refs; /* the rules of the targets of references, by schema_key() */
    struct schema_ref {
        const json_t *target;
        const char *name; /* as in the reference */
        int32_t rule;
    } * pending; /* rules still to be defined: references do not recurse */
    size_t n_pending, pending_room;
    struct key_map strings; /* the rules of bounded strings, by their pattern's term or their lengths */
    size_t bytes_taken;     /* from the budget of out, by JSON values */
    /* Nodes; -1: not created yet */
    int32_t blanks, any_value, any_object, any_array, any_string, any_number, any_integer, free_text,
        plain_char;
    struct regexes regexes;
};

/* Identifies a schema by its address. */
static inline uint64_t schema_key(const json_t *schema)
{
    return mix64((uintptr_t)schema);
}

/* Sets the error of response_format, with the path, unless one is set. Returns -1. */
int32_t schema_fail(struct schema_reader *r, const char *format, ...) PRINTF_LIKE(2, 3);
int32_t schema_no_memory(struct schema_reader *r);

/* Spend from out's budget. False: it is spent, which sets the error. */
bool schema_spend(struct schema_reader *r, size_t n_steps);
bool schema_take_bytes(struct schema_reader *r, size_t n_bytes);
/* Makes room for n items in an array of *room items, from the budget. */
bool schema_grow(struct schema_reader *r, void *array, size_t *room, size_t n, size_t item_bytes);

/* Extends the path by a part. schema_leave() cuts it back to the returned length. */
size_t schema_enter(struct schema_reader *r, const char *part, const char *name);
void schema_leave(struct schema_reader *r, size_t n_path);

/* Keeps the path for messages if no text matches this node of the current schema. Returns the node. */
int32_t schema_note_nothing(struct schema_reader *r, int32_t node);

/* Wraps a node in a rule, to use it in several places. */
int32_t schema_share(struct schema_reader *r, int32_t node);

/* Nodes: of a schema, of any value of a kind. */
int32_t schema_value(struct schema_reader *r, const json_t *schema);
int32_t schema_any_value(struct schema_reader *r);
int32_t schema_blanks(struct schema_reader *r);
/* A given JSON value, and null, true or false. */
int32_t schema_word(struct schema_reader *r, const char *word);
int32_t schema_literal(struct schema_reader *r, const json_t *value);
/* One of these characters inside a string, escaped if necessary and always in the same way; with
 * is_raw unescaped. */
int32_t schema_chars(struct schema_reader *r, const struct char_range *ranges, size_t n);

/* By type; the schema is flat: it has no $ref, allOf, anyOf, oneOf, enum or const. */
int32_t schema_string(struct schema_reader *r, const json_t *schema);
int32_t schema_any_string(struct schema_reader *r);
int32_t schema_string_of_term(struct schema_reader *r, int32_t term); /* schema_regex.h; quoted */
int32_t schema_quoted(struct schema_reader *r, int32_t inside);
int32_t schema_plain_char(struct schema_reader *r); /* one character, for the inside of a string */
int32_t schema_number(struct schema_reader *r, const json_t *schema, bool is_integer);
int32_t schema_array(struct schema_reader *r, const json_t *schema);
int32_t schema_object(struct schema_reader *r, const json_t *schema);

/* The term (schema_regex.h) of a regular expression of ECMA-262: texts that contain a match; whole:
 * that are one. is_refused: for texts that must not match, so it has rather too many than too few. */
int32_t schema_pattern(struct schema_reader *r, const char *pattern, size_t n_bytes, bool whole,
                       bool is_refused);

/* The term of the strings that a flat schema allows. */
int32_t schema_string_term(struct schema_reader *r, const json_t *schema);

/* A regular expression for plain text, whatever is_raw. *node keeps the result; -1: none yet. */
int32_t schema_raw(struct schema_reader *r, const char *pattern, int32_t *node);

/* A count such as minItems: 0 or more; fallback if it is absent. Values are clamped to
 * LIMIT_GRAMMAR_REPEAT. */
int32_t schema_count(struct schema_reader *r, const json_t *schema, const char *name, int32_t fallback);

/* ---- schema.c ---- */

/* NULL: out of memory. */
struct schema_reader *schema_reader_new(struct syntax *out, struct tutti_error *err);
/* Defines the rules of references that were used so far; they are looked up in root. */
void schema_define_refs(struct schema_reader *r);
/* Frees the reader. Returns its status; is_whole: the root of the grammar is this node. */
MUST_CHECK enum tutti_status schema_finish(struct schema_reader *r, int32_t node, bool is_whole);
/* Parses JSON on the budget's account. NULL: error. */
json_t *schema_parse(struct schema_reader *r, const char *text, size_t n_bytes);

/* ---- schema_object.c ---- */

struct schema_arguments; /* schema_arguments.h */
/* The properties of a flat schema, one by one. False: error, also if they cannot be written so. */
bool schema_list_properties(struct schema_reader *r, const json_t *flat, struct schema_arguments *out);

/* ---- schema_number.c ---- */

/* minimum, maximum and their exclusive forms; without a bound it is infinite. */
struct schema_bounds {
    double low, high;
    bool low_is_out, high_is_out; /* the bound itself is excluded */
    bool has_any;
};
/* If one of them is not a number, the error is set. */
struct schema_bounds schema_bounds(struct schema_reader *r, const json_t *schema);
/* The doubles next to a number: they differ for an integer that a double cannot hold. */
void schema_round(const json_t *value, double *below, double *above);
bool schema_is_within(const struct schema_bounds *b, double x);
/* The integers within the bounds that are written. False: none. */
bool schema_integer_range(const struct schema_bounds *b, int64_t *low, int64_t *high);

/* ---- schema_multiple.c ---- */

/* A number m * 10^exponent, m not divisible by 10. False: not such a number, with the error set. */
struct schema_decimal {
    int64_t m;
    int exponent;
};
bool schema_read_multiple(struct schema_reader *r, const json_t *value, struct schema_decimal *out);
bool schema_is_multiple(const struct schema_decimal *of, double x);
/* Multiples within the bounds. */
int32_t schema_multiples(struct schema_reader *r, const struct schema_bounds *b,
                         const struct schema_decimal *of, bool is_integer);
/* Integers within the bounds whose absolute value leaves this remainder. */
int32_t schema_remainders(struct schema_reader *r, const struct schema_bounds *b, int32_t modulus,
                          int32_t remainder);

/* ---- schema_keywords.c ---- */

struct schema_keyword {
    const char *name;
    enum {
        KEYWORD_COMBINES, /* combines other schemas */
        KEYWORD_WITH_IF,  /* has no effect of its own */
        KEYWORD_RULES,
        KEYWORD_REFUSED, /* is an error */
    } use;
    unsigned types; /* of the values that it applies to; 0: to any */
    enum schema_merge {
        MERGE_NEVER,
        MERGE_TYPES,
        MERGE_VALUES,
        MERGE_MEMBERS, /* properties with additionalProperties */
        MERGE_REQUIRED,
        MERGE_ITEMS, /* items with prefixItems */
        MERGE_LARGER,
        MERGE_SMALLER,
        MERGE_CONTAINS, /* contains with its counts; two different ones cannot be merged */
        MERGE_EITHER,   /* true if one of them is */
        MERGE_SCHEMAS,  /* allOf of both */
        MERGE_LIST,     /* a list of both */
        MERGE_MULTIPLE, /* the least common multiple */
    } merge;
};

/* NULL: an annotation without effect. */
const struct schema_keyword *schema_keyword(const char *name);
/* Called for each schema that is read. False, with the error set: the schema has an unsupported
 * keyword, or the budget is spent. */
bool schema_check_keywords(struct schema_reader *r, const json_t *schema);
/* Whether the schema has keywords that schema_flatten() replaces. */
bool schema_combines(const json_t *schema);
/* Whether the schema has other supported keywords than this one. */
bool schema_says_more(const json_t *schema, const char *than);
/* The types that the schema's keywords apply to; TYPE_ANY if no keyword is specific to a type. */
unsigned schema_infer_types(const json_t *schema);

/* ---- schema_values.c ---- */

unsigned schema_type_of(const json_t *value);
/* Equality by JSON Schema: 1 and 1.0 are equal, at any depth. */
bool schema_equal(struct schema_reader *r, const json_t *a, const json_t *b);
/* A new list of the values that are in both; NULL: error. */
json_t *schema_shared_values(struct schema_reader *r, const json_t *a, const json_t *b);
/* Whether the value is valid by the schema, flat or not. False after an error as well. */
bool schema_allows(struct schema_reader *r, const json_t *schema, json_t *value);
/* The same for a value of the schema's own enum or const. */
bool schema_allows_listed(struct schema_reader *r, const json_t *schema, json_t *value);

/* ---- schema_not.c ---- */

/* A new list of flat schemas for values that are not valid by the schema: of all such values some, if
 * not all of them can be described. NULL: error, also if none can be described. */
json_t *schema_negate(struct schema_reader *r, const json_t *schema, int depth);
/* Merges each of a with each of b. Takes over a; a new list, NULL: error. */
json_t *schema_multiply(struct schema_reader *r, json_t *a, const json_t *b);
/* A new list of flat schemas, within others that are merged. */
json_t *schema_flatten_within(struct schema_reader *r, const json_t *schema, int depth);

/* ---- schema_array.c ---- */

int32_t schema_comma(struct schema_reader *r);

/* ---- schema_merge.c ---- */

/* The target of a reference; NULL: error. */
const json_t *schema_resolve(struct schema_reader *r, const json_t *ref);
/* {"allOf": [a, b]}, or the only one that is not NULL; owned by the reader. NULL: neither, or error. */
const json_t *schema_both(struct schema_reader *r, const json_t *a, const json_t *b);
/* {"not": schema}, owned by the reader; NULL: error. */
const json_t *schema_inverse(struct schema_reader *r, const json_t *schema);
/* A list of flat schemas whose union is equivalent to the schema; borrowed. NULL: error. */
json_t *schema_flatten(struct schema_reader *r, const json_t *schema);
/* Whether a property's name matches one of patternProperties, in any dialect of patterns. */
bool schema_matches_any(struct schema_reader *r, const json_t *patterns, const char *name);
/* prefixItems and items, which draft 7 calls items and additionalItems. */
const json_t *schema_prefix_items(const json_t *schema);
const json_t *schema_further_items(const json_t *schema);
/* The types in the schema's "type"; TYPE_ANY if it has none. */
unsigned schema_named_types(struct schema_reader *r, const json_t *schema);
/* The schema of a property in an object schema, apart from its patternProperties; NULL: they describe it, or
 * any value is allowed. */
const json_t *schema_of_property(struct schema_reader *r, const json_t *schema, const char *name);

/* ---- schema_disjoint.c ---- */

/* Whether no value can be valid by both schemas; false also if this cannot be decided. context: NULL, or a flat
 * schema by which the values are valid too. */
bool schema_are_disjoint(struct schema_reader *r, const json_t *context, const json_t *a, const json_t *b);
/* The same for any two schemas of the list. */
bool schema_is_disjoint_list(struct schema_reader *r, const json_t *context, const json_t *list);
/* Whether any two object schemas of the list allow different values of this property. */
bool schema_is_disjoint_by(struct schema_reader *r, const json_t *list, const char *name);
/* Whether all values that are valid by a are valid by b; false also if this cannot be seen at once. */
bool schema_implies(struct schema_reader *r, const json_t *a, const json_t *b);

#endif
