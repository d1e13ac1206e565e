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

json_t *schema_shared_values(struct schema_reader *r, const json_t *a, const json_t *b)
{
    size_t n = json_array_size(b), n_slots = 16, i;
    const json_t *x;
    json_t *out = json_array();
    while (n_slots < 2 * n)
        n_slots *= 2;
    struct slot {
        uint64_t hash;
        const json_t *value; /* NULL: free */
    } *slots = calloc(n_slots, sizeof *slots);
    json_array_foreach(b, i, x)
    {
        uint64_t hash = slots ? hash_value(r, x) : 0;
        size_t k = hash & (n_slots - 1);
        while (slots && slots[k].value && schema_spend(r, 1) &&
               !(slots[k].hash == hash && schema_equal(r, slots[k].value, x)))
            k = (k + 1) & (n_slots - 1);
        if (slots)
            slots[k] = (struct slot){ hash, x };
    }
    json_array_foreach(a, i, x)
    {
        uint64_t hash = slots && r->status == TUTTI_OK ? hash_value(r, x) : 0;
        bool is_shared = false;
        for (size_t k = hash & (n_slots - 1); slots && slots[k].value && !is_shared;
             k = (k + 1) & (n_slots - 1)) {
            if (!schema_spend(r, 1))
                break;
            is_shared = slots[k].hash == hash && schema_equal(r, slots[k].value, x);
        }
        if (is_shared)
            json_array_append(out, (json_t *)(uintptr_t)x);
    }
    if (!slots || !out)
        schema_no_memory(r);
    free(slots);
    if (r->status == TUTTI_OK && schema_take_bytes(r, 16 * json_array_size(out)))
        return out;
    json_decref(out);
    return NULL;
}

/* ---- values that are listed ---- */

static bool allows_number(const json_t *schema, double x)
{
    const json_t *min = json_object_get(schema, "minimum"), *max = json_object_get(schema, "maximum");
    const json_t *above = json_object_get(schema, "exclusiveMinimum"),
                 *below = json_object_get(schema, "exclusiveMaximum");
    return !(json_is_number(min) && x < json_number_value(min)) &&
           !(json_is_number(max) && x > json_number_value(max)) &&
           !(json_is_number(above) && x <= json_number_value(above)) &&
           !(json_is_number(below) && x >= json_number_value(below));
}

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
    if (json_is_number(value))
        return allows_number(schema, json_number_value(value));
    if (json_is_string(value))
        return !has_deep_keyword(r, schema, STRINGS) &&
               allows_count(r, schema, "minLength", "maxLength",
                            utf8_count(json_string_value(value), json_string_length(value)));
    if (json_is_array(value))
        return !has_deep_keyword(r, schema, ARRAYS) &&
               allows_count(r, schema, "minItems", "maxItems", json_array_size(value));
    return !json_is_object(value) || !has_deep_keyword(r, schema, OBJECTS);
}
