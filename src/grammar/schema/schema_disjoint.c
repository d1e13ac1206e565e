/* Decides whether two schemas can be valid for the same value, so that alternatives of oneOf that cannot are
 * those of anyOf; and whether one schema implies another, which then adds nothing. */
#include "grammar/schema/schema_reader.h"

#include <string.h>

enum { MAX_LOOK_DEPTH = 8, STEPS_OF_LOOK = 16 }; /* a look-up checks some keywords, by hash */

/* context: NULL, or a flat schema by which the values are valid too. */
static bool are_disjoint(struct schema_reader *r, const json_t *context, const json_t *a, const json_t *b,
                         int depth);

/* The schema after following references; NULL: error, or too many. */
static const json_t *follow_refs(struct schema_reader *r, const json_t *schema)
{
    for (int i = 0; i < MAX_COMBINED_DEPTH && schema; i++) {
        const json_t *ref = json_object_get(schema, "$ref");
        if (!ref)
            return schema;
        schema = schema_resolve(r, ref);
        if (!schema)
            return NULL;
    }
    return NULL;
}

/* The possible types of a value: a superset. */
static unsigned possible_types(struct schema_reader *r, const json_t *schema, int depth)
{
    schema = follow_refs(r, schema);
    if (json_is_false(schema))
        return 0;
    if (!json_is_object(schema) || depth > MAX_LOOK_DEPTH || !schema_spend(r, STEPS_OF_LOOK))
        return TYPE_ANY;
    unsigned types = schema_named_types(r, schema), some;
    const json_t *list = json_object_get(schema, "enum"), *value = json_object_get(schema, "const"), *entry;
    size_t i;
    if (value)
        types &= schema_type_of(value);
    if (list && schema_spend(r, json_array_size(list))) {
        some = 0;
        json_array_foreach(list, i, entry) some |= schema_type_of(entry);
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

static bool is_required(struct schema_reader *r, const json_t *schema, const char *name)
{
    size_t i;
    const json_t *entry, *list = json_object_get(schema, "required");
    if (!schema_spend(r, 1 + json_array_size(list)))
        return false;
    json_array_foreach(list, i, entry)
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

static bool have_disjoint_values(struct schema_reader *r, const json_t *a, const json_t *b)
{
    json_t *x = only_values(a), *y = only_values(b), *shared = x && y ? schema_shared_values(r, x, y) : NULL;
    bool is_disjoint = shared && json_array_size(shared) == 0;
    json_decref(x);
    json_decref(y);
    json_decref(shared);
    return is_disjoint;
}

/* Whether a property that a value of a has is forbidden by b, or restricted to other values. */
static bool are_disjoint_by(struct schema_reader *r, const json_t *context, const json_t *a, const json_t *b,
                            const char *key, int depth)
{
    const json_t *x = schema_of_property(r, a, key), *y = schema_of_property(r, b, key);
    return json_is_false(y) || (x && y && (is_required(r, b, key) || is_required(r, context, key)) &&
                                are_disjoint(r, NULL, x, y, depth + 1));
}

/* The same for any property that a or the context requires. */
static bool have_disjoint_properties(struct schema_reader *r, const json_t *context, const json_t *a,
                                     const json_t *b, int depth)
{
    const json_t *sources[] = { a, context }, *name;
    size_t i;
    for (int k = 0; k < 2; k++) {
        json_array_foreach(json_object_get(sources[k], "required"), i, name)
        {
            const char *key = json_string_value(name);
            if (!schema_spend(r, STEPS_OF_LOOK))
                return false;
            if (key && are_disjoint_by(r, context, a, b, key, depth))
                return true;
        }
    }
    return false;
}

static bool are_disjoint(struct schema_reader *r, const json_t *context, const json_t *a, const json_t *b,
                         int depth)
{
    a = follow_refs(r, a);
    b = follow_refs(r, b);
    if (!a || !b || depth > MAX_LOOK_DEPTH || !schema_spend(r, STEPS_OF_LOOK))
        return false;
    unsigned shared = possible_types(r, a, 0) & possible_types(r, b, 0) &
                      (context ? possible_types(r, context, 0) : TYPE_ANY);
    if (shared == 0)
        return true;
    if (!json_is_object(a) || !json_is_object(b))
        return false;
    if (have_disjoint_values(r, a, b))
        return true;
    if (shared == TYPE_OBJECT)
        return have_disjoint_properties(r, context, a, b, depth) ||
               have_disjoint_properties(r, context, b, a, depth);
    if ((shared & ~(unsigned)(TYPE_NUMBER | TYPE_INTEGER)) != 0)
        return false;
    struct schema_bounds x = schema_bounds(r, a), y = schema_bounds(r, b);
    return r->status == TUTTI_OK && (x.high < y.low || y.high < x.low);
}

bool schema_are_disjoint(struct schema_reader *r, const json_t *context, const json_t *a, const json_t *b)
{
    return are_disjoint(r, context, a, b, 0);
}

bool schema_is_disjoint_list(struct schema_reader *r, const json_t *context, const json_t *list)
{
    size_t n = json_array_size(list);
    if (n > MAX_SCHEMA_WAYS)
        schema_fail(r, "oneOf has %zu alternatives, at most %d are allowed", n, MAX_SCHEMA_WAYS);
    for (size_t i = 0; i < n && r->status == TUTTI_OK; i++)
        for (size_t k = 0; k < i && r->status == TUTTI_OK; k++)
            if (!are_disjoint(r, context, json_array_get(list, k), json_array_get(list, i), 0))
                return false;
    return r->status == TUTTI_OK;
}

bool schema_is_disjoint_by(struct schema_reader *r, const json_t *list, const char *name)
{
    size_t n = json_array_size(list);
    if (n > MAX_SCHEMA_WAYS)
        return false;
    for (size_t i = 0; i < n && r->status == TUTTI_OK; i++) {
        for (size_t k = 0; k < i && r->status == TUTTI_OK; k++) {
            const json_t *a = follow_refs(r, json_array_get(list, k)),
                         *b = follow_refs(r, json_array_get(list, i));
            const json_t *x = schema_of_property(r, a, name), *y = schema_of_property(r, b, name);
            if (!x || !y || !are_disjoint(r, NULL, x, y, 0))
                return false;
        }
    }
    return r->status == TUTTI_OK;
}

/* ---- implication ---- */

/* Whether all names of b are required by a. */
static bool requires_all(struct schema_reader *r, const json_t *a, const json_t *names)
{
    size_t i;
    const json_t *name;
    json_array_foreach(names, i, name)
    {
        if (json_is_string(name) && !is_required(r, a, json_string_value(name)))
            return false;
    }
    return json_is_array(names);
}

/* Whether b says of its properties only that they are missing, and a forbids them. */
static bool forbids_all(struct schema_reader *r, const json_t *a, json_t *properties)
{
    const char *name;
    json_t *value;
    json_object_foreach(properties, name, value)
    {
        if (!schema_spend(r, STEPS_OF_LOOK) || !json_is_false(value) ||
            !json_is_false(schema_of_property(r, a, name)))
            return false;
    }
    return json_is_object(properties);
}

bool schema_implies(struct schema_reader *r, const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)b, key, value)
    {
        if (!schema_spend(r, 1))
            return false;
        bool is_implied = !strcmp(key, "type")       ? !(schema_named_types(r, a) & ~schema_named_types(r, b))
                          : !strcmp(key, "required") ? requires_all(r, a, value)
                          : !strcmp(key, "properties") ? forbids_all(r, a, value)
                                                       : !schema_keyword(key);
        if (!is_implied)
            return false;
    }
    return r->status == TUTTI_OK;
}
