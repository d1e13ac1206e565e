#include "model/config.h"

#include "base/json_type.h"

#include <stdio.h>
#include <string.h>

const json_t *config_find(const struct config *c, const char *key)
{
    char full[256];
    if (snprintf(full, sizeof full, "%s%s", c->prefix, key) >= (int)sizeof full)
        return NULL;
    const json_t *value = c->root;
    char *part = full;
    for (char *dot; !c->is_flat && (dot = strchr(part, '.')); part = dot + 1) {
        *dot = '\0';
        value = json_object_get(value, part);
    }
    value = json_object_get(value, part);
    return json_is_null(value) ? NULL : value;
}

static void fail(struct config *c, enum tutti_status status, const char *key, const char *found,
                 const char *expected)
{
    if (c->status == TUTTI_OK)
        c->status = error_set(c->err, status, "%s: %s%s: %s, expected %s", c->file, c->prefix, key, found,
                              expected);
}

int config_int(struct config *c, const char *key, int lo, int hi)
{
    const json_t *value = config_find(c, key);
    char expected[64], found[64];
    snprintf(expected, sizeof expected, "an integer from %d to %d", lo, hi);
    if (!json_is_integer(value)) {
        fail(c, TUTTI_E_FORMAT, key, value ? json_type_name(value) : "missing", expected);
        return lo;
    }
    json_int_t n = json_integer_value(value);
    if (n < lo || n > hi) {
        snprintf(found, sizeof found, "%" JSON_INTEGER_FORMAT, n);
        fail(c, TUTTI_E_FORMAT, key, found, expected);
        return lo;
    }
    return (int)n;
}

int config_int_or(struct config *c, const char *key, int lo, int hi, int fallback)
{
    return config_find(c, key) ? config_int(c, key, lo, hi) : fallback;
}

double config_float(struct config *c, const char *key, double lo, double hi)
{
    const json_t *value = config_find(c, key);
    char expected[64], found[64];
    snprintf(expected, sizeof expected, "a number from %g to %g", lo, hi);
    if (!json_is_number(value)) {
        fail(c, TUTTI_E_FORMAT, key, value ? json_type_name(value) : "missing", expected);
        return lo;
    }
    double x = json_number_value(value);
    if (!(x >= lo && x <= hi)) {
        snprintf(found, sizeof found, "%g", x);
        fail(c, TUTTI_E_FORMAT, key, found, expected);
        return lo;
    }
    return x;
}

double config_float_or(struct config *c, const char *key, double lo, double hi, double fallback)
{
    return config_find(c, key) ? config_float(c, key, lo, hi) : fallback;
}

bool config_bool_or(struct config *c, const char *key, bool fallback)
{
    const json_t *value = config_find(c, key);
    if (value && !json_is_boolean(value))
        fail(c, TUTTI_E_FORMAT, key, json_type_name(value), "true or false");
    return value ? json_is_true(value) : fallback;
}

const char *config_string_or(struct config *c, const char *key, const char *fallback)
{
    const json_t *value = config_find(c, key);
    if (value && !json_is_string(value))
        fail(c, TUTTI_E_FORMAT, key, json_type_name(value), "a string");
    return json_is_string(value) ? json_string_value(value) : fallback;
}

void config_unsupported(struct config *c, const char *key, const char *what)
{
    if (c->status == TUTTI_OK)
        c->status = error_set(c->err, TUTTI_E_UNSUPPORTED, "%s: %s%s: %s is not supported", c->file,
                              c->prefix, key, what);
}
