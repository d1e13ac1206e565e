#include "model/chat/calls/call_values.h"

#include "base/buf.h"
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
    return types ? types : CALL_TYPE_OTHER;
}

unsigned call_value_types(const json_t *parameters, const char *name)
{
    static const char *const ALTERNATIVES[] = { "anyOf", "oneOf", "allOf" };
    const json_t *properties = json_object_get(parameters, "properties"), *entry;
    const json_t *schema = follow_reference(parameters, json_object_get(properties, name));
    unsigned types = 0;
    size_t i;
    for (size_t k = 0; k < sizeof ALTERNATIVES / sizeof *ALTERNATIVES && !json_object_get(schema, "type");
         k++) {
        const json_t *list = json_object_get(schema, ALTERNATIVES[k]);
        if (!json_is_array(list) || (k == 2 && json_array_size(list) != 1))
            continue;
        json_array_foreach(list, i, entry) types |= own_types(follow_reference(parameters, entry));
    }
    return types ? types : own_types(schema);
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

json_t *call_value_parse(const char *text, size_t n_bytes)
{
    json_t *value = json_loadb(text, n_bytes, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
    value = value ? value : parse_literal(text, n_bytes);
    return value ? value : json_stringn(text, n_bytes);
}
