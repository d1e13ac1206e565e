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
    json_array_foreach(b, i, x) ok = ok && key_map_add(&values, hash_value(r, x), (int32_t)i);
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

static bool allows_count(struct schema_reader *r, const json_t *schema, const char *min, const char *max,
                         size_t n)
{
    int32_t low = schema_count(r, schema, min, 0), high = schema_count(r, schema, max, INT32_MAX);
    return n >= (size_t)low && n <= (size_t)high;
}

/* Sets the error for keywords that would check the content of the value. */
static bool has_deep_keyword(struct schema_reader *r, const json_t *schema, const char *const *keywords)
{
    for (; *keywords; keywords++) {
        if (json_object_get(schema, *keywords)) {
            schema_fail(r, "enum or const together with %s is not supported", *keywords);
            return true;
        }
    }
    return false;
}

bool schema_allows(struct schema_reader *r, const json_t *schema, json_t *value)
{
    static const char *const STRINGS[] = { "pattern", "format", NULL };
    static const char *const ARRAYS[] = { "items", "prefixItems", NULL };
    static const char *const OBJECTS[] = { "properties", "required", "additionalProperties", NULL };
    json_t *only = json_object_get(schema, "const");
    unsigned type = schema_type_of(value);
    if (!(schema_named_types(r, schema) & type))
        return false;
    if (only && !schema_equal(r, only, value))
        return false;
    if (json_is_number(value)) {
        struct schema_bounds bounds = schema_bounds(r, schema);
        return r->status == TUTTI_OK && schema_is_within(&bounds, json_number_value(value));
    }
    if (json_is_string(value))
        return !has_deep_keyword(r, schema, STRINGS) &&
               allows_count(r, schema, "minLength", "maxLength",
                            utf8_count(json_string_value(value), json_string_length(value)));
    if (json_is_array(value))
        return !has_deep_keyword(r, schema, ARRAYS) &&
               allows_count(r, schema, "minItems", "maxItems", json_array_size(value));
    return !json_is_object(value) || !has_deep_keyword(r, schema, OBJECTS);
}
