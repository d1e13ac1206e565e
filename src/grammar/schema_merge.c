/* Keywords that hold at the same time, put into one schema each: allOf by intersection, anyOf and oneOf by multiplication. */
#include "grammar/schema_reader.h"

#include "base/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- references ---- */

/* "a~1b%20c" up to the next slash: the key that it names. */
static bool read_pointer_part(const char **at, char *out, size_t room)
{
    size_t n = 0;
    const char *c = *at;
    for (; *c && *c != '/'; c++) {
        char byte = *c;
        if (byte == '%' && c[1] && c[2]) {
            char digits[3] = { c[1], c[2], '\0' }, *end;
            byte = (char)strtol(digits, &end, 16);
            if (*end)
                return false;
            c += 2;
        }
        if (byte == '~' && (c[1] == '0' || c[1] == '1'))
            byte = *++c == '0' ? '~' : '/';
        if (n + 1 == room)
            return false;
        out[n++] = byte;
    }
    out[n] = '\0';
    *at = c;
    return n > 0 || c[-1] == '/';
}

static const json_t *follow(const json_t *from, const char *pointer)
{
    char key[512];
    while (from && *pointer == '/') {
        pointer++;
        if (!read_pointer_part(&pointer, key, sizeof key))
            return NULL;
        if (json_is_array(from)) {
            char *end;
            unsigned long index = strtoul(key, &end, 10);
            from = *key && !*end ? json_array_get(from, index) : NULL;
        } else {
            from = json_object_get(from, key);
        }
    }
    return *pointer ? NULL : from;
}

const json_t *schema_resolve(struct schema_reader *r, const json_t *ref)
{
    const char *text = json_string_value(ref);
    if (!text || *text != '#') {
        schema_fail(r, "$ref must be a string that begins with #: other documents are not read");
        return NULL;
    }
    const json_t *target = follow(r->root, text + 1);
    if (!target)
        schema_fail(r, "$ref \"%.100s\" leads nowhere", text);
    return target;
}

/* ---- types ---- */

static unsigned type_of(const json_t *value)
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

static unsigned type_by_name(struct schema_reader *r, const json_t *name)
{
    static const struct {
        const char *name;
        unsigned types;
    } NAMES[] = { { "null", TYPE_NULL },       { "boolean", TYPE_BOOLEAN },
                  { "integer", TYPE_INTEGER }, { "number", TYPE_NUMBER | TYPE_INTEGER },
                  { "string", TYPE_STRING },   { "array", TYPE_ARRAY },
                  { "object", TYPE_OBJECT } };
    for (size_t i = 0; json_is_string(name) && i < sizeof NAMES / sizeof *NAMES; i++)
        if (!strcmp(json_string_value(name), NAMES[i].name))
            return NAMES[i].types;
    schema_fail(r,
                "type must be null, boolean, integer, number, string, array or object, or a list of these");
    return 0;
}

unsigned schema_named_types(struct schema_reader *r, const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *entry;
    unsigned types = 0;
    size_t i;
    if (!type)
        return TYPE_ANY;
    if (!json_is_array(type))
        return type_by_name(r, type);
    json_array_foreach(type, i, entry) types |= type_by_name(r, entry);
    return types;
}

/* ---- two flat schemas as one ---- */

/* Takes the reference that is given. False: out of memory. */
static bool put(struct schema_reader *r, json_t *to, const char *key, json_t *value)
{
    if (value && json_object_set_new(to, key, value) == 0)
        return true;
    schema_no_memory(r);
    return false;
}

static json_t *types_as_list(unsigned types)
{
    static const char *const NAMES[] = {
        "null", "boolean", "integer", "number", "string", "array", "object"
    };
    json_t *list = json_array();
    for (int i = 0; i < 7; i++)
        if (types & (1u << i) && !(i == 2 && types & TYPE_NUMBER))
            json_array_append_new(list, json_string(NAMES[i]));
    return list;
}

/* {"allOf": [a, b]}; a or b alone where the other one allows everything. */
static json_t *both(const json_t *a, const json_t *b)
{
    json_t *x = (json_t *)(uintptr_t)a, *y = (json_t *)(uintptr_t)b;
    if (!a || json_is_true(a))
        return y ? json_incref(y) : json_true();
    if (!b || json_is_true(b) || json_equal(x, y))
        return json_incref(x);
    if (json_is_false(a) || json_is_false(b))
        return json_false();
    return json_pack("{s:[O,O]}", "allOf", x, y);
}

