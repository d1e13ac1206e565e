/* Merges keywords that apply together into flat schemas: allOf by intersection, anyOf, oneOf, not, if
 * and dependent... by multiplying the alternatives. */
#include "grammar/schema/schema_reader.h"

#include "base/json/json_pointer.h"

#include <stdlib.h>
#include <string.h>

/* ---- references ---- */

enum { STEPS_OF_REFERENCE = 16 };

const json_t *schema_resolve(struct schema_reader *r, const json_t *ref)
{
    const char *text = json_string_value(ref);
    if (!text || *text != '#') {
        schema_fail(r, "$ref must be a string that begins with #: other documents are not read");
        return NULL;
    }
    if (!schema_spend(r, STEPS_OF_REFERENCE + strlen(text)))
        return NULL;
    const json_t *target = json_pointer(r->root, text + 1);
    if (!target)
        schema_fail(r, "$ref \"%.100s\" leads nowhere", text);
    return target;
}

/* ---- types ---- */

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

/* Approximate memory of an object's member, an object and a list's entry in jansson. */
enum { BYTES_OF_MEMBER = 128, BYTES_OF_OBJECT = 256, BYTES_OF_ENTRY = 16, STEPS_OF_MEMBER = 16 };

/* Takes over the reference to value. False: out of memory. */
static bool merge_put(struct schema_reader *r, json_t *to, const char *key, json_t *value)
{
    if (!schema_take_bytes(r, BYTES_OF_MEMBER) || !schema_spend(r, STEPS_OF_MEMBER)) {
        json_decref(value);
        return false;
    }
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

static json_t *borrow(const json_t *value)
{
    return json_incref((json_t *)(uintptr_t)value);
}

/* The list of {"allOf": [...]} without other keywords; NULL: not such a schema. */
static json_t *parts_of(const json_t *schema)
{
    json_t *list = json_object_get(schema, "allOf");
    return json_object_size(schema) == 1 && json_is_array(list) ? list : NULL;
}

static bool add_parts(struct schema_reader *r, json_t *list, const json_t *schema)
{
    json_t *parts = parts_of(schema);
    size_t n = parts ? json_array_size(parts) : 1;
    if (!schema_spend(r, n) || !schema_take_bytes(r, n * BYTES_OF_ENTRY))
        return false;
    int failed = parts ? json_array_extend(list, parts) : json_array_append_new(list, borrow(schema));
    if (failed)
        schema_no_memory(r);
    return !failed;
}

/* {"allOf": [a, b]}; or just one of them if the other allows everything. Nested lists are joined,
 * so merging does not nest. may_grow: a may be changed if it is an earlier result without other
 * references. NULL: error. */
static json_t *both(struct schema_reader *r, json_t *a, const json_t *b, bool may_grow)
{
    if (!a || json_is_true(a))
        return b ? borrow(b) : json_true();
    if (!b || json_is_true(b) || a == b)
        return json_incref(a);
    if (json_is_false(a) || json_is_false(b))
        return json_false();
    if (schema_equal(r, a, b))
        return json_incref(a);
    if (may_grow && parts_of(a) && a->refcount == 1 && parts_of(a)->refcount == 1)
        return add_parts(r, parts_of(a), b) ? json_incref(a) : NULL;
    json_t *list = json_array(), *out = list ? json_pack("{s:o}", "allOf", list) : NULL;
    if (!out)
        schema_no_memory(r);
    if (out && schema_take_bytes(r, BYTES_OF_OBJECT) && add_parts(r, list, a) && add_parts(r, list, b))
        return out;
    json_decref(out);
    return NULL;
}

static bool put_both(struct schema_reader *r, json_t *to, const char *key, json_t *own, const json_t *other)
{
    const json_t *before = json_object_get(to, key);
    json_t *value = both(r, own, other, own == before);
    if (value && value == before) { /* changed in place, or unchanged */
        json_decref(value);
        return true;
    }
    return value && merge_put(r, to, key, value);
}

/* What a schema says of a property that it does not list, apart from its patternProperties: NULL:
 * nothing. */
static const json_t *schema_of_others(struct schema_reader *r, const json_t *schema, const char *name)
{
    const json_t *rest = json_object_get(schema, "additionalProperties");
    return rest && !schema_matches_any(r, json_object_get(schema, "patternProperties"), name) ? rest : NULL;
}

const json_t *schema_of_property(struct schema_reader *r, const json_t *schema, const char *name)
{
    const json_t *own = json_object_get(json_object_get(schema, "properties"), name);
    return own ? own : schema_of_others(r, schema, name);
}

/* The same patterns, or none on a side that describes the others too. */
static bool check_patterns(struct schema_reader *r, const json_t *to, const json_t *from)
{
    const json_t *a = json_object_get(to, "patternProperties"),
                 *b = json_object_get(from, "patternProperties");
    const char *pattern;
    json_t *value;
    bool is_same = json_object_size(a) == json_object_size(b);
    if (b && !json_is_object(b))
        return schema_fail(r, "patternProperties must be an object") >= 0;
    json_object_foreach((json_t *)(uintptr_t)b, pattern, value)
        is_same = is_same && json_object_get(a, pattern);
    if (is_same || ((!b || !json_object_get(to, "additionalProperties")) &&
                    (!a || !json_object_get(from, "additionalProperties"))))
        return true;
    return schema_fail(r, "patternProperties cannot be merged with additionalProperties of another schema") >=
           0;
}

static bool merge_patterns(struct schema_reader *r, json_t *to, const json_t *from)
{
    json_t *own = json_object_get(to, "patternProperties"), *value;
    const json_t *more = json_object_get(from, "patternProperties");
    const char *pattern;
    if (more && !own) {
        own = json_object();
        if (!merge_put(r, to, "patternProperties", own))
            return false;
    } else if (more && (!(own = json_copy(own)) || !merge_put(r, to, "patternProperties", own))) {
        return false;
    }
    json_object_foreach((json_t *)(uintptr_t)more, pattern, value)
    {
        if (!put_both(r, own, pattern, json_object_get(own, pattern), value))
            return false;
    }
    return true;
}

/* properties with additionalProperties: what one side does not list is described by its
 * additionalProperties. */
static bool merge_members(struct schema_reader *r, json_t *to, const json_t *from)
{
    json_t *own = json_object_get(to, "properties"), *rest = json_object_get(to, "additionalProperties");
    const json_t *more = json_object_get(from, "properties"),
                 *other = json_object_get(from, "additionalProperties");
    const char *name;
    json_t *value;
    void *next;
    if (!check_patterns(r, to, from))
        return false;
    if (more && !own) {
        own = json_object();
        if (!merge_put(r, to, "properties", own))
            return false;
    }
    if (other) {
        json_object_foreach_safe(own, next, name, value)
        {
            if (!json_object_get(more, name) &&
                !put_both(r, own, name, value, schema_of_others(r, from, name)))
                return false;
        }
    }
    json_object_foreach((json_t *)(uintptr_t)more, name, value)
    {
        json_t *known = json_object_get(own, name);
        const json_t *others = known ? NULL : schema_of_others(r, to, name);
        if (r->status != TUTTI_OK || !put_both(r, own, name, known ? known : borrow(others), value)) {
            json_decref(known ? NULL : (json_t *)(uintptr_t)others);
            return false;
        }
        json_decref(known ? NULL : (json_t *)(uintptr_t)others);
    }
    if (!merge_patterns(r, to, from))
        return false;
    return !other || put_both(r, to, "additionalProperties", rest, other);
}

const json_t *schema_prefix_items(const json_t *schema)
{
    const json_t *items = json_object_get(schema, "items"), *prefix = json_object_get(schema, "prefixItems");
    return prefix || !json_is_array(items) ? prefix : items;
}

const json_t *schema_further_items(const json_t *schema)
{
    const json_t *items = json_object_get(schema, "items");
    return json_is_array(items) ? json_object_get(schema, "additionalItems") : items;
}

static bool merge_items(struct schema_reader *r, json_t *to, const json_t *from)
{
    json_t *a = json_object_get(to, "prefixItems"), *rest_a = json_object_get(to, "items");
    const json_t *b = schema_prefix_items(from), *rest_b = schema_further_items(from);
    size_t n_a = json_array_size(a), n_b = json_array_size(b), n = n_a > n_b ? n_a : n_b;
    json_t *prefix = n > 0 ? json_array() : NULL;
    if (!schema_spend(r, n) || !schema_take_bytes(r, n * BYTES_OF_ENTRY)) {
        json_decref(prefix);
        return false;
    }
    for (size_t i = 0; prefix && i < n; i++) {
        json_t *item = both(r, i < n_a ? json_array_get(a, i) : rest_a,
                            i < n_b ? json_array_get(b, i) : rest_b, false);
        if (!item || json_array_append_new(prefix, item) != 0) {
            json_decref(prefix);
            return false;
        }
    }
    if (n > 0 && !merge_put(r, to, "prefixItems", prefix))
        return false;
    return !rest_b || put_both(r, to, "items", rest_a, rest_b);
}

/* contains with minContains, which is 1 where it is missing, and maxContains. */
static bool merge_contains(struct schema_reader *r, json_t *to, const json_t *from)
{
    json_t *own = json_object_get(to, "contains"), *other = json_object_get(from, "contains");
    if (!other)
        return true;
    if (own && !schema_equal(r, own, other))
        return schema_fail(r, "two different values of contains cannot be put together") >= 0;
    int32_t min = schema_count(r, from, "minContains", 1),
            max = schema_count(r, from, "maxContains", LIMIT_GRAMMAR_REPEAT);
    int32_t own_min = own ? schema_count(r, to, "minContains", 1) : 0,
            own_max = own ? schema_count(r, to, "maxContains", LIMIT_GRAMMAR_REPEAT) : LIMIT_GRAMMAR_REPEAT;
    min = own_min > min ? own_min : min;
    max = own_max < max ? own_max : max;
    return merge_put(r, to, "contains", json_incref(other)) &&
           merge_put(r, to, "minContains", json_integer(min)) &&
           (max == LIMIT_GRAMMAR_REPEAT || merge_put(r, to, "maxContains", json_integer(max)));
}

static bool merge_required(struct schema_reader *r, json_t *to, const json_t *more)
{
    json_t *own = json_object_get(to, "required");
    size_t n = json_array_size(more);
    if (!json_is_array(more)) {
        schema_fail(r, "properties must be an object, and required a list");
        return false;
    }
    if (!schema_spend(r, n) || !schema_take_bytes(r, n * BYTES_OF_ENTRY))
        return false;
    if (!own)
        return merge_put(r, to, "required", json_copy((json_t *)(uintptr_t)more));
    return json_array_extend(own, (json_t *)(uintptr_t)more) == 0 || schema_no_memory(r) >= 0;
}

/* enum, and const as a list of one. */
static bool merge_values(struct schema_reader *r, json_t *to, const char *key, json_t *value)
{
    json_t *own = json_object_get(to, "enum"), *list = value;
    if (!strcmp(key, "const")) {
        list = json_pack("[O]", value);
    } else if (!json_is_array(value)) {
        schema_fail(r, "enum must be a list");
        return false;
    } else {
        json_incref(list);
    }
    json_t *shared = own && list ? schema_shared_values(r, own, list) : json_incref(list);
    json_decref(list);
    return shared && merge_put(r, to, "enum", shared);
}

/* Keeps the larger of lower bounds and the smaller of upper bounds. */
static bool merge_bound(struct schema_reader *r, json_t *to, const char *key, json_t *value, bool is_lower)
{
    const json_t *own = json_object_get(to, key);
    if (!json_is_number(value)) {
        schema_fail(r, "%s must be a number", key);
        return false;
    }
    double a = json_number_value(own), b = json_number_value(value);
    return !own || (is_lower ? b > a : b < a) ? merge_put(r, to, key, json_incref(value)) : true;
}

static bool merge_list(struct schema_reader *r, json_t *to, const char *key, json_t *value)
{
    json_t *own = json_object_get(to, key), *list = json_array(), *entry;
    size_t i, k;
    bool ok = list;
    for (k = 0; k < 2 && ok; k++) {
        json_t *side = k ? value : own, *single = NULL;
        if (side && !json_is_array(side))
            side = single = json_pack("[O]", side);
        json_array_foreach(side, i, entry)
        {
            bool is_known = false;
            for (size_t m = 0; m < json_array_size(list); m++)
                is_known = is_known || schema_equal(r, json_array_get(list, m), entry);
            ok = ok && r->status == TUTTI_OK && (is_known || json_array_append(list, entry) == 0) &&
                 schema_take_bytes(r, BYTES_OF_ENTRY);
        }
        json_decref(single);
    }
    if (ok)
        return merge_put(r, to, key, list);
    json_decref(list);
    return false;
}

/* The least common multiple of integers; other values must be equal. */
static bool merge_multiple(struct schema_reader *r, json_t *to, const char *key, json_t *value)
{
    json_t *own = json_object_get(to, key);
    if (!own || schema_equal(r, own, value))
        return merge_put(r, to, key, json_incref(value));
    json_int_t a = json_integer_value(own), b = json_integer_value(value), x = a, y = b, product;
    while (y > 0) {
        json_int_t rest = x % y;
        x = y;
        y = rest;
    }
    if (a <= 0 || b <= 0 || __builtin_mul_overflow(a / x, b, &product))
        return schema_fail(r, "two different values of %s cannot be merged", key) >= 0;
    return merge_put(r, to, key, json_integer(product));
}

static bool merge_key(struct schema_reader *r, json_t *to, const json_t *from, const char *key, json_t *value)
{
    const struct schema_keyword *keyword = schema_keyword(key);
    json_t *own = json_object_get(to, key);
    bool is_flat = keyword && (keyword->use == KEYWORD_RULES || json_is_array(value));
    switch (is_flat ? keyword->merge : MERGE_NEVER) {
    case MERGE_TYPES:
        return merge_put(r, to, key, types_as_list(schema_named_types(r, to) & schema_named_types(r, from)));
    case MERGE_VALUES:
        return merge_values(r, to, key, value);
    case MERGE_REQUIRED:
        return merge_required(r, to, value);
    case MERGE_LARGER:
        return merge_bound(r, to, key, value, true);
    case MERGE_SMALLER:
        return merge_bound(r, to, key, value, false);
    case MERGE_EITHER:
        return json_is_true(own) || merge_put(r, to, key, json_incref(value));
    case MERGE_SCHEMAS:
        return put_both(r, to, key, own, value);
    case MERGE_LIST:
        return merge_list(r, to, key, value);
    case MERGE_MULTIPLE:
        return merge_multiple(r, to, key, value);
    case MERGE_MEMBERS:
    case MERGE_CONTAINS:
    case MERGE_ITEMS: /* as a whole, before */
    case MERGE_NEVER: /* annotations and combining keywords */
        break;
    }
    return true;
}

/* Merges a flat schema, or the flat part of one, into another that merge_into() has built from
 * {}. False: error. */
static bool merge_into(struct schema_reader *r, json_t *to, const json_t *from)
{
    const char *key;
    json_t *value;
    const json_t *properties = json_object_get(from, "properties"), *prefix = schema_prefix_items(from);
    if (properties && !json_is_object(properties))
        schema_fail(r, "properties must be an object, and required a list");
    if (prefix && !json_is_array(prefix))
        schema_fail(r, "prefixItems must be a list");
    if (r->status != TUTTI_OK || !merge_members(r, to, from) || !merge_items(r, to, from) ||
        !merge_contains(r, to, from))
        return false;
    json_object_foreach((json_t *)(uintptr_t)from, key, value)
    {
        if (!schema_spend(r, STEPS_OF_MEMBER) || !merge_key(r, to, from, key, value))
            return false;
    }
    return true;
}

/* A copy that merge_into() may extend. NULL: error. */
static json_t *copy_merged(struct schema_reader *r, const json_t *schema)
{
    static const char *const GROWING[] = { "properties", "required" };
    json_t *copy = json_copy((json_t *)(uintptr_t)schema);
    size_t n = json_object_size(copy);
    for (size_t i = 0; i < 2 && copy; i++) {
        json_t *own = json_object_get(copy, GROWING[i]);
        n += json_object_size(own) + json_array_size(own);
        if (own && json_object_set_new(copy, GROWING[i], json_copy(own)) != 0) {
            json_decref(copy);
            copy = NULL;
        }
    }
    if (!copy)
        schema_no_memory(r);
    if (schema_spend(r, STEPS_OF_MEMBER * n) && schema_take_bytes(r, BYTES_OF_OBJECT + n * BYTES_OF_MEMBER))
        return copy;
    json_decref(copy);
    return NULL;
}

/* ---- schemas that hold at the same time ---- */

/* Schemas that apply together, through $ref and allOf. Each is listed once, however often it is
 * referenced. */
struct conjunction {
    const struct conjunction *outer; /* NULL: none. This is an alternative of its entry number outer_entry */
    int32_t outer_entry;
    struct conjunct {
        const json_t *schema;
        int32_t parent; /* the entry that refers to it; -1: none */
    } * entries;
    size_t n, room;
    struct key_map known; /* by schema_key() */
    json_t *merged;       /* the merged flat parts */
    bool is_impossible;
    struct alternatives {
        const json_t *value;
        const char *name; /* of the keyword; or, with is_dependency, of the property */
        int32_t owner;    /* an entry */
        bool is_dependency;
    } * lists;
    size_t n_lists, lists_room;
};

/* Whether the schema is among the parents of this entry (a cycle). */
static bool is_open(const struct conjunction *c, int32_t entry, const json_t *schema)
{
    for (; c; entry = c->outer_entry, c = c->outer)
        for (; entry >= 0; entry = c->entries[entry].parent)
            if (c->entries[entry].schema == schema)
                return true;
    return false;
}

static bool merge_is_known(const struct conjunction *c, const json_t *schema)
{
    for (; c; c = c->outer)
        if (key_map_find(&c->known, schema_key(schema)) >= 0)
            return true;
    return false;
}

static bool add_alternatives(struct schema_reader *r, struct conjunction *c, struct alternatives list)
{
    if (!schema_grow(r, &c->lists, &c->lists_room, c->n_lists + 1, sizeof *c->lists))
        return false;
    c->lists[c->n_lists++] = list;
    return true;
}

/* Adds what an entry says by anyOf, oneOf, not, if and dependent... */
static bool gather_alternatives(struct schema_reader *r, struct conjunction *c, const json_t *schema,
                                int32_t entry)
{
    static const char *const ALTERNATIVES[] = { "anyOf", "oneOf", "not" };
    static const char *const DEPENDENCIES[] = { "dependentRequired", "dependentSchemas", "dependencies" };
    const char *name;
    json_t *value;
    for (size_t i = 0; i < 3; i++) {
        const json_t *list = json_object_get(schema, ALTERNATIVES[i]);
        if (list && !add_alternatives(r, c, (struct alternatives){ list, ALTERNATIVES[i], entry, false }))
            return false;
    }
    if (json_object_get(schema, "if") &&
        (json_object_get(schema, "then") || json_object_get(schema, "else")) &&
        !add_alternatives(r, c, (struct alternatives){ schema, "if", entry, false }))
        return false;
    for (size_t i = 0; i < 3; i++) {
        json_t *members = json_object_get(schema, DEPENDENCIES[i]);
        if (members && !json_is_object(members))
            return schema_fail(r, "%s must be an object", DEPENDENCIES[i]) >= 0;
        json_object_foreach(members, name, value)
        {
            if (!add_alternatives(r, c, (struct alternatives){ value, name, entry, true }))
                return false;
        }
    }
    return true;
}

/* Adds a schema to the conjunction. False: error. */
static bool gather(struct schema_reader *r, struct conjunction *c, const json_t *schema, int32_t parent,
                   int depth)
{
    if (json_is_true(schema))
        return true;
    if (json_is_false(schema)) {
        c->is_impossible = true;
        return true;
    }
    if (!json_is_object(schema))
        return schema_fail(r, "a schema must be an object, true or false") >= 0;
    if (depth > MAX_COMBINED_DEPTH || is_open(c, parent, schema))
        return schema_fail(r, "allOf, anyOf and $ref nest deeper than %d levels, or refer to themselves",
                           MAX_COMBINED_DEPTH) >= 0;
    if (!schema_spend(r, 1) || merge_is_known(c, schema))
        return r->status == TUTTI_OK;
    int32_t entry = (int32_t)c->n;
    if (!schema_check_keywords(r, schema) ||
        !schema_grow(r, &c->entries, &c->room, c->n + 1, sizeof *c->entries))
        return false;
    c->entries[c->n++] = (struct conjunct){ schema, parent };
    if (!key_map_add(&c->known, schema_key(schema), entry))
        return schema_no_memory(r) >= 0;
    if (!merge_into(r, c->merged, schema))
        return false;
    const json_t *ref = json_object_get(schema, "$ref"), *all = json_object_get(schema, "allOf"), *part;
    const json_t *target = ref ? schema_resolve(r, ref) : NULL;
    size_t i;
    if (ref && (!target || !gather(r, c, target, entry, depth + 1)))
        return false;
    if (all && !json_is_array(all))
        return schema_fail(r, "allOf must be a list") >= 0;
    json_array_foreach(all, i, part)
    {
        if (!gather(r, c, part, entry, depth + 1))
            return false;
    }
    return gather_alternatives(r, c, schema, entry);
}

static json_t *flatten(struct schema_reader *r, const json_t *schema, const struct conjunction *outer,
                       int32_t outer_entry, int depth);

/* Whether no value can be valid by the flat schema, as far as that is seen at once. */
static bool is_impossible(struct schema_reader *r, const json_t *flat)
{
    const json_t *types = json_object_get(flat, "type"), *values = json_object_get(flat, "enum"), *name;
    const json_t *required = json_object_get(flat, "required"), *low = json_object_get(flat, "minimum"),
                 *high = json_object_get(flat, "maximum");
    size_t i;
    if ((json_is_array(types) && json_array_size(types) == 0) ||
        (json_is_array(values) && json_array_size(values) == 0))
        return true;
    if (low && high && json_number_value(low) > json_number_value(high))
        return types && !(schema_named_types(r, flat) & ~(unsigned)(TYPE_NUMBER | TYPE_INTEGER));
    json_array_foreach(required, i, name)
    {
        const json_t *own = json_is_string(name) && schema_spend(r, 1)
                                ? json_object_get(json_object_get(flat, "properties"),
                                                  json_string_value(name))
                                : NULL;
        if (json_is_false(own) && types && schema_named_types(r, flat) == TYPE_OBJECT)
            return true;
    }
    return false;
}

json_t *schema_multiply(struct schema_reader *r, json_t *a, const json_t *b)
{
    json_t *out = json_array(), *x, *y;
    size_t i, k;
    if (!out)
        schema_no_memory(r);
    json_array_foreach(a, i, x)
    {
        bool is_implied = false;
        json_array_foreach(b, k, y) is_implied = is_implied || schema_implies(r, x, y);
        if (is_implied && r->status == TUTTI_OK && !is_impossible(r, x) && json_array_append(out, x) != 0)
            schema_no_memory(r);
        json_array_foreach(b, k, y)
        {
            if (is_implied)
                break;
            json_t *one = r->status == TUTTI_OK ? copy_merged(r, x) : NULL;
            if (one && merge_into(r, one, y) && !is_impossible(r, one)) {
                if (json_array_size(out) == MAX_SCHEMA_WAYS)
                    schema_fail(r, "anyOf, oneOf, not, if and allOf together make more than %d alternatives",
                                MAX_SCHEMA_WAYS);
                else if (json_array_append(out, one) != 0)
                    schema_no_memory(r);
            }
            json_decref(one);
        }
    }
    json_decref(a);
    if (r->status == TUTTI_OK)
        return out;
    json_decref(out);
    return NULL;
}

/* Adds the entries of more, which is taken over. */
static bool add_ways(struct schema_reader *r, json_t *out, json_t *more)
{
    if (more && json_array_extend(out, more) != 0)
        schema_no_memory(r);
    if (json_array_size(out) > MAX_SCHEMA_WAYS)
        schema_fail(r, "more than %d alternatives", MAX_SCHEMA_WAYS);
    json_decref(more);
    return r->status == TUTTI_OK;
}

/* Objects with a property that a way lists and a closed schema does not know: a new list. */
static json_t *with_unknown_names(struct schema_reader *r, const json_t *ways, const json_t *closed)
{
    json_t *out = json_array(), *way, *value;
    const char *name;
    size_t i;
    if (!out)
        schema_no_memory(r);
    for (i = 0; i < MAX_COMBINED_DEPTH && json_object_get(closed, "$ref"); i++)
        closed = schema_resolve(r, json_object_get(closed, "$ref"));
    json_array_foreach(ways, i, way)
    {
        json_object_foreach(json_object_get(way, "properties"), name, value)
        {
            bool is_unknown = schema_spend(r, STEPS_OF_MEMBER) && !json_is_false(value) &&
                              json_is_false(schema_of_property(r, closed, name));
            json_t *with = is_unknown ? json_pack("{s:s, s:[s]}", "type", "object", "required", name) : NULL;
            if (is_unknown &&
                (!schema_take_bytes(r, BYTES_OF_OBJECT) || json_array_append_new(out, with) != 0))
                schema_no_memory(r);
        }
    }
    return out;
}

/* The ways without the values that are valid by another alternative. Takes over ways; NULL: error. */
static json_t *exclude(struct schema_reader *r, json_t *ways, const json_t *other, int depth)
{
    json_t *without = schema_negate(r, other, depth + 1), *before = json_incref(ways);
    ways = schema_multiply(r, ways, without);
    json_decref(without);
    if (ways && json_array_size(ways) == 0 && json_array_size(before) > 0) {
        without = with_unknown_names(r, before, other);
        json_decref(ways);
        ways = schema_multiply(r, before, without);
        json_decref(without);
    } else {
        json_decref(before);
    }
    return ways;
}

/* The alternatives of anyOf or oneOf. Those of oneOf exclude each other. */
static bool flatten_list(struct schema_reader *r, json_t *out, const struct conjunction *c,
                         const struct alternatives *list, int depth)
{
    size_t i, k;
    const json_t *entry, *other;
    if (!json_is_array(list->value) || json_array_size(list->value) == 0)
        return schema_fail(r, "%s must be a list of at least one schema", list->name) >= 0;
    /* A property that tells the alternatives apart, as OpenAPI names it: readers need it, even where an
     * alternative has a default for it. */
    const json_t *described = json_object_get(c->entries[list->owner].schema, "discriminator");
    const char *tag = json_string_value(json_object_get(described, "propertyName"));
    bool excludes = !strcmp(list->name, "oneOf") && !schema_is_disjoint_list(r, c->merged, list->value);
    bool is_tagged = excludes && tag && schema_is_disjoint_by(r, list->value, tag);
    excludes = excludes && !is_tagged;
    json_array_foreach(list->value, i, entry)
    {
        json_t *ways = r->status == TUTTI_OK ? flatten(r, entry, c, list->owner, depth + 1) : NULL;
        json_array_foreach(list->value, k, other)
        {
            if (excludes && i != k && ways && !schema_are_disjoint(r, c->merged, entry, other))
                ways = exclude(r, ways, other, depth);
        }
        if (ways && is_tagged) {
            json_t *with_tag = json_pack("[{s:[s]}]", "required", tag);
            ways = schema_multiply(r, ways, with_tag);
            json_decref(with_tag);
        }
        if (!ways || !add_ways(r, out, ways))
            return false;
    }
    return r->status == TUTTI_OK;
}

/* if with then, or not if with else. */
static bool flatten_if(struct schema_reader *r, json_t *out, const struct conjunction *c,
                       const struct alternatives *list, int depth)
{
    const json_t *condition = json_object_get(list->value, "if");
    for (int i = 0; i < 2; i++) {
        const json_t *branch = json_object_get(list->value, i ? "else" : "then");
        json_t *ways = i ? schema_negate(r, condition, depth + 1)
                         : flatten(r, condition, c, list->owner, depth + 1);
        json_t *more = branch && r->status == TUTTI_OK ? flatten(r, branch, c, list->owner, depth + 1) : NULL;
        if (branch)
            ways = schema_multiply(r, ways, more);
        json_decref(more);
        if (!ways || !add_ways(r, out, ways))
            return false;
    }
    return true;
}

/* Without the property; or with it and what it demands. */
static bool flatten_dependency(struct schema_reader *r, json_t *out, const struct conjunction *c,
                               const struct alternatives *list, int depth)
{
    json_t *without = json_pack("{s:{s:b}}", "properties", list->name, 0);
    json_t *ways = json_pack("[{s:[s]}]", "required", list->name), *more;
    if (!without || !ways || json_array_append_new(out, without) != 0)
        return schema_no_memory(r) >= 0;
    if (json_is_array(list->value))
        more = json_pack("[{s:O}]", "required", list->value);
    else
        more = flatten(r, list->value, c, list->owner, depth + 1);
    ways = schema_multiply(r, ways, more);
    json_decref(more);
    return ways && schema_take_bytes(r, 4 * BYTES_OF_OBJECT) && add_ways(r, out, ways);
}

/* The alternatives of an entry of the conjunction, flat: a new list; NULL: error. */
static json_t *flatten_alternatives(struct schema_reader *r, const struct conjunction *c,
                                    const struct alternatives *list, int depth)
{
    if (!list->is_dependency && !strcmp(list->name, "not"))
        return schema_negate(r, list->value, depth + 1);
    json_t *out = json_array();
    bool ok = !out                        ? schema_no_memory(r) >= 0
              : list->is_dependency       ? flatten_dependency(r, out, c, list, depth)
              : !strcmp(list->name, "if") ? flatten_if(r, out, c, list, depth)
                                          : flatten_list(r, out, c, list, depth);
    if (ok)
        return out;
    json_decref(out);
    return NULL;
}

/* A new list; NULL: error. Recurses from alternatives to those within them, at most
 * MAX_COMBINED_DEPTH deep. */
static json_t *flatten(struct schema_reader *r, const json_t *schema, const struct conjunction *outer,
                       int32_t outer_entry, int depth)
{
    struct conjunction c = { .outer = outer, .outer_entry = outer_entry, .merged = json_object() };
    json_t *ways = c.merged ? json_array() : NULL;
    if (!ways)
        schema_no_memory(r);
    else if (schema_take_bytes(r, 2 * BYTES_OF_OBJECT) && gather(r, &c, schema, -1, depth) &&
             !c.is_impossible && json_array_append(ways, c.merged) != 0)
        schema_no_memory(r);
    for (size_t i = 0; i < c.n_lists && r->status == TUTTI_OK && !c.is_impossible; i++) {
        json_t *more = flatten_alternatives(r, &c, &c.lists[i], depth);
        ways = schema_multiply(r, ways, more);
        json_decref(more);
    }
    free(c.entries);
    free(c.lists);
    key_map_clear(&c.known);
    json_decref(c.merged);
    if (r->status == TUTTI_OK)
        return ways;
    json_decref(ways);
    return NULL;
}

json_t *schema_flatten_within(struct schema_reader *r, const json_t *schema, int depth)
{
    return flatten(r, schema, NULL, -1, depth);
}

/* Keeps a new schema for as long as the reader. */
static const json_t *keep_made(struct schema_reader *r, json_t *made)
{
    bool ok = made && json_array_append_new(r->made, made) == 0;
    if (!ok)
        schema_no_memory(r);
    return ok && schema_take_bytes(r, 2 * BYTES_OF_OBJECT) ? made : NULL;
}

const json_t *schema_both(struct schema_reader *r, const json_t *a, const json_t *b)
{
    return !a ? b : !b || a == b ? a : keep_made(r, json_pack("{s:[O,O]}", "allOf", a, b));
}

const json_t *schema_inverse(struct schema_reader *r, const json_t *schema)
{
    return keep_made(r, json_pack("{s:O}", "not", schema));
}

json_t *schema_flatten(struct schema_reader *r, const json_t *schema)
{
    json_t *ways = flatten(r, schema, NULL, -1, 0);
    if (ways && json_array_append_new(r->made, ways) != 0) {
        schema_no_memory(r);
        return NULL;
    }
    return ways;
}
