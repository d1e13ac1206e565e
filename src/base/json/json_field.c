#include "base/json/json_field.h"

#include "base/json/json_type.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const json_t *json_field(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

bool json_is_kind(const json_t *value, enum json_kind kind)
{
    switch (kind) {
    case JSON_KIND_OBJECT:
        return json_is_object(value);
    case JSON_KIND_LIST:
        return json_is_array(value);
    case JSON_KIND_STRING:
        return json_is_string(value);
    case JSON_KIND_INT:
        return json_is_integer(value);
    case JSON_KIND_NUMBER:
        return json_is_number(value);
    case JSON_KIND_BOOL:
        return json_is_boolean(value);
    }
    return false;
}

static const char *kind_name(enum json_kind kind)
{
    static const char *const NAMES[] = { "an object",  "a list",   "a string",
                                         "an integer", "a number", "true or false" };
    return NAMES[kind];
}

/* ---- requests ---- */

enum tutti_status json_wrong_part(const char *param, const char *name, const char *expected,
                                  const json_t *found, struct tutti_error *err)
{
    bool is_empty = json_is_array(found) && json_array_size(found) == 0;
    return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s must be %s, found %s", name, expected,
                           is_empty ? "an empty list" : json_type_name(found));
}

enum tutti_status json_wrong_type(const char *name, const char *expected, const json_t *found,
                                  struct tutti_error *err)
{
    return json_wrong_part(name, name, expected, found, err);
}

enum tutti_status json_check_names(const char *param, const char *name, const json_t *object,
                                   const char *const *known, struct tutti_error *err)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        int i = 0;
        while (known[i] && strcmp(known[i], key) != 0)
            i++;
        if (!known[i] && !json_is_null(value) && !json_is_false(value))
            return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s.%.48s is not supported", name, key);
    }
    return TUTTI_OK;
}

enum tutti_status json_require(const json_t *value, enum json_kind kind, const char *name,
                               struct tutti_error *err)
{
    return json_is_kind(value, kind) ? TUTTI_OK : json_wrong_type(name, kind_name(kind), value, err);
}

enum tutti_status json_check(const json_t *value, enum json_kind kind, const char *name,
                             struct tutti_error *err)
{
    return !value || json_is_null(value) ? TUTTI_OK : json_require(value, kind, name, err);
}

enum tutti_status json_check_range(double number, double min, double max, const char *name,
                                   struct tutti_error *err)
{
    if (number >= min && number <= max)
        return TUTTI_OK;
    return error_set_param(err, TUTTI_E_ARGUMENT, name, "%s must be between %.10g and %.10g, found %.10g",
                           name, min, max, number);
}

/* ---- files ---- */

enum tutti_status json_invalid(const struct json_place *at, const char *name, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    enum tutti_status st = json_invalid_args(at, name, format, args);
    va_end(args);
    return st;
}

enum tutti_status json_invalid_args(const struct json_place *at, const char *name, const char *format,
                                    va_list args)
{
    char text[256];
    vsnprintf(text, sizeof text, format, args);
    int n_prefix = (int)strlen(at->prefix);
    if (!*name && n_prefix > 0)
        n_prefix--; /* the object itself: without the point */
    return error_set(at->err, TUTTI_E_FORMAT, "%s%s%.*s%s: %s", at->file ? at->file : "",
                     at->file ? ": " : "", n_prefix, at->prefix, name, text);
}

enum tutti_status json_unexpected(const struct json_place *at, const char *name, const json_t *found,
                                  const char *expected)
{
    size_t n = json_array_size(found);
    if (n > 0)
        return json_invalid(at, name, "a list of %zu, expected %s", n, expected);
    return json_invalid(at, name, "%s, expected %s",
                        json_is_array(found) ? "an empty list" : json_type_name(found), expected);
}

enum tutti_status json_get_string(const struct json_place *at, const json_t *object, const char *name,
                                  const char **out)
{
    const json_t *value = json_object_get(object, name);
    if (!json_is_string(value))
        return json_unexpected(at, name, value, kind_name(JSON_KIND_STRING));
    *out = json_string_value(value);
    return TUTTI_OK;
}

enum tutti_status json_get_int(const struct json_place *at, const json_t *object, const char *name,
                               int64_t min, int64_t max, int64_t *out)
{
    const json_t *value = json_object_get(object, name);
    char expected[96];
    snprintf(expected, sizeof expected, "an integer from %" PRId64 " to %" PRId64, min, max);
    if (!json_is_integer(value))
        return json_unexpected(at, name, value, expected);
    *out = json_integer_value(value);
    if (*out >= min && *out <= max)
        return TUTTI_OK;
    return json_invalid(at, name, "%" PRId64 ", expected %s", *out, expected);
}
