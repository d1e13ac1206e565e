/* The compiler of JSON schemas: state and functions that its files share. */
#ifndef TUTTI_GRAMMAR_SCHEMA_SCHEMA_READER_H
#define TUTTI_GRAMMAR_SCHEMA_SCHEMA_READER_H

#include "base/containers/key_map.h"
#include "base/rng.h"
#include "grammar/schema/schema.h"

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

struct schema_reader {
    struct syntax *out;
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
    size_t bytes_taken; /* from the budget of out, by JSON values */
    /* Nodes; -1: not created yet */
    int32_t blanks, any_value, any_object, any_array, any_string, any_number, any_integer, free_char,
        plain_char;
    int32_t key_tails[65]; /* rules: index = maximum number of further characters of a key */
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

/* Extends the path by a part. schema_leave() cuts it back to the returned length. */
size_t schema_enter(struct schema_reader *r, const char *part, const char *name);
void schema_leave(struct schema_reader *r, size_t n_path);

/* Wraps a node in a rule, to use it in several places. */
int32_t schema_share(struct schema_reader *r, int32_t node);

/* Nodes: of a schema, of any value of a kind. */
int32_t schema_value(struct schema_reader *r, const json_t *schema);
int32_t schema_any_value(struct schema_reader *r);
int32_t schema_blanks(struct schema_reader *r);
/* A given JSON value. */
int32_t schema_literal(struct schema_reader *r, const json_t *value);
/* One of these characters inside a string, escaped if necessary and always in the same way; with
 * is_raw unescaped. */
int32_t schema_chars(struct schema_reader *r, const struct char_range *ranges, size_t n);

/* By type; the schema is flat: it has no $ref, allOf, anyOf, oneOf, enum or const. */
int32_t schema_string(struct schema_reader *r, const json_t *schema);
int32_t schema_any_string(struct schema_reader *r);
int32_t schema_number(struct schema_reader *r, const json_t *schema, bool is_integer);
int32_t schema_array(struct schema_reader *r, const json_t *schema);
int32_t schema_object(struct schema_reader *r, const json_t *schema);

/* A regular expression of ECMA-262, for the inside of a string. *min, *max: its length in
 * characters; REPEAT_FOREVER. fills: whether other text is allowed around it where it is not
 * anchored. */
int32_t schema_pattern(struct schema_reader *r, const char *pattern, size_t n_bytes, bool fills, int32_t *min,
                       int32_t *max);

/* A regular expression for plain text, whatever is_raw. *node keeps the result; -1: none yet. */
int32_t schema_raw(struct schema_reader *r, const char *pattern, int32_t *node);

/* A count such as minItems: 0 or more; fallback if it is absent. Values are clamped to
 * LIMIT_GRAMMAR_REPEAT. */
int32_t schema_count(struct schema_reader *r, const json_t *schema, const char *name, int32_t fallback);

/* ---- schema_number.c ---- */

/* minimum, maximum and their exclusive forms; without a bound it is infinite. */
struct schema_bounds {
    double low, high;
    bool low_is_out, high_is_out; /* the bound itself is excluded */
    bool has_any;
};
/* If one of them is not a number, the error is set. */
struct schema_bounds schema_bounds(struct schema_reader *r, const json_t *schema);
bool schema_is_within(const struct schema_bounds *b, double x);

/* ---- schema_keywords.c ---- */

struct schema_keyword {
    const char *name;
    enum {
        KEYWORD_COMBINES,
        KEYWORD_RULES,
        KEYWORD_REFUSED
    } use;          /* combines other schemas; is implemented; is an error */
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
        MERGE_EQUAL, /* two different values cannot be merged */
    } merge;
};

/* NULL: an annotation without effect. */
const struct schema_keyword *schema_keyword(const char *name);
/* Called for each schema that is read. False, with the error set: the schema has an unsupported
 * keyword, or the budget is spent. */
bool schema_check_keywords(struct schema_reader *r, const json_t *schema);
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
/* Whether the value is valid by the flat schema. If this cannot be decided, the error is set. */
bool schema_allows(struct schema_reader *r, const json_t *schema, json_t *value);

/* ---- schema_merge.c ---- */

/* The target of a reference; NULL: error. */
const json_t *schema_resolve(struct schema_reader *r, const json_t *ref);
/* A list of flat schemas whose union is equivalent to the schema; borrowed. NULL: error. */
json_t *schema_flatten(struct schema_reader *r, const json_t *schema);
/* The types in the schema's "type"; TYPE_ANY if it has none. */
unsigned schema_named_types(struct schema_reader *r, const json_t *schema);
/* The schema of a property in an object schema; NULL: any value is allowed. */
const json_t *schema_of_property(const json_t *schema, const char *name);

/* ---- schema_disjoint.c ---- */

/* Whether no value can be valid by two schemas of the list. False: the error is set. */
bool schema_check_one_of(struct schema_reader *r, const json_t *list);

#endif