static bool merge_types(struct schema_reader *r, json_t *to, const json_t *from)
{
    return put(r, to, "type", types_as_list(schema_named_types(r, to) & schema_named_types(r, from)));
}

/* The values of both lists. */
static json_t *shared_values(const json_t *a, const json_t *b)
{
    json_t *out = json_array();
    size_t i, k;
    json_t *x, *y;
    json_array_foreach(a, i, x)
    {
        json_array_foreach(b, k, y)
        {
            bool is_equal = json_equal(x, y) || (json_is_number(x) && json_is_number(y) &&
                                                 json_number_value(x) == json_number_value(y));
            if (is_equal) {
                json_array_append(out, x);
                break;
            }
        }
    }
    return out;
}

static bool merge_required(struct schema_reader *r, json_t *to, const json_t *from)
{
    json_t *all = json_copy(json_object_get(to, "required"));
    const json_t *more = json_object_get(from, "required");
    size_t i;
    json_t *name;
    json_array_foreach(more, i, name) json_array_append(all, name);
    return put(r, to, "required", all);
}

/* What an object schema says of a property: NULL: everything is allowed. */
static const json_t *says_of(const json_t *schema, const char *name)
{
    const json_t *own = json_object_get(json_object_get(schema, "properties"), name);
    return own ? own : json_object_get(schema, "additionalProperties");
}

static bool merge_properties(struct schema_reader *r, json_t *to, const json_t *from)
{
    json_t *merged = json_object();
    const json_t *sides[2] = { json_object_get(to, "properties"), json_object_get(from, "properties") };
    const char *name;
    json_t *value;
    for (int side = 0; merged && side < 2; side++) {
        json_object_foreach((json_t *)(uintptr_t)sides[side], name, value)
        {
            if (!json_object_get(merged, name) &&
                !put(r, merged, name, both(says_of(to, name), says_of(from, name)))) {
                json_decref(merged);
                return false;
            }
        }
    }
    const json_t *a = json_object_get(to, "additionalProperties"),
                 *b = json_object_get(from, "additionalProperties");
    if ((a || b) && !put(r, to, "additionalProperties", both(a, b))) {
        json_decref(merged);
        return false;
    }
    return json_object_size(merged) > 0 || sides[0] || sides[1] ? put(r, to, "properties", merged)
                                                                : (json_decref(merged), true);
}

static bool merge_items(struct schema_reader *r, json_t *to, const json_t *from)
{
    const json_t *a = json_object_get(to, "prefixItems"), *b = json_object_get(from, "prefixItems");
    const json_t *rest_a = json_object_get(to, "items"), *rest_b = json_object_get(from, "items");
    size_t n_a = json_array_size(a), n_b = json_array_size(b), n = n_a > n_b ? n_a : n_b;
    json_t *prefix = json_array();
    for (size_t i = 0; prefix && i < n; i++)
        json_array_append_new(
            prefix, both(i < n_a ? json_array_get(a, i) : rest_a, i < n_b ? json_array_get(b, i) : rest_b));
    json_t *rest = rest_a || rest_b ? both(rest_a, rest_b) : NULL;
    bool ok = n == 0 ? (json_decref(prefix), true) : put(r, to, "prefixItems", prefix);
    return ok && (!rest || put(r, to, "items", rest));
}

/* What bounds from below grows, what bounds from above shrinks. */
static bool merge_bound(struct schema_reader *r, json_t *to, const char *key, json_t *value)
{
    static const char *const LOWER[] = { "minimum", "exclusiveMinimum", "minLength", "minItems" };
    const json_t *own = json_object_get(to, key);
    bool is_lower = false;
    for (size_t i = 0; i < 4; i++)
        is_lower |= !strcmp(key, LOWER[i]);
    if (!json_is_number(own) || !json_is_number(value)) {
        schema_fail(r, "%s must be a number", key);
        return false;
    }
    double a = json_number_value(own), b = json_number_value(value);
    return (is_lower ? b > a : b < a) ? put(r, to, key, json_incref(value)) : true;
}

static bool is_bound(const char *key)
{
    static const char *const BOUNDS[] = { "minimum",   "maximum",   "exclusiveMinimum", "exclusiveMaximum",
                                          "minLength", "maxLength", "minItems",         "maxItems" };
    for (size_t i = 0; i < sizeof BOUNDS / sizeof *BOUNDS; i++)
        if (!strcmp(key, BOUNDS[i]))
            return true;
    return false;
}

