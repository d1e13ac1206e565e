#include "model/chat/calls/call_arguments.h"

#include "base/json/json_print.h"
#include "model/chat/calls/call_values.h"
#include "template/template.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

void call_arguments_begin(struct call_arguments *a)
{
    buf_truncate(&a->json, 0);
    a->has_any = a->is_begun = false;
    json_decref(a->names);
    a->names = NULL;
}

void call_arguments_clear(struct call_arguments *a)
{
    buf_clear(&a->json);
    json_decref(a->names);
    json_decref(a->name);
    *a = (struct call_arguments){ .names = NULL };
}

/* False: a value of this name was there before, and the tool lists the name. Others may come again, as in
 * JSON, where the last one counts. */
static bool note_name(struct call_arguments *a, const char *name, const json_t *function)
{
    if (!a->names)
        a->names = json_object();
    bool is_again = name && json_object_get(a->names, name) &&
                    call_value_is_listed(json_object_get(function, "parameters"), name);
    return name && !is_again && json_object_set_new(a->names, name, json_true()) == 0;
}

static bool print_separator(struct call_arguments *a)
{
    bool ok = buf_add(&a->json, a->has_any ? "," : "{", 1);
    a->has_any = true;
    return ok;
}

/* ---- pairs ---- */

bool call_arguments_set_name(struct call_arguments *a, const char *name, size_t n_bytes)
{
    json_decref(a->name);
    a->name = memchr(name, '\0', n_bytes) ? NULL : json_stringn(name, n_bytes); /* clients take no such key */
    return a->name;
}

bool call_arguments_begin_value(struct call_arguments *a, const json_t *function, bool is_text)
{
    const char *name = json_string_value(a->name);
    unsigned types = CALL_TYPE_TEXT;
    if (!is_text && function && name)
        types = call_value_types(json_object_get(function, "parameters"), name);
    a->is_begun = false;
    a->is_text = types & CALL_TYPE_TEXT && !(types & CALL_TYPE_OTHER);
    a->may_be_null = types & CALL_TYPE_NULL;
    a->may_be_text = types & (CALL_TYPE_TEXT | CALL_TYPE_ANY);
    return note_name(a, name, function);
}

static bool print_name(struct call_arguments *a)
{
    return print_separator(a) && json_print_to(&a->json, a->name, JSON_COMPACT | JSON_ENCODE_ANY) &&
           buf_add(&a->json, ":", 1);
}

/* Prints a part of a text as in JSON. False: it is no UTF-8, or out of memory. */
static bool print_text(struct call_arguments *a, const char *text, size_t n_bytes)
{
    json_t *value = json_stringn(text, n_bytes);
    char *json = value ? json_print(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    bool ok = json && buf_add(&a->json, json + 1, strlen(json) - 2);
    json_decref(value);
    free(json);
    return ok;
}

/* Whether text can become null, which is no text where the schema allows null. */
static bool is_begun_null(const struct call_arguments *a, const char *text, size_t n_bytes)
{
    static const char NONE[] = "null";
    return a->may_be_null && !a->is_begun && n_bytes < sizeof NONE && memcmp(text, NONE, n_bytes) == 0;
}

bool call_arguments_add_piece(struct call_arguments *a, const char *text, size_t n_bytes, size_t *n_taken)
{
    *n_taken = 0;
    if (!a->is_text || n_bytes == 0 || is_begun_null(a, text, n_bytes))
        return true;
    bool ok = a->is_begun || (print_name(a) && buf_add(&a->json, "\"", 1));
    a->is_begun = true;
    *n_taken = n_bytes;
    return ok && print_text(a, text, n_bytes);
}

bool call_arguments_end_value(struct call_arguments *a, const char *text, size_t n_bytes)
{
    if (a->is_begun)
        return print_text(a, text, n_bytes) && buf_add(&a->json, "\"", 1);
    bool is_null = n_bytes == 4 && is_begun_null(a, text, n_bytes);
    if (!a->is_text && call_value_is_wide(text, n_bytes))
        return print_name(a) && buf_add(&a->json, text, n_bytes);
    return call_arguments_set_value(a, a->is_text && !is_null
                                           ? json_stringn(text, n_bytes)
                                           : call_value_parse(text, n_bytes, a->may_be_text));
}

bool call_arguments_set_value(struct call_arguments *a, json_t *value)
{
    bool ok = value && print_name(a) && json_print_to(&a->json, value, JSON_COMPACT | JSON_ENCODE_ANY);
    json_decref(value);
    return ok;
}

/* ---- Python ---- */

/* Whether the text is a name of Python. */
static bool is_python_name(const char *text, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (!(c >= 0x80 || c == '_' || isalpha(c) || (isdigit(c) && i > 0)))
            return false;
    }
    return n_bytes > 0;
}

/* NAME=VALUE, where the value is JSON with integers that the reader of literals cannot hold. */
static bool add_wide(struct call_arguments *a, const json_t *function, const char *text, size_t n_bytes)
{
    const char *sign = memchr(text, '=', n_bytes), *name = text, *end = sign;
    if (!sign || !call_value_is_wide(sign + 1, n_bytes - (size_t)(sign + 1 - text)))
        return false;
    while (name < end && isspace((unsigned char)*name))
        name++;
    while (end > name && isspace((unsigned char)end[-1]))
        end--;
    return is_python_name(name, (size_t)(end - name)) &&
           call_arguments_set_name(a, name, (size_t)(end - name)) &&
           note_name(a, json_string_value(a->name), function) && print_name(a) &&
           buf_add(&a->json, sign + 1, n_bytes - (size_t)(sign + 1 - text));
}

bool call_arguments_add_python(struct call_arguments *a, const json_t *function, const char *text,
                               size_t n_bytes)
{
    struct template_output out = { 0 };
    json_t *object = NULL, *value;
    const char *name;
    if (template_read_arguments(text, n_bytes, &out, NULL) == TUTTI_OK)
        object = json_loadb(out.text, out.n_bytes, JSON_ALLOW_NUL, NULL);
    else if (add_wide(a, function, text, n_bytes))
        return true;
    template_output_clear(&out);
    bool ok = json_object_size(object) == 1;
    json_object_foreach(object, name, value) ok = ok && note_name(a, name, function);
    char *json = ok ? json_print(object, JSON_COMPACT) : NULL;
    json_decref(object);
    ok = json && print_separator(a) && buf_add(&a->json, json + 1, strlen(json) - 2);
    free(json);
    return ok;
}

bool call_arguments_end(struct call_arguments *a)
{
    return buf_add_string(&a->json, a->has_any ? "}" : "{}");
}
