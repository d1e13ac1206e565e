/* JSON values of a schema: enum and const. */
#include "grammar/schema/schema_reader.h"

#include "base/hash.h"
#include "base/rng.h"
#include "base/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

unsigned schema_type_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL:
        return TYPE_NULL;
    case JSON_TRUE:
    case JSON_FALSE:
        return TYPE_BOOLEAN;
    case JSON_INTEGER:
        return TYPE_INTEGER;
    case JSON_REAL: /* 1.0 is an integer */
        return json_real_value(value) == rint(json_real_value(value)) ? TYPE_INTEGER : TYPE_NUMBER;
    case JSON_STRING:
        return TYPE_STRING;
    case JSON_ARRAY:
        return TYPE_ARRAY;
    default:
        return TYPE_OBJECT;
    }
}

/* ---- equality ---- */

static bool are_numbers_equal(const json_t *a, const json_t *b)
{
    if (json_is_integer(a) && json_is_integer(b))
        return json_integer_value(a) == json_integer_value(b);
    return json_number_value(a) == json_number_value(b);
}

/* Recurses to the depth of the values. */
bool schema_equal(struct schema_reader *r, const json_t *a, const json_t *b)
{
    const char *key;
    json_t *x;
    size_t i;
    if (a == b)
        return true;
    if (!schema_spend(r, 1))
        return false;
    if (json_is_number(a) && json_is_number(b))
        return are_numbers_equal(a, b);
    if (json_typeof(a) != json_typeof(b))
        return false;
    switch (json_typeof(a)) {
    case JSON_STRING:
        return schema_spend(r, json_string_length(a) / 64) && json_equal(a, b);
    case JSON_ARRAY:
        if (json_array_size(a) != json_array_size(b))
            return false;
        json_array_foreach(a, i, x)
        {
            if (!schema_equal(r, x, json_array_get(b, i)))
                return false;
        }
        return true;
    case JSON_OBJECT:
        if (json_object_size(a) != json_object_size(b))
            return false;
        json_object_foreach((json_t *)(uintptr_t)a, key, x)
        {
            const json_t *y = json_object_get(b, key);
            if (!y || !schema_equal(r, x, y))
                return false;
        }
        return true;
    default:
        return true; /* null, true, false */
    }
}

static uint64_t hash_bytes(struct schema_reader *r, const char *bytes, size_t n)
{
    schema_spend(r, n / 8);
    return hash64(0, bytes, n);
}

/* A hash: equal for equal values. */
static uint64_t hash_value(struct schema_reader *r, const json_t *value)
{
    uint64_t h = (uint64_t)(json_is_number(value) ? JSON_REAL : json_typeof(value));
    const char *key;
    json_t *x;
    size_t i;
    if (!schema_spend(r, 1))
        return h;
    if (json_is_number(value)) {
        double number = json_number_value(value) + 0.0; /* -0 is 0 */
        uint64_t bits;
        memcpy(&bits, &number, sizeof bits);
        return mix64(h ^ bits);
    }
    if (json_is_string(value))
        return mix64(h ^ hash_bytes(r, json_string_value(value), json_string_length(value)));
    json_array_foreach(value, i, x) h = mix64(h ^ hash_value(r, x));
    json_object_foreach((json_t *)(uintptr_t)value, key, x) /* in any order */
        h += mix64(hash_bytes(r, key, strlen(key)) ^ hash_value(r, x));
    return h;
}

/* Whether the list has an equal value. values: its entries by their hash. */
static bool has_value(struct schema_reader *r, const json_t *list, const struct key_map *values,
                      const json_t *value)
{
    uint64_t key = hash_value(r, value), at = key;
    int32_t i;
    while ((i = key_map_next(values, key, &at)) >= 0 && schema_spend(r, 1)) {
        if (schema_equal(r, json_array_get(list, (size_t)i), value))
            return true;
    }
    return false;
}

json_t *schema_shared_values(struct schema_reader *r, const json_t *a, const json_t *b)
{
    struct key_map values = { 0 };
    size_t i;
    const json_t *x;
    json_t *out = json_array();
    bool ok = out;
    json_array_foreach(b, i, x) /* equal values once: a map of equal keys is slow */
    {
        if (ok && r->status == TUTTI_OK && !has_value(r, b, &values, x))
            ok = key_map_add(&values, hash_value(r, x), (int32_t)i);
    }
    json_array_foreach(a, i, x)
    {
        if (ok && r->status == TUTTI_OK && has_value(r, b, &values, x))
            ok = json_array_append(out, (json_t *)(uintptr_t)x) == 0;
    }
    if (!ok)
        schema_no_memory(r);
    key_map_clear(&values);
    if (r->status == TUTTI_OK && schema_take_bytes(r, 16 * json_array_size(out)))
        return out;
    json_decref(out);
    return NULL;
}