/* A schema with a list in place of const. */
static json_t *with_enum(struct schema_reader *r, const json_t *schema)
{
    json_t *copy = json_copy((json_t *)(uintptr_t)schema), *value = json_object_get(copy, "const");
    if (!copy)
        schema_no_memory(r);
    if (!value)
        return copy;
    json_t *one = json_pack("[O]", value);
    const json_t *list = json_object_get(copy, "enum");
    if (list) {
        json_t *shared = shared_values(list, one);
        json_decref(one);
        one = shared;
    }
    json_object_del(copy, "const");
    put(r, copy, "enum", one);
    return copy;
}

static bool merge_key(struct schema_reader *r, json_t *to, const json_t *from, const char *key, json_t *value)
{
    json_t *own = json_object_get(to, key);
    if (!strcmp(key, "properties") || !strcmp(key, "additionalProperties") || !strcmp(key, "items") ||
        !strcmp(key, "prefixItems"))
        return true; /* as a whole, before */
    if (!own)
        return put(r, to, key, json_incref(value));
    if (!strcmp(key, "type"))
        return merge_types(r, to, from);
    if (!strcmp(key, "enum"))
        return put(r, to, key, shared_values(own, value));
    if (!strcmp(key, "required"))
        return merge_required(r, to, from);
    if (is_bound(key))
        return merge_bound(r, to, key, value);
    if ((!strcmp(key, "pattern") || !strcmp(key, "format")) && !json_equal(own, value)) {
        schema_fail(r, "two different values of %s cannot be put together", key);
        return false;
    }
    return true;
}

/* A new schema; NULL: a fault. */
static json_t *merge(struct schema_reader *r, const json_t *a, const json_t *b)
{
    if (json_is_false(a) || json_is_false(b))
        return json_false();
    if (json_is_true(a))
        return json_incref((json_t *)(uintptr_t)b);
    if (json_is_true(b))
        return json_incref((json_t *)(uintptr_t)a);
    json_t *to = with_enum(r, a), *from = with_enum(r, b), *value;
    const char *key;
    bool ok = to && from && merge_properties(r, to, from) && merge_items(r, to, from);
    if (ok) {
        json_object_foreach(from, key, value)
        {
            ok = ok && merge_key(r, to, from, key, value);
        }
    }
    json_decref(from);
    if (ok && r->status == TUTTI_OK)
        return to;
    json_decref(to);
    return NULL;
}

/* ---- flat schemas ---- */

static json_t *flatten(struct schema_reader *r, const json_t *schema, int depth);

/* Every one of a with every one of b. Both are taken. */
static json_t *multiply(struct schema_reader *r, json_t *a, json_t *b)
{
    json_t *out = json_array(), *x, *y;
    size_t i, k;
    if (json_array_size(a) * json_array_size(b) > MAX_SCHEMA_WAYS)
        schema_fail(r, "anyOf and allOf together make more than %d alternatives", MAX_SCHEMA_WAYS);
    json_array_foreach(a, i, x)
    {
        json_array_foreach(b, k, y)
        {
            json_t *one = r->status == TUTTI_OK ? merge(r, x, y) : NULL;
            if (json_is_false(one))
                continue;
            if (one && json_array_append_new(out, one) != 0)
                schema_no_memory(r);
        }
    }
    json_decref(a);
    json_decref(b);
    return out;
}

static json_t *flatten_list(struct schema_reader *r, const json_t *list, const char *name, int depth)
{
    json_t *out = json_array();
    size_t i;
    const json_t *entry;
    if (!json_is_array(list) || json_array_size(list) == 0)
        schema_fail(r, "%s must be a list of at least one schema", name);
    if (!strcmp(name, "oneOf"))
        for (i = 0; i < json_array_size(list) && i < MAX_SCHEMA_WAYS; i++)
            for (size_t k = 0; k < i; k++)
                if (!schema_are_disjoint(r, json_array_get(list, k), json_array_get(list, i), 0))
                    schema_fail(r, "the alternatives %zu and %zu of oneOf could hold together", k, i);
    json_array_foreach(list, i, entry)
    {
        json_t *ways = r->status == TUTTI_OK ? flatten(r, entry, depth) : NULL;
        json_array_extend(out, ways);
        json_decref(ways);
        if (json_array_size(out) > MAX_SCHEMA_WAYS)
            schema_fail(r, "more than %d alternatives", MAX_SCHEMA_WAYS);
    }
    return out;
}

