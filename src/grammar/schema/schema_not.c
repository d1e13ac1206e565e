/* The values that a schema excludes, as flat schemas: not, the else of if, and oneOf.
 *
 * A value is not valid by a schema if one keyword fails, and a keyword fails only for values of its
 * type. So each keyword gives alternatives. What cannot be described is left out: the alternatives
 * describe some of the excluded values, and never others. */
#include "grammar/schema/schema_reader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NUMBERS = TYPE_NUMBER | TYPE_INTEGER, BYTES_OF_WAY = 512, STEPS_OF_WAY = 16 };

/* Adds a way, which is taken over; NULL: out of memory. */
static bool add_way(struct schema_reader *r, json_t *out, json_t *way)
{
    if (json_array_size(out) >= MAX_SCHEMA_WAYS) {
        json_decref(way);
        return schema_fail(r, "not: more than %d alternatives", MAX_SCHEMA_WAYS) >= 0;
    }
    if (!way || json_array_append_new(out, way) != 0)
        return schema_no_memory(r) >= 0;
    return schema_take_bytes(r, BYTES_OF_WAY) && schema_spend(r, STEPS_OF_WAY);
}

static const char *const TYPE_NAMES[] = {
    "null", "boolean", "integer", "number", "string", "array", "object"
};

/* A way for all values of these types. Numbers that are no integers have no name, and are left out. */
static bool add_types(struct schema_reader *r, json_t *out, unsigned types, bool *is_left_out)
{
    if ((types & NUMBERS) == TYPE_NUMBER) {
        types &= ~(unsigned)TYPE_NUMBER;
        *is_left_out = true;
    }
    json_t *names = json_array();
    for (int i = 0; i < 7; i++)
        if (types & (1u << i) && !(i == 2 && types & TYPE_NUMBER))
            json_array_append_new(names, json_string(TYPE_NAMES[i]));
    if (json_array_size(names) == 0) {
        json_decref(names);
        return true;
    }
    return add_way(r, out, json_pack("{s:o}", "type", names));
}

/* ---- enum and const ---- */

