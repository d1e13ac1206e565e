#include "model/chat/call_values.h"

#include "base/buf.h"
#include "template/template.h"

#include <string.h>

/* Whether a schema says that a value is a text, and nothing else but null. */
static bool takes_only_text(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *list = json_object_get(schema, "anyOf"), *entry;
    bool has_text = false;
    size_t i;
    if (json_is_string(type))
        return strcmp(json_string_value(type), "string") == 0;
    if (!json_is_array(type))
        type = json_is_array(list) ? list : json_object_get(schema, "enum");
    json_array_foreach(type, i, entry)
    {
        bool is_enum = type != list && !json_object_get(schema, "type");
        const char *word = json_string_value(type == list ? json_object_get(entry, "type") : entry);
        bool is_text = is_enum ? word != NULL : word && strcmp(word, "string") == 0;
        if (!is_text && !json_is_null(entry) && !(word && strcmp(word, "null") == 0))
            return false;
        has_text |= is_text;
    }
    return has_text;
}

static bool takes_null(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *entry;
    size_t i;
    if (!json_is_array(type))
        type = json_object_get(schema, "anyOf");
    json_array_foreach(type, i, entry)
    {
        const char *word = json_string_value(json_is_object(entry) ? json_object_get(entry, "type") : entry);
        if (word && strcmp(word, "null") == 0)
            return true;
    }
    return false;
}

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

json_t *call_value_parse(const json_t *schema, const char *text, size_t n_bytes)
{
    json_t *value = NULL;
    bool is_null = n_bytes == 4 && memcmp(text, "null", 4) == 0;
    if (!takes_only_text(schema) || (is_null && takes_null(schema))) {
        value = json_loadb(text, n_bytes, JSON_ALLOW_NUL | JSON_DECODE_ANY, NULL);
        value = value ? value : parse_literal(text, n_bytes);
    }
    return value ? value : json_stringn(text, n_bytes);
}