static json_t *flatten_object(struct schema_reader *r, const json_t *schema, int depth)
{
    const json_t *ref = json_object_get(schema, "$ref"), *all = json_object_get(schema, "allOf"), *part;
    static const char *const ALTERNATIVES[] = { "anyOf", "oneOf" };
    json_t *own = json_copy((json_t *)(uintptr_t)schema);
    json_object_del(own, "$ref");
    json_object_del(own, "allOf");
    json_object_del(own, "anyOf");
    json_object_del(own, "oneOf");
    json_t *ways = json_pack("[o]", own);
    size_t i;
    if (ref) {
        const json_t *target = schema_resolve(r, ref);
        if (target)
            ways = multiply(r, ways, flatten(r, target, depth));
    }
    if (all && !json_is_array(all))
        schema_fail(r, "allOf must be a list");
    json_array_foreach(all, i, part)
    {
        if (r->status == TUTTI_OK)
            ways = multiply(r, ways, flatten(r, part, depth));
    }
    for (i = 0; i < 2; i++) {
        const json_t *list = json_object_get(schema, ALTERNATIVES[i]);
        if (list && r->status == TUTTI_OK)
            ways = multiply(r, ways, flatten_list(r, list, ALTERNATIVES[i], depth));
    }
    return ways;
}

static bool has_refused_keyword(struct schema_reader *r, const json_t *schema)
{
    static const char *const REFUSED[] = { "not",
                                           "if",
                                           "patternProperties",
                                           "multipleOf",
                                           "contains",
                                           "propertyNames",
                                           "dependentSchemas",
                                           "dependentRequired",
                                           "unevaluatedProperties",
                                           "unevaluatedItems",
                                           "uniqueItems",
                                           "minProperties",
                                           "maxProperties" };
    for (size_t i = 0; i < sizeof REFUSED / sizeof *REFUSED; i++) {
        const json_t *value = json_object_get(schema, REFUSED[i]);
        if (value && !json_is_false(value)) {
            schema_fail(r, "the keyword \"%s\" is not supported", REFUSED[i]);
            return true;
        }
    }
    return false;
}

static json_t *flatten(struct schema_reader *r, const json_t *schema, int depth)
{
    if (depth > 32) {
        schema_fail(r, "allOf, anyOf and $ref nest deeper than 32 levels, or refer to themselves");
        return json_array();
    }
    if (json_is_false(schema))
        return json_array();
    if (json_is_true(schema))
        return json_pack("[b]", 1);
    if (!json_is_object(schema)) {
        schema_fail(r, "a schema must be an object, true or false");
        return json_array();
    }
    return has_refused_keyword(r, schema) ? json_array() : flatten_object(r, schema, depth + 1);
}

json_t *schema_flatten(struct schema_reader *r, const json_t *schema)
{
    json_t *ways = flatten(r, schema, 0);
    if (!ways || json_array_append_new(r->made, ways) != 0) {
        schema_no_memory(r);
        return NULL;
    }
    return r->status == TUTTI_OK ? ways : NULL;
}

/* ---- may both hold? ---- */

/* What a schema is about, through references; NULL: a fault or too far. */
static const json_t *behind_refs(struct schema_reader *r, const json_t *schema)
{
    for (int i = 0; i < 32; i++) {
        const json_t *ref = json_object_get(schema, "$ref");
        if (!ref)
            return schema;
        schema = schema_resolve(r, ref);
        if (!schema)
            return NULL;
    }
    return NULL;
}

/* The types that a value must be of; more than are possible, never less. */
static unsigned possible_types(struct schema_reader *r, const json_t *schema, int depth)
{
    schema = behind_refs(r, schema);
    if (json_is_false(schema))
        return 0;
    if (!json_is_object(schema) || depth > 8)
        return TYPE_ANY;
    unsigned types = schema_named_types(r, schema), some;
    const json_t *list = json_object_get(schema, "enum"), *value = json_object_get(schema, "const"), *entry;
    size_t i;
    if (value)
        types &= type_of(value);
    if (list) {
        some = 0;
        json_array_foreach(list, i, entry) some |= type_of(entry);
        types &= some;
    }
    json_array_foreach(json_object_get(schema, "allOf"), i, entry)
        types &= possible_types(r, entry, depth + 1);
    for (int k = 0; k < 2; k++) {
        const json_t *ways = json_object_get(schema, k ? "oneOf" : "anyOf");
        some = ways ? 0 : TYPE_ANY;
        json_array_foreach(ways, i, entry) some |= possible_types(r, entry, depth + 1);
        types &= some;
    }
    return types;
}

