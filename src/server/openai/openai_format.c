/* Fields that constrain the answer: response_format; llama-server's grammar and json_schema; vLLM's
 * structured_outputs, guided_json, guided_regex, guided_choice and guided_grammar. */
#include "base/json/json_field.h"
#include "base/json/json_print.h"
#include "base/json/json_type.h"
#include "server/requests/openai_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Only one field may constrain the answer. */
static enum tutti_status claim(struct api_request *req, const char *name, enum tutti_grammar_kind kind,
                               struct tutti_error *err)
{
    if (req->grammar_field)
        return error_set_param(err, TUTTI_E_ARGUMENT, name, "%s cannot be combined with %s", name,
                               req->grammar_field);
    req->grammar_field = name;
    req->grammar_kind = kind;
    return TUTTI_OK;
}

/* Takes ownership of text. */
static enum tutti_status claim_text(struct api_request *req, const char *name, enum tutti_grammar_kind kind,
                                    char *text, size_t n_bytes, struct tutti_error *err)
{
    enum tutti_status st = text ? claim(req, name, kind, err)
                                : error_set(err, TUTTI_E_MEMORY, "out of memory for %s", name);
    if (st != TUTTI_OK) {
        free(text);
        return st;
    }
    req->schema = text;
    req->grammar = text;
    req->n_grammar_bytes = n_bytes;
    return TUTTI_OK;
}

static enum tutti_status take_schema(struct api_request *req, const char *name, const json_t *schema,
                                     struct tutti_error *err)
{
    char *text = json_print(schema, JSON_COMPACT | JSON_ENCODE_ANY);
    return claim_text(req, name, TUTTI_GRAMMAR_JSON_SCHEMA, text, text ? strlen(text) : 0, err);
}

/* Uses a text of the request, which is borrowed. */
static enum tutti_status take_text(struct api_request *req, const char *name, enum tutti_grammar_kind kind,
                                   const json_t *text, struct tutti_error *err)
{
    if (!json_is_string(text))
        return json_wrong_type(name, "a string", text, err);
    enum tutti_status st = claim(req, name, kind, err);
    req->grammar = json_string_value(text);
    req->n_grammar_bytes = json_string_length(text);
    return st;
}

/* A schema, or its text. */
static enum tutti_status take_json(struct api_request *req, const char *name, const json_t *value,
                                   struct tutti_error *err)
{
    if (json_is_string(value))
        return take_text(req, name, TUTTI_GRAMMAR_JSON_SCHEMA, value, err);
    return json_is_object(value) ? take_schema(req, name, value, err)
                                 : json_wrong_type(name, "a JSON schema", value, err);
}

/* One of these texts: as the grammar root ::= "a" | "b". */
static enum tutti_status take_choice(struct api_request *req, const char *name, const json_t *list,
                                     struct tutti_error *err)
{
    struct buf out = { 0 };
    bool ok = buf_add_string(&out, "root ::= ");
    size_t i;
    const json_t *choice;
    if (!json_is_array(list) || json_array_size(list) == 0) {
        buf_clear(&out);
        return error_set_param(err, TUTTI_E_ARGUMENT, name, "%s must be a list of at least one string", name);
    }
    json_array_foreach(list, i, choice)
    {
        if (!json_is_string(choice) || json_string_length(choice) == 0) {
            buf_clear(&out);
            return error_set_param(err, TUTTI_E_ARGUMENT, name, "%s[%zu] must be a string that is not empty",
                                   name, i);
        }
        ok = ok && buf_add_string(&out, i > 0 ? " | \"" : "\"");
        const char *text = json_string_value(choice);
        for (size_t k = 0; ok && k < json_string_length(choice); k++) {
            unsigned char c = (unsigned char)text[k];
            if (c == '"' || c == '\\')
                ok = buf_printf(&out, "\\%c", c);
            else if (c < 0x20 || c == 0x7F)
                ok = buf_printf(&out, "\\x%02X", c);
            else
                ok = buf_add(&out, &text[k], 1);
        }
        ok = ok && buf_add_string(&out, "\"");
    }
    char *grammar = ok ? strdup(out.bytes) : NULL; /* no zero bytes: they are escaped */
    size_t n = out.n_bytes;
    buf_clear(&out);
    return claim_text(req, name, TUTTI_GRAMMAR_GBNF, grammar, n, err);
}