static int compare_numbers(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The numbers between those of the list. */
static bool add_other_numbers(struct schema_reader *r, json_t *out, const json_t *list)
{
    size_t n = 0, i;
    const json_t *entry;
    double *values = calloc(2 * json_array_size(list) + 1, sizeof *values);
    if (!values)
        return schema_no_memory(r) >= 0;
    json_array_foreach(list, i, entry)
    {
        if (!json_is_number(entry))
            continue;
        schema_round(entry, &values[n], &values[n + 1]);
        n += values[n] != values[n + 1] ? 2 : 1;
    }
    qsort(values, n, sizeof *values, compare_numbers);
    bool ok = true;
    for (i = 0; i <= n && ok; i++) {
        if (i > 0 && i < n && values[i] <= nextafter(values[i - 1], INFINITY)) /* no double is between them */
            continue;
        ok = add_way(r, out,
                     n == 0   ? json_pack("{s:s}", "type", "number")
                     : i == 0 ? json_pack("{s:s, s:f}", "type", "number", "exclusiveMaximum", values[0])
                     : i == n ? json_pack("{s:s, s:f}", "type", "number", "exclusiveMinimum", values[n - 1])
                              : json_pack("{s:s, s:f, s:f}", "type", "number", "exclusiveMinimum",
                                          values[i - 1], "exclusiveMaximum", values[i]));
    }
    free(values);
    return ok;
}

/* Objects that differ from one: a property is missing, or has another value. */
static bool add_other_objects(struct schema_reader *r, json_t *out, const json_t *value)
{
    const char *key;
    json_t *own;
    if (json_object_size(value) == 0)
        return add_way(r, out, json_pack("{s:s, s:i}", "type", "object", "minProperties", 1));
    json_object_foreach((json_t *)(uintptr_t)value, key, own)
    {
        if (!add_way(r, out, json_pack("{s:s, s:{s:b}}", "type", "object", "properties", key, 0)) ||
            !add_way(r, out,
                     json_pack("{s:s, s:{s:{s:{s:O}}}, s:[s]}", "type", "object", "properties", key, "not",
                               "const", own, "required", key)))
            return false;
    }
    return true;
}

/* An array of at least i + 1 items whose item i is not valid by the schema. */
static json_t *other_item(size_t i, json_t *schema)
{
    json_t *prefix = json_array();
    for (size_t k = 0; k < i; k++)
        json_array_append_new(prefix, json_true());
    json_array_append_new(prefix, json_pack("{s:o}", "not", schema));
    return json_pack("{s:s, s:o, s:I}", "type", "array", "prefixItems", prefix, "minItems",
                     (json_int_t)i + 1);
}

static bool add_other_arrays(struct schema_reader *r, json_t *out, const json_t *value)
{
    size_t n = json_array_size(value), i;
    json_t *entry;
    if (!add_way(r, out, json_pack("{s:s, s:I}", "type", "array", "minItems", (json_int_t)n + 1)) ||
        (n > 0 && !add_way(r, out, json_pack("{s:s, s:I}", "type", "array", "maxItems", (json_int_t)n - 1))))
        return false;
    json_array_foreach(value, i, entry)
    {
        if (!add_way(r, out, other_item(i, json_pack("{s:O}", "const", entry))))
            return false;
    }
    return true;
}

/* Arrays or objects that are none of the list. */
static bool add_other_lists(struct schema_reader *r, json_t *out, const json_t *list, unsigned type)
{
    json_t *ways = json_pack("[{s:s}]", "type", type == TYPE_ARRAY ? "array" : "object"), *entry;
    size_t i;
    json_array_foreach(list, i, entry)
    {
        if (schema_type_of(entry) != type || !ways)
            continue;
        json_t *more = json_array();
        bool ok = type == TYPE_ARRAY ? add_other_arrays(r, more, entry) : add_other_objects(r, more, entry);
        ways = ok ? schema_multiply(r, ways, more) : ways;
        json_decref(more);
        if (!ok)
            break;
    }
    json_array_foreach(ways, i, entry)
    {
        if (r->status != TUTTI_OK || !add_way(r, out, json_incref(entry)))
            break;
    }
    json_decref(ways);
    return r->status == TUTTI_OK;
}

static bool add_other_values(struct schema_reader *r, json_t *out, const json_t *list, bool *is_left_out)
{
    unsigned types = 0, booleans = 0;
    size_t i;
    json_t *entry, *texts = json_array();
    bool ok = texts || schema_no_memory(r) >= 0;
    json_array_foreach((json_t *)(uintptr_t)list, i, entry)
    {
        types |= schema_type_of(entry);
        booleans |= json_is_boolean(entry) ? 1u << json_is_true(entry) : 0;
        if (ok && json_is_string(entry))
            ok = json_array_append(texts, entry) == 0 || schema_no_memory(r) >= 0;
    }
    if (types & NUMBERS)
        types |= NUMBERS;
    ok = ok && schema_spend(r, json_array_size(list)) && add_types(r, out, TYPE_ANY & ~types, is_left_out);
    if (ok && (booleans == 1 || booleans == 2))
        ok = add_way(r, out, json_pack("{s:[b]}", "enum", booleans == 1));
    if (ok && types & TYPE_STRING)
        ok = add_way(r, out, json_pack("{s:s, s:[{s:O}]}", "type", "string", "not", "enum", texts));
    if (ok && types & NUMBERS)
        ok = add_other_numbers(r, out, list);
    if (ok && types & TYPE_ARRAY)
        ok = add_other_lists(r, out, list, TYPE_ARRAY);
    if (ok && types & TYPE_OBJECT)
        ok = add_other_lists(r, out, list, TYPE_OBJECT);
    json_decref(texts);
    return ok;
}

/* ---- keywords of one type ---- */

/* The bound that excludes what a bound includes. */
static const struct opposite {
    const char *name, *other, *type;
    int difference; /* added to counts */
    bool is_lower;
} OPPOSITES[] = {
    { "minimum", "exclusiveMaximum", "number", 0, false },
    { "exclusiveMinimum", "maximum", "number", 0, false },
    { "maximum", "exclusiveMinimum", "number", 0, false },
    { "exclusiveMaximum", "minimum", "number", 0, false },
    { "minLength", "maxLength", "string", -1, true },
    { "maxLength", "minLength", "string", 1, false },
    { "minItems", "maxItems", "array", -1, true },
    { "maxItems", "minItems", "array", 1, false },
    { "minProperties", "maxProperties", "object", -1, true },
    { "maxProperties", "minProperties", "object", 1, false },
};

static bool add_opposite(struct schema_reader *r, json_t *out, const json_t *schema, const struct opposite *o)
{
    json_t *bound = json_object_get(schema, o->name);
    if (!json_is_number(bound))
        return schema_fail(r, "%s must be a number", o->name) >= 0;
    if (o->difference == 0)
        return add_way(r, out, json_pack("{s:s, s:O}", "type", o->type, o->other, bound));
    int32_t count = schema_count(r, schema, o->name, 0);
    if (r->status != TUTTI_OK || (o->is_lower && count == 0) ||
        (!o->is_lower && json_number_value(bound) >= LIMIT_GRAMMAR_REPEAT))
        return r->status == TUTTI_OK;
    return add_way(r, out, json_pack("{s:s, s:i}", "type", o->type, o->other, count + o->difference));
}

static bool add_other_properties(struct schema_reader *r, json_t *out, json_t *properties)
{
    const char *name;
    json_t *own;
    json_object_foreach(properties, name, own)
    {
        if (!json_is_true(own) && !(json_is_object(own) && json_object_size(own) == 0) &&
            !add_way(r, out,
                     json_pack("{s:s, s:{s:{s:O}}, s:[s]}", "type", "object", "properties", name, "not", own,
                               "required", name)))
            return false;
    }
    return true;
}

static bool add_missing(struct schema_reader *r, json_t *out, const json_t *names, const char *unless)
{
    size_t i;
    const json_t *name;
    json_array_foreach(names, i, name)
    {
        json_t *way = !json_is_string(name) ? NULL
                      : !unless             ? json_pack("{s:s, s:{s:b}}", "type", "object", "properties",
                                                        json_string_value(name), 0)
                                : json_pack("{s:s, s:{s:b}, s:[s]}", "type", "object", "properties",
                                            json_string_value(name), 0, "required", unless);
        if (way && !add_way(r, out, way))
            return false;
    }
    return true;
}

/* Adds the ways in which a keyword fails. *is_left_out: some, or all, are not described. */
static bool add_failures(struct schema_reader *r, json_t *out, const json_t *schema, const char *key,
                         json_t *value, bool *is_left_out)
{
    size_t i;
    json_t *entry;
    for (i = 0; i < sizeof OPPOSITES / sizeof *OPPOSITES; i++)
        if (!strcmp(key, OPPOSITES[i].name))
            return add_opposite(r, out, schema, &OPPOSITES[i]);
    if (!strcmp(key, "type"))
        return add_types(r, out, TYPE_ANY & ~schema_named_types(r, schema), is_left_out);
    if (!strcmp(key, "const") || !strcmp(key, "enum")) {
        json_t *list = *key == 'c' ? json_pack("[O]", value) : json_incref(value);
        bool ok = json_is_array(list) ? add_other_values(r, out, list, is_left_out)
                                      : schema_fail(r, "enum must be a list") >= 0;
        json_decref(list);
        return ok;
    }
    if (!strcmp(key, "pattern"))
        return add_way(r, out, json_pack("{s:s, s:[{s:O}]}", "type", "string", "not", "pattern", value));
    if (!strcmp(key, "properties"))
        return add_other_properties(r, out, value);
    if (!strcmp(key, "required"))
        return add_missing(r, out, value, NULL);
    if (!strcmp(key, "contains") && !json_object_get(schema, "minContains") &&
        !json_object_get(schema, "maxContains"))
        return add_way(r, out, json_pack("{s:s, s:{s:O}}", "type", "array", "items", "not", value));
    if (!strcmp(key, "items") && !json_is_array(value) && !json_object_get(schema, "prefixItems"))
        return json_is_true(value) ||
               add_way(r, out, json_pack("{s:s, s:{s:O}}", "type", "array", "contains", "not", value));
    if (!strcmp(key, "prefixItems") || (!strcmp(key, "items") && json_is_array(value))) {
        json_array_foreach(value, i, entry)
        {
            if (!add_way(r, out, other_item(i, json_incref(entry))))
                return false;
        }
        return true;
    }
    if (!strcmp(key, "dependentRequired")) {
        const char *name;
        json_object_foreach(value, name, entry)
        {
            if (!add_missing(r, out, entry, name))
                return false;
        }
        return true;
    }
    *is_left_out = *is_left_out || schema_keyword(key);
    return true;
}

/* ---- keywords that combine schemas ---- */

static bool add_all(struct schema_reader *r, json_t *out, json_t *ways)
{
    size_t i;
    json_t *way;
    json_array_foreach(ways, i, way)
    {
        if (!add_way(r, out, json_incref(way)))
            break;
    }
    json_decref(ways);
    return r->status == TUTTI_OK;
}

/* None of the list. */
static json_t *negate_each(struct schema_reader *r, const json_t *list, int depth)
{
    json_t *ways = json_pack("[{}]");
    size_t i;
    const json_t *entry;
    json_array_foreach(list, i, entry)
    {
        json_t *more = ways ? schema_negate(r, entry, depth + 1) : NULL;
        ways = schema_multiply(r, ways, more);
        json_decref(more);
        if (r->status != TUTTI_OK)
            break;
    }
    return ways;
}

/* Both of two schemas, each of which may be negated. */
static json_t *negate_pair(struct schema_reader *r, const json_t *a, bool is_a_negated, const json_t *b,
                           int depth)
{
    json_t *ways = is_a_negated ? schema_negate(r, a, depth + 1) : schema_flatten_within(r, a, depth + 1);
    json_t *more = ways ? schema_negate(r, b, depth + 1) : NULL;
    ways = schema_multiply(r, ways, more);
    json_decref(more);
    return ways;
}

static bool add_of_combined(struct schema_reader *r, json_t *out, const json_t *schema, const char *key,
                            const json_t *value, int depth, bool *is_left_out)
{
    size_t i;
    const json_t *entry;
    if (!strcmp(key, "not"))
        return add_all(r, out, schema_flatten_within(r, value, depth + 1));
    if (!strcmp(key, "$ref")) {
        const json_t *target = schema_resolve(r, value);
        return target && add_all(r, out, schema_negate(r, target, depth + 1));
    }
    if (!strcmp(key, "allOf")) {
        json_array_foreach(value, i, entry)
        {
            if (!add_all(r, out, schema_negate(r, entry, depth + 1)))
                return false;
        }
        return true;
    }
    if (!strcmp(key, "anyOf") || !strcmp(key, "oneOf")) {
        /* Values that are valid by two alternatives of oneOf are left out. */
        *is_left_out = *is_left_out || *key == 'o';
        return add_all(r, out, negate_each(r, value, depth));
    }
    if (!strcmp(key, "if")) {
        const json_t *then = json_object_get(schema, "then"), *other = json_object_get(schema, "else");
        return (!then || add_all(r, out, negate_pair(r, value, false, then, depth))) &&
               (!other || add_all(r, out, negate_pair(r, value, true, other, depth)));
    }
    *is_left_out = true; /* dependentSchemas, dependencies */
    return true;
}

json_t *schema_negate(struct schema_reader *r, const json_t *schema, int depth)
{
    bool is_left_out = false, ok;
    const char *key;
    json_t *value, *out = json_array();
    if (!out)
        schema_no_memory(r);
    if (depth > MAX_COMBINED_DEPTH)
        schema_fail(r, "not, if, oneOf and $ref nest deeper than %d levels, or refer to themselves",
                    MAX_COMBINED_DEPTH);
    ok = r->status == TUTTI_OK;
    if (ok && json_is_false(schema))
        ok = add_way(r, out, json_object());
    else if (ok && json_is_object(schema))
        ok = schema_check_keywords(r, schema);
    else if (ok && !json_is_true(schema))
        ok = schema_fail(r, "a schema must be an object, true or false") >= 0;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value)
    {
        const struct schema_keyword *keyword = schema_keyword(key);
        if (!ok || !schema_spend(r, STEPS_OF_WAY))
            break;
        if (keyword && keyword->use == KEYWORD_COMBINES && strcmp(key, "dependentRequired"))
            ok = add_of_combined(r, out, schema, key, value, depth, &is_left_out);
        else if (keyword)
            ok = add_failures(r, out, schema, key, value, &is_left_out);
    }
    if (ok && is_left_out && json_array_size(out) == 0)
        schema_fail(r,
                    "not, or the else of if, or oneOf cannot be enforced for this schema: the values that it "
                    "excludes cannot be described");
    if (r->status == TUTTI_OK)
        return out;
    json_decref(out);
    return NULL;
}
