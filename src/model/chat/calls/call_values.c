#include "model/chat/calls/call_values.h"

#include "base/buf.h"
#include "base/json/json_wide.h"
#include "template/template.h"

#include <string.h>

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

/* The schema that "$ref" names: "#/$defs/NAME" or "#/definitions/NAME". */
static const json_t *follow_reference(const json_t *root, const json_t *schema)
{
    enum { MAX_REFERENCES = 8 };
    static const char *const PLACES[] = { "$defs", "definitions" };
    for (int i = 0; i < MAX_REFERENCES; i++) {
        const char *path = json_string_value(json_object_get(schema, "$ref"));
        const json_t *target = NULL;
        for (size_t k = 0; path && k < sizeof PLACES / sizeof *PLACES; k++) {
            size_t n = strlen(PLACES[k]);
            if (strncmp(path, "#/", 2) == 0 && strncmp(path + 2, PLACES[k], n) == 0 && path[2 + n] == '/')
                target = json_object_get(json_object_get(root, PLACES[k]), path + 3 + n);
        }
        if (!target)
            break;
        schema = target;
    }
    return schema;
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

static const char *const ALTERNATIVES[] = { "anyOf", "oneOf", "allOf" };
enum { N_ALTERNATIVES = sizeof ALTERNATIVES / sizeof *ALTERNATIVES, ALL_OF = 2 };

/* The alternatives of a schema; NULL: it has none of this kind. Of "allOf" a single one counts. */
static const json_t *alternatives(const json_t *schema, size_t kind)
{
    const json_t *list = json_object_get(schema, ALTERNATIVES[kind]);
    return json_is_array(list) && (kind != ALL_OF || json_array_size(list) == 1) ? list : NULL;
}

unsigned call_schema_types(const json_t *root, const json_t *schema)
{
    const json_t *entry;
    unsigned types = 0;
    size_t i;
    schema = follow_reference(root, schema);
    for (size_t k = 0; k < N_ALTERNATIVES && !json_object_get(schema, "type"); k++) {
        const json_t *list = alternatives(schema, k);
        json_array_foreach(list, i, entry) types |= own_types(follow_reference(root, entry));
    }
    return types ? types : own_types(schema);
}

unsigned call_value_types(const json_t *parameters, const char *name)
{
    return call_schema_types(parameters, json_object_get(json_object_get(parameters, "properties"), name));
}

static const json_t *own_below(const json_t *schema, const char *name)
{
    const json_t *below = name ? json_object_get(json_object_get(schema, "properties"), name)
                               : json_object_get(schema, "items");
    if (name && !below)
        below = json_object_get(schema, "additionalProperties");
    return json_is_object(below) ? below : NULL;
}

const json_t *call_schema_below(const json_t *root, const json_t *schema, const char *name)
{
    schema = follow_reference(root, schema);
    const json_t *below = own_below(schema, name), *entry;
    size_t i;
    for (size_t k = 0; k < N_ALTERNATIVES && !below; k++) {
        const json_t *list = alternatives(schema, k);
        json_array_foreach(list, i, entry) below = below ? below
                                                         : own_below(follow_reference(root, entry), name);
    }
    return below;
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

/* "007": no JSON and no Python, but the reader of literals takes it. */
static bool is_zero_led(const char *text, size_t n_bytes)
{
    size_t n = 0;
    while (n < n_bytes && text[n] >= '0' && text[n] <= '9')
        n++;
    return n > 1 && n == n_bytes && *text == '0';
}

json_t *call_value_parse(const char *text, size_t n_bytes, bool may_be_text)
{
    if (may_be_text && is_zero_led(text, n_bytes))
        return json_stringn(text, n_bytes);
    json_t *value = json_loadb(text, n_bytes, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    value = value ? value : parse_literal(text, n_bytes);
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