static enum tutti_status take_any_object(struct api_request *req, const char *name, const json_t *value,
                                         struct tutti_error *err)
{
    if (!json_is_boolean(value))
        return json_wrong_type(name, "true or false", value, err);
    return json_is_true(value) ? claim(req, name, TUTTI_GRAMMAR_JSON_OBJECT, err) : TUTTI_OK;
}

static enum tutti_status take_grammar(struct api_request *req, const char *name, const json_t *value,
                                      struct tutti_error *err)
{
    if (json_is_string(value) && json_string_length(value) == 0)
        return TUTTI_OK;
    return take_text(req, name, TUTTI_GRAMMAR_GBNF, value, err);
}

static enum tutti_status take_pattern(struct api_request *req, const char *name, const json_t *value,
                                      struct tutti_error *err)
{
    return take_text(req, name, TUTTI_GRAMMAR_PATTERN, value, err);
}

typedef enum tutti_status take_fn(struct api_request *req, const char *name, const json_t *value,
                                  struct tutti_error *err);

struct constraint_field {
    const char *name;
    take_fn *take;
};

/* vLLM's {"json": schema}, {"regex": pattern}, {"choice": [texts]}, {"grammar": GBNF} or
 * {"json_object": true}. */
static enum tutti_status take_structured(struct api_request *req, const char *name, const json_t *value,
                                         struct tutti_error *err)
{
    static const struct constraint_field KINDS[] = { { "structured_outputs.json", take_json },
                                                     { "structured_outputs.regex", take_pattern },
                                                     { "structured_outputs.choice", take_choice },
                                                     { "structured_outputs.grammar", take_grammar },
                                                     { "structured_outputs.json_object", take_any_object } };
    enum { N_KINDS = sizeof KINDS / sizeof *KINDS, N_PREFIX = sizeof "structured_outputs." - 1 };
    static const char *const HARMLESS[] = { "disable_fallback", "backend", "_backend", "_backend_was_auto" };
    const char *key;
    json_t *member;
    enum tutti_status st = TUTTI_OK;
    if (!json_is_object(value))
        return json_wrong_type(name, "an object", value, err);
    json_object_foreach((json_t *)(uintptr_t)value, key, member)
    {
        bool is_known = json_is_null(member) || json_is_false(member);
        for (size_t i = 0; i < N_KINDS; i++)
            is_known |= !strcmp(key, KINDS[i].name + N_PREFIX);
        for (size_t i = 0; i < sizeof HARMLESS / sizeof *HARMLESS; i++)
            is_known |= !strcmp(key, HARMLESS[i]);
        if (!is_known)
            return error_set_param(err, TUTTI_E_ARGUMENT, name,
                                   "structured_outputs.%.64s is not supported, only json, regex, choice, "
                                   "grammar and json_object",
                                   key);
    }
    for (size_t i = 0; i < N_KINDS && st == TUTTI_OK; i++) {
        const json_t *form = json_field(value, KINDS[i].name + N_PREFIX);
        if (form)
            st = KINDS[i].take(req, KINDS[i].name, form, err);
    }
    return st;
}

static bool is_name(const char *name)
{
    size_t n = strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-");
    return n >= 1 && n <= 64 && name[n] == '\0';
}

