/* What the files that read schemas share. */
#ifndef TUTTI_GRAMMAR_SCHEMA_SCHEMA_READER_H
#define TUTTI_GRAMMAR_SCHEMA_SCHEMA_READER_H

#include "grammar/schema/schema.h"
#include "grammar/schema/schema_map.h"

/* What recurses, and how deep: schema_value() through MAX_SCHEMA_DEPTH schemas, with some 3 KB of stack for each; within it
 * schema_flatten() through MAX_COMBINED_DEPTH, schema_are_disjoint() through 8 and then its types through 8 more, patterns through 32
 * groups, names of properties through 64 letters, digits through 18, JSON values through 256 levels. */
enum {
    MAX_SCHEMA_DEPTH = 200,
    MAX_COMBINED_DEPTH = 32, /* of allOf, anyOf, oneOf and $ref that are merged */
    MAX_SCHEMA_REFS = 2048,
    MAX_SCHEMA_WAYS = 256, /* of anyOf within allOf, multiplied */
};

enum json_types {
    TYPE_NULL = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INTEGER = 4,
    TYPE_NUMBER = 8, /* and no integer */
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_ANY = 127,
};

struct schema_reader {
    struct syntax *out;
    json_t *root;
    json_t *made; /* schemas that were put together from others: a list that keeps them */
    struct tutti_error *err;
    enum tutti_status status; /* of the first fault */
    char path[200];           /* to where it reads, for messages: "$.properties.a" */
    size_t n_path;
    int depth;
    bool is_raw;            /* no JSON: characters without the escapes of a JSON string */
    struct schema_map refs; /* the rules of what references lead to */
    struct schema_ref {
        const json_t *target;
        const char *name; /* as the reference has it */
        int32_t rule;
    } * pending; /* those whose rules are still to be defined: references do not recurse */
    size_t n_pending, pending_room;
    size_t bytes_taken; /* from the budget of out, by JSON values */
    /* -1: not made yet */
    int32_t blanks, any_value, any_object, any_array, any_string, any_number, any_integer, free_char,
        plain_char;
    int32_t key_tails[65]; /* rules: up to so many characters of a key */
};

/* Keeps the first fault, of response_format, with the path. Returns -1. */
int32_t schema_fail(struct schema_reader *r, const char *format, ...) PRINTF_LIKE(2, 3);
int32_t schema_no_memory(struct schema_reader *r);

/* From the budget of out. False: it is spent, which is a fault. */
bool schema_spend(struct schema_reader *r, size_t n_steps);
bool schema_take_bytes(struct schema_reader *r, size_t n_bytes);

/* The path is longer by a part until it is cut back to what this returns. */
size_t schema_enter(struct schema_reader *r, const char *part, const char *name);
void schema_leave(struct schema_reader *r, size_t n_path);

/* A node as a rule, to stand in several places. */
int32_t schema_share(struct schema_reader *r, int32_t node);

/* Nodes: of a schema, of any value of a kind. */
int32_t schema_value(struct schema_reader *r, const json_t *schema);
int32_t schema_any_value(struct schema_reader *r);
int32_t schema_blanks(struct schema_reader *r);
/* A JSON value as it is written. */
int32_t schema_literal(struct schema_reader *r, const json_t *value);
/* One of these characters inside a string, escaped where it must be, always in the same way; or as it is, by is_raw. */
int32_t schema_chars(struct schema_reader *r, const struct char_range *ranges, size_t n);

/* By type; the schema is flat: it has no $ref, allOf, anyOf, oneOf, enum or const. */
int32_t schema_string(struct schema_reader *r, const json_t *schema);
int32_t schema_any_string(struct schema_reader *r);
int32_t schema_number(struct schema_reader *r, const json_t *schema, bool is_integer);
int32_t schema_array(struct schema_reader *r, const json_t *schema);
int32_t schema_object(struct schema_reader *r, const json_t *schema);

/* A regular expression as ECMA-262 has it: the inside of a string. *min, *max: its length in characters; REPEAT_FOREVER.
 * fills: may other text stand around it where it is not anchored? Else none is written. */
int32_t schema_pattern(struct schema_reader *r, const char *pattern, size_t n_bytes, bool fills, int32_t *min,
                       int32_t *max);

/* A count such as minItems: 0 or more; fallback where it is absent. Values above LIMIT_GRAMMAR_REPEAT become that. */
int32_t schema_count(struct schema_reader *r, const json_t *schema, const char *name, int32_t fallback);

/* ---- schema_keywords.c ---- */

struct schema_keyword {
    const char *name;
    enum {
        KEYWORD_COMBINES,
        KEYWORD_RULES,
        KEYWORD_REFUSED
    } use;          /* combines other schemas; is obeyed; is refused */
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

/* NULL: a remark. */
const struct schema_keyword *schema_keyword(const char *name);
/* False: the schema has a keyword that is refused, or the budget is spent; both are faults. For each schema that is read,
 * whatever it is part of. */
bool schema_check_keywords(struct schema_reader *r, const json_t *schema);
/* Does the schema have other supported keywords than this one? */
bool schema_says_more(const json_t *schema, const char *than);
/* The types that the schema's keywords apply to; TYPE_ANY where none is specific. */
unsigned schema_guess_types(const json_t *schema);

/* ---- schema_values.c ---- */

unsigned schema_type_of(const json_t *value);
/* Equal as JSON Schema has it: 1 and 1.0 are, at any depth. */
bool schema_equal(struct schema_reader *r, const json_t *a, const json_t *b);
/* A new list of the values that are in both; NULL: a fault. */
json_t *schema_shared_values(struct schema_reader *r, const json_t *a, const json_t *b);
/* Does the value hold what the flat schema says? What it cannot tell is a fault. */
bool schema_allows(struct schema_reader *r, const json_t *schema, json_t *value);

/* ---- schema_merge.c ---- */

/* The schema that a reference leads to; NULL: a fault. */
const json_t *schema_resolve(struct schema_reader *r, const json_t *ref);
/* A list of flat schemas, of which one must hold, equal to the schema; borrowed. NULL: a fault. */
json_t *schema_flatten(struct schema_reader *r, const json_t *schema);
/* The types that the schema names; TYPE_ANY where it names none. */
unsigned schema_named_types(struct schema_reader *r, const json_t *schema);
/* What an object schema says of a property; NULL: everything is allowed. */
const json_t *schema_of_property(const json_t *schema, const char *name);

/* ---- schema_disjoint.c ---- */

/* Is no value valid by two schemas of the list? False: that is a fault now. */
bool schema_check_one_of(struct schema_reader *r, const json_t *list);

#endif
