/* Reads typed fields of JSON objects. Every error names the field, what was expected and what was
 * found. */
#ifndef TUTTI_BASE_JSON_JSON_FIELD_H
#define TUTTI_BASE_JSON_JSON_FIELD_H

#include "base/error.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

enum json_kind {
    JSON_KIND_OBJECT,
    JSON_KIND_LIST,
    JSON_KIND_STRING,
    JSON_KIND_INT,
    JSON_KIND_NUMBER,
    JSON_KIND_BOOL,
};

/* An object's field; NULL if it is absent or null, which mean the same. */
const json_t *json_field(const json_t *object, const char *name);

/* Whether a field is true; false if it is absent or of another type. */
static inline bool json_is_on(const json_t *object, const char *name)
{
    return json_is_true(json_object_get(object, name));
}

bool json_is_kind(const json_t *value, enum json_kind kind);

/* ---- fields of clients' requests: TUTTI_E_ARGUMENT, err->param is the field's name ---- */

/* "NAME must be EXPECTED, found a list" */
enum tutti_status json_wrong_type(const char *name, const char *expected, const json_t *found,
                                  struct tutti_error *err);

/* The same where name is not the request's field: a part of it, or "the body" (param ""). */
enum tutti_status json_wrong_part(const char *param, const char *name, const char *expected,
                                  const json_t *found, struct tutti_error *err);

/* Checks that an object has no other names than these, which end with NULL; null and false are accepted everywhere. name: the
 * object's, a part of the field param. */
MUST_CHECK enum tutti_status json_check_names(const char *param, const char *name, const json_t *object,
                                              const char *const *known, struct tutti_error *err);

/* Checks the type of a value that must be there. name: in messages, such as "messages[3].role". */
MUST_CHECK enum tutti_status json_require(const json_t *value, enum json_kind kind, const char *name,
                                          struct tutti_error *err);

/* The same for a value that may be absent: NULL and null are accepted. */
MUST_CHECK enum tutti_status json_check(const json_t *value, enum json_kind kind, const char *name,
                                        struct tutti_error *err);

/* Checks a number's range. */
MUST_CHECK enum tutti_status json_check_range(double number, double min, double max, const char *name,
                                              struct tutti_error *err);

/* ---- fields of files: TUTTI_E_FORMAT, "FILE: PREFIXNAME: FOUND, expected EXPECTED" ---- */

struct json_place {
    const char *file; /* NULL: the caller prepends the file's name */
    char prefix[96];  /* of the object that is read, such as "tensors[3]."; "": the root */
    struct tutti_error *err;
};

/* name "": the object itself. expected: "a list of at most 4 numbers". */
enum tutti_status json_unexpected(const struct json_place *at, const char *name, const json_t *found,
                                  const char *expected);

/* "FILE: PREFIXNAME: " and a text of its own. */
enum tutti_status json_invalid(const struct json_place *at, const char *name, const char *format, ...)
    PRINTF_LIKE(3, 4);
enum tutti_status json_invalid_args(const struct json_place *at, const char *name, const char *format,
                                    va_list args) PRINTF_LIKE(3, 0);

/* Reads a field that must be there. An integer out of range is quoted. */
MUST_CHECK enum tutti_status json_get_string(const struct json_place *at, const json_t *object,
                                             const char *name, const char **out);
MUST_CHECK enum tutti_status json_get_int(const struct json_place *at, const json_t *object, const char *name,
                                          int64_t min, int64_t max, int64_t *out);

#endif