/* {"name", "schema", "strict", "description"}: the schema is enforced whether it is strict or not. */
static enum tutti_status read_json_schema(struct api_request *req, const json_t *value,
                                          struct tutti_error *err)
{
    const json_t *name = json_object_get(value, "name"), *schema = json_object_get(value, "schema");
    const json_t *strict = json_object_get(value, "strict");
    static const char *const KNOWN[] = { "name", "schema", "strict", "description", "type", NULL };
    if (!json_is_object(value))
        return json_wrong_part("response_format", "response_format.json_schema", "an object", value, err);
    enum tutti_status st = json_check_names("response_format", "response_format.json_schema", value, KNOWN,
                                            err);
    if (st != TUTTI_OK)
        return st;
    if (!json_is_string(name) || !is_name(json_string_value(name)))
        return error_set_param(err, TUTTI_E_ARGUMENT, "response_format",
                               "response_format.json_schema.name must be 1 to 64 letters, digits, _ and -");
    if (strict && !json_is_null(strict) && !json_is_boolean(strict))
        return json_wrong_part("response_format", "response_format.json_schema.strict", "true or false",
                               strict, err);
    if (!schema || json_is_null(schema))
        return claim(req, "response_format", TUTTI_GRAMMAR_JSON_OBJECT, err);
    if (!json_is_object(schema))
        return json_wrong_part("response_format", "response_format.json_schema.schema", "an object", schema,
                               err);
    return take_schema(req, "response_format", schema, err);
}

/* {"type": "json_object"}; llama-server's has a schema, and that of Text Generation Inference calls it value. */
static enum tutti_status read_json_object(struct api_request *req, const json_t *format,
                                          struct tutti_error *err)
{
    bool has_value = json_field(format, "value");
    const json_t *schema = json_field(format, has_value ? "value" : "schema");
    if (has_value && json_field(format, "schema"))
        return error_set_param(err, TUTTI_E_ARGUMENT, "response_format",
                               "response_format cannot have both schema and value");
    if (!schema)
        return claim(req, "response_format", TUTTI_GRAMMAR_JSON_OBJECT, err);
    if (!json_is_object(schema))
        return json_wrong_part("response_format",
                               has_value ? "response_format.value" : "response_format.schema", "an object",
                               schema, err);
    return take_schema(req, "response_format", schema, err);
}

static enum tutti_status read_response_format(struct api_request *req, struct tutti_error *err)
{
    const json_t *format = json_field(req->root, "response_format");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (!format)
        return TUTTI_OK;
    if (!json_is_object(format))
        return json_wrong_type("response_format", "an object", format, err);
    if (!type || (strcmp(type, "text") && strcmp(type, "json_object") && strcmp(type, "json_schema")))
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "response_format",
            "response_format.type must be \"text\", \"json_object\" or \"json_schema\", found %s%.32s%s",
            type ? "\"" : "", type ? type : json_type_name(json_object_get(format, "type")),
            type ? "\"" : "");
    static const char *const TEXT[] = { "type", NULL }, *const OBJECT[] = { "type", "schema", "value", NULL },
                             *const SCHEMA[] = { "type", "json_schema", NULL };
    const char *const *known = !strcmp(type, "text") ? TEXT : !strcmp(type, "json_schema") ? SCHEMA : OBJECT;
    enum tutti_status st = json_check_names("response_format", "response_format", format, known, err);
    if (st != TUTTI_OK || known == TEXT)
        return st;
    if (known == SCHEMA)
        return read_json_schema(req, json_object_get(format, "json_schema"), err);
    return read_json_object(req, format, err);
}

enum tutti_status api_read_format(struct api_request *req, struct tutti_error *err)
{
    static const struct constraint_field FIELDS[] = {
        { "grammar", take_grammar },        { "json_schema", take_json },
        { "guided_json", take_json },       { "guided_json_object", take_any_object },
        { "guided_regex", take_pattern },   { "guided_choice", take_choice },
        { "guided_grammar", take_grammar }, { "structured_outputs", take_structured },
    };
    enum tutti_status st = read_response_format(req, err);
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS && st == TUTTI_OK; i++) {
        const json_t *value = json_field(req->root, FIELDS[i].name);
        if (value)
            st = FIELDS[i].take(req, FIELDS[i].name, value, err);
    }
    return st;
}
