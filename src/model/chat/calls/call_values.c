#include "model/chat/calls/call_values.h"

#include "base/buf.h"
#include "base/json/json_pointer.h"
#include "base/json/json_wide.h"
#include "template/template.h"

#include <string.h>

/* ---- schemas ---- */

/* The schemas that describe one value: the first one, what "$ref" names, and the entries of "allOf", "anyOf" and
 * "oneOf", in these as well. Those beyond MAX_PARTS are left out. */
enum { MAX_PARTS = 64 };

struct schema_parts {
    const json_t *root; /* for "$ref" */
    struct schema_part {
        const json_t *schema;
        bool is_choice; /* an alternative of "anyOf" or "oneOf" */
    } list[MAX_PARTS];
    size_t n, at;
};

static void add_part(struct schema_parts *p, const json_t *schema, bool is_choice)
{
    if (p->n < MAX_PARTS)
        p->list[p->n++] = (struct schema_part){ schema, is_choice };
}

static void begin_parts(struct schema_parts *p, const json_t *root, const json_t *schema)
{
    p->root = root;
    p->n = p->at = 0;
    add_part(p, schema, false);
}

/* Adds the parts that a part consists of. False: none. */
static bool divide_part(struct schema_parts *p, struct schema_part part)
{
    static const char *const LISTS[] = { "allOf", "anyOf", "oneOf" };
    const char *path = json_string_value(json_object_get(part.schema, "$ref"));
    const json_t *target = path && *path == '#' ? json_pointer(p->root, path + 1) : NULL;
    bool is_divided = target;
    if (target)
        add_part(p, target, part.is_choice);
    for (size_t k = 0; k < sizeof LISTS / sizeof *LISTS; k++) {
        const json_t *list = json_object_get(part.schema, LISTS[k]);
        size_t n = json_array_size(list);
        for (size_t i = 0; i < n && p->n < MAX_PARTS; i++)
            add_part(p, json_array_get(list, i), k > 0);
        is_divided = is_divided || n > 0;
    }
    return is_divided;
}

/* NULL: there are no more. */
static const json_t *next_part(struct schema_parts *p)
{
    if (p->at == p->n)
        return NULL;
    struct schema_part part = p->list[p->at++];
    divide_part(p, part);
    return part.schema;
}

/* ---- types ---- */

static unsigned type_of_word(const json_t *word)
{
    const char *text = json_string_value(word);
    if (text && strcmp(text, "string") == 0)
        return CALL_TYPE_TEXT;
    return text && strcmp(text, "null") == 0 ? CALL_TYPE_NULL : CALL_TYPE_OTHER;
}

static unsigned type_of_value(const json_t *value)
{
    return json_is_string(value) ? CALL_TYPE_TEXT : json_is_null(value) ? CALL_TYPE_NULL : CALL_TYPE_OTHER;
}

/* What a schema says without its alternatives. */
static unsigned own_types(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *list = json_object_get(schema, "enum"), *entry;
    const json_t *constant = json_object_get(schema, "const");
    unsigned types = 0;
    size_t i;
    if (json_is_string(type))
        return type_of_word(type);
    if (json_is_array(type)) {
        json_array_foreach(type, i, entry) types |= type_of_word(entry);
    } else if (json_is_array(list)) {
        json_array_foreach(list, i, entry) types |= type_of_value(entry);
    } else if (constant) {
        types = type_of_value(constant);
    }
    return types ? types : CALL_TYPE_OTHER | CALL_TYPE_ANY;
}

unsigned call_schema_types(const json_t *root, const json_t *schema)
{
    struct schema_parts p;
    unsigned types = 0;
    begin_parts(&p, root, schema);
    while (p.at < p.n) {
        struct schema_part part = p.list[p.at++];
        unsigned own = own_types(part.schema);
        if (!(own & CALL_TYPE_ANY) || (!divide_part(&p, part) && part.is_choice))
            types |= own;
    }
    return types ? types : CALL_TYPE_OTHER | CALL_TYPE_ANY;
}