/* ---- values that are listed ---- */

/* Depths: of a value that is in the schema's own list; of any other value, at first. */
enum { IS_LISTED = 0, FIRST_DEPTH = 1, MAX_CHECK_DEPTH = 64 };

static bool is_valid(struct schema_reader *r, const json_t *schema, json_t *value, int depth);

static bool allows_count(struct schema_reader *r, const json_t *schema, const char *min, const char *max,
                         size_t n)
{
    int32_t low = schema_count(r, schema, min, 0), high = schema_count(r, schema, max, INT32_MAX);
    return n >= (size_t)low && n <= (size_t)high;
}

static bool is_valid_number(struct schema_reader *r, const json_t *schema, const json_t *value)
{
    struct schema_bounds bounds = schema_bounds(r, schema);
    const json_t *multiple = json_object_get(schema, "multipleOf");
    struct schema_decimal of;
    double below, above;
    schema_round(value, &below, &above);
    if (r->status != TUTTI_OK || !schema_is_within(&bounds, below) || !schema_is_within(&bounds, above))
        return false;
    return !multiple ||
           (schema_read_multiple(r, multiple, &of) && schema_is_multiple(&of, json_number_value(value)));
}

static bool is_valid_string(struct schema_reader *r, const json_t *schema, const json_t *value)
{
    const char *text = json_string_value(value);
    size_t n_bytes = json_string_length(value);
    if (!allows_count(r, schema, "minLength", "maxLength", utf8_count(text, n_bytes)))
        return false;
    if (!json_object_get(schema, "pattern") && !json_object_get(schema, "format") &&
        !json_object_get(schema, "contentEncoding") && !json_is_array(json_object_get(schema, "not")))
        return true;
    json_t *own = json_object();
    static const char *const KEYS[] = { "pattern", "format", "contentEncoding", "not" };
    for (size_t i = 0; i < 4; i++) {
        json_t *keyword = json_object_get(schema, KEYS[i]);
        if (keyword && (i < 3 || json_is_array(keyword)))
            json_object_set(own, KEYS[i], keyword);
    }
    bool is_ok = own ? regex_accepts(r, schema_string_term(r, own), text, n_bytes) : schema_no_memory(r) >= 0;
    json_decref(own);
    return is_ok;
}

static bool is_valid_array(struct schema_reader *r, const json_t *schema, const json_t *value, int depth)
{
    const json_t *prefix = schema_prefix_items(schema), *rest = schema_further_items(schema),
                 *contains = json_object_get(schema, "contains");
    size_t i, k, n_found = 0;
    json_t *entry, *other;
    if (!allows_count(r, schema, "minItems", "maxItems", json_array_size(value)))
        return false;
    json_array_foreach(value, i, entry)
    {
        const json_t *own = i < json_array_size(prefix) ? json_array_get(prefix, i) : rest;
        if (own && !is_valid(r, own, entry, depth + 1))
            return false;
        n_found += contains && is_valid(r, contains, entry, depth + 1);
        for (k = 0; k < i && json_is_true(json_object_get(schema, "uniqueItems")); k++) {
            other = json_array_get(value, k);
            if (schema_equal(r, entry, other))
                return false;
        }
    }
    return !contains || (n_found >= (size_t)schema_count(r, schema, "minContains", 1) &&
                         n_found <= (size_t)schema_count(r, schema, "maxContains", INT32_MAX));
}

/* The property's schemas in patternProperties; *is_found: there is one. */
static bool is_valid_by_patterns(struct schema_reader *r, const json_t *schema, const char *name,
                                 json_t *value, int depth, bool *is_found)
{
    const char *pattern;
    json_t *own;
    json_object_foreach(json_object_get(schema, "patternProperties"), pattern, own)
    {
        int32_t term = schema_pattern(r, pattern, strlen(pattern), false, true);
        if (!regex_accepts(r, term, name, strlen(name)))
            continue;
        *is_found = true;
        if (!is_valid(r, own, value, depth + 1))
            return false;
    }
    return r->status == TUTTI_OK;
}

static bool is_valid_name(struct schema_reader *r, const json_t *names, const char *name, int depth)
{
    json_t *text = names ? json_string(name) : NULL;
    bool is_ok = !names || (text ? is_valid(r, names, text, depth + 1) : schema_no_memory(r) >= 0);
    json_decref(text);
    return is_ok;
}