static bool is_required(const json_t *schema, const char *name)
{
    size_t i;
    const json_t *entry;
    json_array_foreach(json_object_get(schema, "required"), i, entry)
    {
        if (json_is_string(entry) && !strcmp(json_string_value(entry), name))
            return true;
    }
    return false;
}

/* A list of the only values, or NULL. For json_decref(). */
static json_t *only_values(const json_t *schema)
{
    json_t *value = json_object_get(schema, "const"), *list = json_object_get(schema, "enum");
    return value ? json_pack("[O]", value) : json_is_array(list) ? json_incref(list) : NULL;
}

static bool have_disjoint_values(const json_t *a, const json_t *b)
{
    json_t *x = only_values(a), *y = only_values(b), *shared = x && y ? shared_values(x, y) : NULL;
    bool is_disjoint = shared && json_array_size(shared) == 0;
    json_decref(x);
    json_decref(y);
    json_decref(shared);
    return is_disjoint;
}

/* A property that a demands: b forbids it, or wants another value there. */
static bool have_disjoint_properties(struct schema_reader *r, const json_t *a, const json_t *b, int depth)
{
    const json_t *names = json_object_get(a, "required"), *name;
    size_t i;
    json_array_foreach(names, i, name)
    {
        const char *key = json_string_value(name);
        const json_t *x = key ? says_of(a, key) : NULL, *y = key ? says_of(b, key) : NULL;
        if (key && json_is_false(y))
            return true;
        if (key && x && y && is_required(b, key) && schema_are_disjoint(r, x, y, depth + 1))
            return true;
    }
    return false;
}

static double bound(const json_t *schema, const char *name, const char *exclusive, double fallback)
{
    const json_t *a = json_object_get(schema, name), *b = json_object_get(schema, exclusive);
    double x = json_is_number(a) ? json_number_value(a) : fallback;
    double y = json_is_number(b) ? json_number_value(b) : fallback;
    return fallback < 0 ? fmax(x, y) : fmin(x, y);
}

bool schema_are_disjoint(struct schema_reader *r, const json_t *a, const json_t *b, int depth)
{
    a = behind_refs(r, a);
    b = behind_refs(r, b);
    if (!a || !b || depth > 8)
        return false;
    unsigned shared = possible_types(r, a, 0) & possible_types(r, b, 0);
    if (shared == 0)
        return true;
    if (!json_is_object(a) || !json_is_object(b))
        return false;
    if (have_disjoint_values(a, b))
        return true;
    if (shared == TYPE_OBJECT)
        return have_disjoint_properties(r, a, b, depth) || have_disjoint_properties(r, b, a, depth);
    if ((shared & ~(unsigned)(TYPE_NUMBER | TYPE_INTEGER)) != 0)
        return false;
    double low_a = bound(a, "minimum", "exclusiveMinimum", -INFINITY);
    double low_b = bound(b, "minimum", "exclusiveMinimum", -INFINITY);
    double high_a = bound(a, "maximum", "exclusiveMaximum", INFINITY);
    double high_b = bound(b, "maximum", "exclusiveMaximum", INFINITY);
    return high_a < low_b || high_b < low_a;
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

static size_t count_chars(const json_t *string)
{
    const char *c = json_string_value(string);
    size_t n = 0, left = json_string_length(string);
    for (; left > 0; n++) {
        int n_bytes = utf8_char(c, left);
        n_bytes = n_bytes > 0 ? n_bytes : 1;
        c += n_bytes;
        left -= (size_t)n_bytes;
    }
    return n;
}

static bool allows_count(struct schema_reader *r, const json_t *schema, const char *min, const char *max,
                         size_t n)
{
    int32_t low = schema_count(r, schema, min, 0), high = schema_count(r, schema, max, INT32_MAX);
    return n >= (size_t)low && n <= (size_t)high;
}

/* Keywords that would have to be run through the value. */
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
    unsigned type = type_of(value);
    if (!(schema_named_types(r, schema) & type))
        return false;
    if (only && !json_equal(only, value))
        return false;
    if (json_is_number(value))
        return allows_number(schema, json_number_value(value));
    if (json_is_string(value))
        return !has_deep_keyword(r, schema, STRINGS) &&
               allows_count(r, schema, "minLength", "maxLength", count_chars(value));
    if (json_is_array(value))
        return !has_deep_keyword(r, schema, ARRAYS) &&
               allows_count(r, schema, "minItems", "maxItems", json_array_size(value));
    return !json_is_object(value) || !has_deep_keyword(r, schema, OBJECTS);
}
