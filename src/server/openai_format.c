/* What the text of an answer must be: response_format, and grammar as llama-server has it. */
#include "base/json_print.h"
#include "base/json_type.h"
#include "server/openai_request.h"

#include <stdlib.h>
#include <string.h>

static enum tutti_status wrong(const char *what, const char *expected, const json_t *found,
                               struct tutti_error *err)
{
    return error_set_param(err, TUTTI_E_ARGUMENT, "response_format", "%s must be %s, found %s", what,
                           expected, json_type_name(found));
}

static enum tutti_status take_schema(struct api_request *req, const json_t *schema, struct tutti_error *err)
{
    req->schema = json_print(schema, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!req->schema)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the JSON schema");
    req->grammar_kind = TUTTI_GRAMMAR_JSON_SCHEMA;
    req->grammar = req->schema;
    req->n_grammar_bytes = strlen(req->schema);
    return TUTTI_OK;
}

static bool is_name(const char *name)
{
    size_t n = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-");
    return n >= 1 && n <= 64 && name[n] == '\0';
}

/* {"name", "schema", "strict", "description"}: a schema is obeyed whether it is strict or not. */
static enum tutti_status read_json_schema(struct api_request *req, const json_t *value,
                                          struct tutti_error *err)
{
    const json_t *name = json_object_get(value, "name"), *schema = json_object_get(value, "schema");
    const json_t *strict = json_object_get(value, "strict");
    if (!json_is_object(value))
        return wrong("response_format.json_schema", "an object", value, err);
    if (!json_is_string(name) || !is_name(json_string_value(name)))
        return error_set_param(err, TUTTI_E_ARGUMENT, "response_format",
                               "response_format.json_schema.name must be 1 to 64 letters, digits, _ and -");
    if (strict && !json_is_null(strict) && !json_is_boolean(strict))
        return wrong("response_format.json_schema.strict", "true or false", strict, err);
    if (!schema || json_is_null(schema)) {
        req->grammar_kind = TUTTI_GRAMMAR_JSON_OBJECT;
        return TUTTI_OK;
    }
    if (!json_is_object(schema))
        return wrong("response_format.json_schema.schema", "an object", schema, err);
    return take_schema(req, schema, err);
}

enum tutti_status api_read_format(struct api_request *req, struct tutti_error *err)
{
    const json_t *format = json_object_get(req->root, "response_format"),
                 *grammar = json_object_get(req->root, "grammar");
    const char *type = json_string_value(json_object_get(format, "type"));
    enum tutti_status st = TUTTI_OK;
    bool has_format = format && !json_is_null(format);
    if (has_format && !json_is_object(format))
        return wrong("response_format", "an object", format, err);
    if (has_format &&
        (!type || (strcmp(type, "text") && strcmp(type, "json_object") && strcmp(type, "json_schema"))))
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "response_format",
            "response_format.type must be \"text\", \"json_object\" or \"json_schema\", found %s%.32s%s",
            type ? "\"" : "", type ? type : json_type_name(json_object_get(format, "type")),
            type ? "\"" : "");
    if (has_format && !strcmp(type, "json_object")) {
        const json_t *schema = json_object_get(format, "schema"); /* as llama-server has it */
        if (!schema)
            schema = json_object_get(format, "value"); /* and Text Generation Inference */
        req->grammar_kind = TUTTI_GRAMMAR_JSON_OBJECT;
        st = json_is_object(schema) ? take_schema(req, schema, err) : TUTTI_OK;
    } else if (has_format && !strcmp(type, "json_schema")) {
        st = read_json_schema(req, json_object_get(format, "json_schema"), err);
    }
    if (st != TUTTI_OK || !grammar || json_is_null(grammar))
        return st;
    if (!json_is_string(grammar))
        return error_set_param(err, TUTTI_E_ARGUMENT, "grammar", "grammar must be a string, found %s",
                               json_type_name(grammar));
    if (json_string_length(grammar) == 0)
        return TUTTI_OK;
    if (req->grammar_kind != TUTTI_GRAMMAR_NONE)
        return error_set_param(err, TUTTI_E_ARGUMENT, "grammar",
                               "grammar cannot go together with response_format");
    req->grammar_kind = TUTTI_GRAMMAR_GBNF;
    req->grammar = json_string_value(grammar);
    req->n_grammar_bytes = json_string_length(grammar);
    return TUTTI_OK;
}