static bool is_valid_object(struct schema_reader *r, const json_t *schema, json_t *value, int depth)
{
    const json_t *own = json_object_get(schema, "properties"),
                 *further = json_object_get(schema, "additionalProperties"), *name;
    const char *key;
    json_t *member;
    size_t i;
    if (!allows_count(r, schema, "minProperties", "maxProperties", json_object_size(value)))
        return false;
    json_array_foreach(json_object_get(schema, "required"), i, name)
    {
        if (json_is_string(name) && !json_object_get(value, json_string_value(name)))
            return false;
    }
    json_object_foreach(value, key, member)
    {
        const json_t *described = json_object_get(own, key);
        bool is_found = described;
        if (!is_valid_name(r, json_object_get(schema, "propertyNames"), key, depth) ||
            (described && !is_valid(r, described, member, depth + 1)) ||
            !is_valid_by_patterns(r, schema, key, member, depth, &is_found) ||
            (!is_found && further && !is_valid(r, further, member, depth + 1)))
            return false;
    }
    return true;
}

static bool is_valid_dependency(struct schema_reader *r, const json_t *demand, json_t *value, int depth)
{
    const json_t *name;
    size_t i;
    if (!json_is_array(demand))
        return is_valid(r, demand, value, depth + 1);
    json_array_foreach(demand, i, name)
    {
        if (json_is_string(name) && !json_object_get(value, json_string_value(name)))
            return false;
    }
    return true;
}

/* The keywords that combine schemas. */
static bool is_valid_combined(struct schema_reader *r, const json_t *schema, json_t *value, int depth)
{
    static const char *const DEPENDENCIES[] = { "dependentRequired", "dependentSchemas", "dependencies" };
    const json_t *ref = json_object_get(schema, "$ref"), *one = json_object_get(schema, "oneOf"),
                 *any = json_object_get(schema, "anyOf"), *no = json_object_get(schema, "not"),
                 *condition = json_object_get(schema, "if"), *part;
    const json_t *target = ref ? schema_resolve(r, ref) : NULL;
    const char *key;
    json_t *demand;
    size_t i, n_valid = 0;
    if (ref && (!target || !is_valid(r, target, value, depth + 1)))
        return false;
    json_array_foreach(json_object_get(schema, "allOf"), i, part)
    {
        if (!is_valid(r, part, value, depth + 1))
            return false;
    }
    json_array_foreach(any, i, part) n_valid += n_valid == 0 && is_valid(r, part, value, depth + 1);
    if (any && n_valid == 0)
        return false;
    n_valid = 0;
    json_array_foreach(one, i, part) n_valid += is_valid(r, part, value, depth + 1);
    if ((one && n_valid != 1) || (no && !json_is_array(no) && is_valid(r, no, value, depth + 1)))
        return false;
    if (condition) {
        const json_t *branch = json_object_get(schema,
                                               is_valid(r, condition, value, depth + 1) ? "then" : "else");
        if (branch && !is_valid(r, branch, value, depth + 1))
            return false;
    }
    for (i = 0; i < 3 && json_is_object(value); i++) {
        json_object_foreach(json_object_get(schema, DEPENDENCIES[i]), key, demand)
        {
            if (json_object_get(value, key) && !is_valid_dependency(r, demand, value, depth))
                return false;
        }
    }
    return true;
}

/* Recurses to MAX_CHECK_DEPTH. */
static bool is_valid(struct schema_reader *r, const json_t *schema, json_t *value, int depth)
{
    const json_t *only = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
    bool is_listed = !json_is_array(list) || depth == IS_LISTED;
    size_t i;
    if (depth > MAX_CHECK_DEPTH)
        schema_fail(r, "a value of enum or const is checked through more than %d schemas", MAX_CHECK_DEPTH);
    if (r->status != TUTTI_OK || !schema_spend(r, 1) || json_is_false(schema))
        return false;
    if (json_is_true(schema))
        return true;
    if (!json_is_object(schema))
        return schema_fail(r, "a schema must be an object, true or false") >= 0;
    if (depth > 0 && !schema_check_keywords(r, schema))
        return false;
    if (!(schema_named_types(r, schema) & schema_type_of(value)) || (only && !schema_equal(r, only, value)))
        return false;
    for (i = 0; i < json_array_size(list) && !is_listed && r->status == TUTTI_OK; i++)
        is_listed = schema_equal(r, json_array_get(list, i), value);
    if (!is_listed || !is_valid_combined(r, schema, value, depth))
        return false;
    return json_is_number(value)   ? is_valid_number(r, schema, value)
           : json_is_string(value) ? is_valid_string(r, schema, value)
           : json_is_array(value)  ? is_valid_array(r, schema, value, depth)
                                   : !json_is_object(value) || is_valid_object(r, schema, value, depth);
}

bool schema_allows(struct schema_reader *r, const json_t *schema, json_t *value)
{
    return is_valid(r, schema, value, FIRST_DEPTH) && r->status == TUTTI_OK;
}

bool schema_allows_listed(struct schema_reader *r, const json_t *schema, json_t *value)
{
    return is_valid(r, schema, value, IS_LISTED) && r->status == TUTTI_OK;
}