unsigned call_value_types(const json_t *parameters, const char *name)
{
    struct schema_parts p;
    const json_t *part;
    unsigned types = 0;
    begin_parts(&p, parameters, parameters);
    while ((part = next_part(&p))) {
        const json_t *own = json_object_get(json_object_get(part, "properties"), name);
        unsigned more = own ? call_schema_types(parameters, own) : CALL_TYPE_ANY;
        types |= more & CALL_TYPE_ANY ? 0 : more;
    }
    return types ? types : CALL_TYPE_OTHER | CALL_TYPE_ANY;
}

bool call_value_is_listed(const json_t *parameters, const char *name)
{
    struct schema_parts p;
    const json_t *part;
    bool is_listed = false;
    begin_parts(&p, parameters, parameters);
    while (!is_listed && (part = next_part(&p)))
        is_listed = json_object_get(json_object_get(part, "properties"), name);
    return is_listed;
}

const json_t *call_schema_below(const json_t *root, const json_t *schema, const char *name)
{
    struct schema_parts p;
    const json_t *part, *below = NULL, *further = NULL;
    begin_parts(&p, root, schema);
    while (!below && (part = next_part(&p))) {
        below = name ? json_object_get(json_object_get(part, "properties"), name)
                     : json_object_get(part, "items");
        further = name && !further ? json_object_get(part, "additionalProperties") : further;
    }
    below = below ? below : further;
    return json_is_object(below) ? below : NULL;
}

/* ---- tools ---- */

static const json_t *function_at(const json_t *tools, size_t i)
{
    const json_t *tool = json_array_get(tools, i), *function = json_object_get(tool, "function");
    return function ? function : tool;
}

const json_t *call_tool_find(const json_t *tools, const char *name, size_t n_bytes)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *own = json_object_get(function_at(tools, i), "name");
        if (json_string_length(own) == n_bytes && n_bytes > 0 &&
            memcmp(json_string_value(own), name, n_bytes) == 0)
            return function_at(tools, i);
    }
    return NULL;
}

bool call_tool_may_be(const json_t *tools, const char *text, size_t n_bytes)
{
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *own = json_object_get(function_at(tools, i), "name");
        if (json_string_length(own) >= n_bytes && memcmp(json_string_value(own), text, n_bytes) == 0)
            return true;
    }
    return false;
}

/* ---- values ---- */

/* A value written in Python: True, None, ['a']. NULL: it is not. */
static json_t *parse_literal(const char *text, size_t n_bytes)
{
    struct template_output out = { 0 };
    struct buf named = { 0 };
    json_t *object = NULL, *value = NULL;
    if (buf_add_string(&named, "x=") && buf_add(&named, text, n_bytes) &&
        template_read_arguments(named.bytes, named.n_bytes, &out, NULL) == TUTTI_OK)
        object = json_loadb(out.text, out.n_bytes, JSON_ALLOW_NUL, NULL);
    if (json_object_size(object) == 1)
        value = json_incref(json_object_get(object, "x"));
    json_decref(object);
    buf_clear(&named);
    template_output_clear(&out);
    return value;
}

/* What chat templates print of JSON's words: models write them as well. */
static bool is_python_word(const char *text, size_t n_bytes)
{
    static const char *const WORDS[] = { "True", "False", "None" };
    bool is_word = false;
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
        is_word = is_word || (strlen(WORDS[i]) == n_bytes && memcmp(WORDS[i], text, n_bytes) == 0);
    return is_word;
}

json_t *call_value_parse(const char *text, size_t n_bytes, bool may_be_text)
{
    json_t *value = json_loadb(text, n_bytes, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    if (!value && (!may_be_text || is_python_word(text, n_bytes)))
        value = parse_literal(text, n_bytes);
    return value ? value : json_stringn(text, n_bytes);
}

bool call_value_is_wide(const char *text, size_t n_bytes)
{
    json_error_t why;
    json_t *value = json_loadb(text, n_bytes, JSON_ALLOW_NUL | JSON_DECODE_ANY, &why), *wide = NULL;
    if (!value)
        wide = json_load_wide(text, n_bytes, JSON_ALLOW_NUL | JSON_DECODE_ANY, &why);
    bool is_wide = wide;
    json_decref(value);
    json_decref(wide);
    return is_wide;
}
