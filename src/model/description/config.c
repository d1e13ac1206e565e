#include "model/description/config.h"

#include "base/json/json_type.h"

#include "base/buf.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/gguf/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_PATH_BYTES = 256,
    MAX_DEPTH = 4, /* of nested objects: rope_parameters.factor has 2 */
};

/* Records in c->read a key whose value was read, or an object that was descended into. */
static void note(struct config *c, const char *path, bool is_value)
{
    if (!c->read)
        c->read = json_object();
    if (json_is_true(json_object_get(c->read, path)))
        return;
    if (json_object_set_new(c->read, path, json_boolean(is_value)) != 0 && c->status == TUTTI_OK)
        c->status = error_set(c->err, TUTTI_E_MEMORY, "%s: out of memory", c->file);
}

/* The number of an array [layers] in which all are the same; NULL: there is no such array. Not of arrays that say which layers are
 * of a kind: a number under their key means another thing. */
static const json_t *find_uniform(struct config *c, const char *path)
{
    char count[MAX_PATH_BYTES];
    const struct gguf_array *array = gguf_find_array(c->gguf, path);
    snprintf(count, sizeof count, "%sblock_count", c->prefix);
    json_int_t n_layers = json_integer_value(json_object_get(c->root, count));
    if (!array || gguf_array_type(array) == GGUF_STRING || gguf_array_type(array) == GGUF_BOOL ||
        text_ends_with(path, "_pattern") || n_layers < 1 || gguf_array_n(array) != (size_t)n_layers)
        return NULL;
    for (size_t i = 1; i < (size_t)n_layers; i++)
        if (gguf_array_float(array, i) != gguf_array_float(array, 0))
            return NULL;
    bool is_float = gguf_array_type(array) == GGUF_F32 || gguf_array_type(array) == GGUF_F64;
    if (is_float && !isfinite(gguf_array_float(array, 0))) {
        if (c->status == TUTTI_OK)
            c->status = error_set(c->err, TUTTI_E_FORMAT, "%s: %s: expected finite numbers", c->file, path);
        return NULL;
    }
    json_t *value = is_float ? json_real(gguf_array_float(array, 0)) : json_integer(gguf_array_int(array, 0));
    if (!c->uniform)
        c->uniform = json_object();
    if (json_object_set_new(c->uniform, path, value) != 0 && c->status == TUTTI_OK)
        c->status = error_set(c->err, TUTTI_E_MEMORY, "%s: out of memory", c->file);
    return json_object_get(c->uniform, path);
}

/* NULL: absent. */
static const json_t *look_up(struct config *c, const char *key)
{
    char full[MAX_PATH_BYTES];
    if (snprintf(full, sizeof full, "%s%s", c->prefix, key) >= (int)sizeof full)
        return NULL;
    const json_t *value = c->root;
    char *part = full;
    for (char *dot; !c->is_flat && (dot = strchr(part, '.')); part = dot + 1) {
        *dot = '\0';
        value = json_object_get(value, part);
        note(c, full, false);
        *dot = '.';
    }
    note(c, full, true);
    const json_t *found = json_object_get(value, part);
    return found || !c->gguf ? found : find_uniform(c, full);
}

const json_t *config_find(struct config *c, const char *key)
{
    const json_t *value = look_up(c, key);
    return json_is_null(value) ? NULL : value;
}

bool config_has(struct config *c, const char *key)
{
    return look_up(c, key);
}

static void fail(struct config *c, enum tutti_status status, const char *key, const char *found,
                 const char *expected)
{
    if (c->status == TUTTI_OK)
        c->status = error_set(c->err, status, "%s: %s%s: %s, expected %s", c->file, c->prefix, key, found,
                              expected);
}

/* What was found in place of a number. value NULL: nothing, or an array of the metadata. */
static const char *describe_found(const struct config *c, const char *key, const json_t *value)
{
    char full[MAX_PATH_BYTES];
    if (value)
        return json_type_name(value);
    bool is_full = snprintf(full, sizeof full, "%s%s", c->prefix, key) < (int)sizeof full;
    return is_full && c->gguf && gguf_find_array(c->gguf, full)
               ? "an array of different values, or of another length than the layers"
               : "missing";
}

bool config_has_object(struct config *c, const char *key)
{
    char full[MAX_PATH_BYTES];
    snprintf(full, sizeof full, "%s%s", c->prefix, key);
    const json_t *value = json_object_get(c->root, full);
    note(c, full, false);
    if (value && !json_is_null(value) && !json_is_object(value))
        fail(c, TUTTI_E_FORMAT, key, json_type_name(value), "an object");
    return json_object_size(value) > 0;
}

void config_skip(struct config *c, const char *key)
{
    (void)look_up(c, key);
}

int config_int(struct config *c, const char *key, int lo, int hi)
{
    const json_t *value = look_up(c, key);
    char expected[64], found[64];
    snprintf(expected, sizeof expected, "an integer from %d to %d", lo, hi);
    if (!json_is_integer(value)) {
        fail(c, TUTTI_E_FORMAT, key, describe_found(c, key, value), expected);
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
    const json_t *value = look_up(c, key);
    char expected[64], found[64];
    snprintf(expected, sizeof expected, "a number from %g to %g", lo, hi);
    if (!json_is_number(value)) {
        fail(c, TUTTI_E_FORMAT, key, describe_found(c, key, value), expected);
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
    const json_t *value = look_up(c, key);
    bool is_absent = !value || (!fallback && json_is_null(value)); /* to Python, null is false */
    if (!is_absent && !json_is_boolean(value))
        fail(c, TUTTI_E_FORMAT, key, json_type_name(value), "true or false");
    return is_absent ? fallback : json_is_true(value);
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

/* ---- unread keys ---- */

static bool matches(const char *pattern, const char *key)
{
    size_t n = strlen(pattern), n_key = strlen(key);
    bool begins = n > 0 && pattern[0] == '*', ends = n > 1 && pattern[n - 1] == '*';
    if (begins && ends) {
        char middle[MAX_PATH_BYTES];
        snprintf(middle, sizeof middle, "%.*s", (int)(n - 2), pattern + 1);
        return strstr(key, middle);
    }
    if (begins)
        return n_key >= n - 1 && strcmp(key + n_key - (n - 1), pattern + 1) == 0;
    return ends ? strncmp(key, pattern, n - 1) == 0 : strcmp(key, pattern) == 0;
}

static const struct config_key *find_key(const struct config_key *const *lists, const char *key)
{
    for (; *lists; lists++) {
        for (const struct config_key *k = *lists; k->key; k++) {
            if (matches(k->key, key))
                return k;
        }
    }
    return NULL;
}

/* Null, or an empty text, list or object. */
static bool is_empty(const json_t *value)
{
    return json_is_null(value) || (json_is_string(value) && json_string_length(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

/* Whether a value equals literal, which is valid JSON; 1 and 1.0 are equal. */
static bool is_value(struct config *c, const json_t *value, const char *literal)
{
    json_t *only = json_loads(literal, JSON_DECODE_ANY, NULL);
    if (!only && c->status == TUTTI_OK)
        c->status = error_set(c->err, TUTTI_E_MEMORY, "%s: out of memory", c->file);
    bool is_same = json_is_number(value) && json_is_number(only)
                       ? json_number_value(value) == json_number_value(only)
                       : json_equal(value, only);
    json_decref(only);
    return is_same;
}

/* An unknown string may be a remark of its author, unless its key names a part of the network. */
static bool names_a_part(const char *key)
{
    static const char *const PARTS[] = { "act",    "norm", "attention", "attn",   "position", "rope",
                                         "rotary", "mlp",  "ffn",       "expert", "moe",      "layer",
                                         "embed",  "head", "logit",     "scale",  "residual", "bias" };
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++) {
        if (strstr(key, PARTS[i]))
            return true;
    }
    return false;
}

struct leftovers {
    struct config *c;
    const struct config_key *const *lists;
    const char *what;
    struct buf ignored; /* names, for one warning */
};

/* The value as short text, freed by the caller; NULL: out of memory. */
static char *short_text(const json_t *value)
{
    enum { SHORT = 60 };
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);
    if (text && strlen(text) > SHORT)
        strcpy(text + SHORT - 3, "...");
    return text;
}

static void refuse(struct leftovers *l, const char *path, const json_t *value, const char *only)
{
    char *text = short_text(value);
    const char *shown = text ? text : json_type_name(value); /* such as an invalid UTF-8 string */
    if (l->c->status == TUTTI_OK && only)
        l->c->status = error_set(l->c->err, TUTTI_E_UNSUPPORTED,
                                 "%s: %s: %s is not supported for %s, expected %s", l->c->file, path, shown,
                                 l->what, only);
    else if (l->c->status == TUTTI_OK)
        l->c->status = error_set(l->c->err, TUTTI_E_UNSUPPORTED,
                                 "%s: %s: %s: tutti does not know this setting of %s, and it may change what "
                                 "is computed; if it is "
                                 "only a note, remove it from the file",
                                 l->c->file, path, shown, l->what);
    free(text);
}

static void check_object(struct leftovers *l, const json_t *object, const char *path, int depth);

/* path: with the enclosing objects; key: without the prefix. */
static void check_value(struct leftovers *l, const json_t *value, const char *path, const char *key,
                        int depth)
{
    const json_t *read = json_object_get(l->c->read, path);
    if (json_is_true(read) || (read && !json_is_object(value)))
        return;
    if (read) {
        check_object(l, value, path, depth + 1);
        return;
    }
    const struct config_key *known = find_key(l->lists, key);
    if (known && (!known->only || is_value(l->c, value, known->only)))
        return;
    bool is_true = known && known->only && strcmp(known->only, "true") == 0;
    if (known && json_is_null(value) && !is_true) /* to Python, null is false */
        return;
    if (known) {
        refuse(l, path, value, known->only);
        return;
    }
    if (is_empty(value) || json_is_false(value))
        return;
    if (!json_is_string(value) || names_a_part(key))
        refuse(l, path, value, NULL);
    else if (!buf_printf(&l->ignored, "%s%s", l->ignored.n_bytes > 0 ? ", " : "", key) &&
             l->c->status == TUTTI_OK)
        l->c->status = error_set(l->c->err, TUTTI_E_MEMORY, "%s: out of memory", l->c->file);
}

/* path "": the root. */
static void check_object(struct leftovers *l, const json_t *object, const char *path, int depth)
{
    const char *name;
    json_t *value;
    size_t n_prefix = strlen(l->c->prefix);
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        char full[MAX_PATH_BYTES];
        if (depth == 0 && strncmp(name, l->c->prefix, n_prefix) != 0)
            continue;
        int n = snprintf(full, sizeof full, "%s%s%s", path, *path ? "." : "", name);
        if (n >= (int)sizeof full || depth >= MAX_DEPTH)
            refuse(l, name, value, NULL);
        else
            check_value(l, value, full, full + n_prefix, depth);
    }
}

/* Checks the arrays of GGUF's metadata: settings have one value for all layers. */
static void check_arrays(struct leftovers *l)
{
    struct config *c = l->c;
    size_t n_prefix = strlen(c->prefix);
    for (size_t i = 0; c->gguf && i < gguf_n_arrays(c->gguf); i++) {
        const char *key = gguf_array_key(c->gguf, i);
        const struct config_key *known = strncmp(key, c->prefix, n_prefix) == 0
                                             ? find_key(l->lists, key + n_prefix)
                                             : &(struct config_key){ .key = key };
        if ((!known || known->only) && !json_object_get(c->uniform, key) && c->status == TUTTI_OK)
            c->status = error_set(
                c->err, TUTTI_E_UNSUPPORTED,
                "%s: %s: an array of %zu values is not supported for %s, expected one value "
                "for all layers or none",
                c->file, key, gguf_array_n(gguf_find_array(c->gguf, key)), l->what);
    }
}

enum tutti_status config_end(struct config *c, const struct config_key *const *lists, const char *what)
{
    struct leftovers l = { .c = c, .lists = lists, .what = what };
    if (c->status == TUTTI_OK)
        check_object(&l, c->root, "", 0);
    if (c->status == TUTTI_OK)
        check_arrays(&l);
    if (c->status == TUTTI_OK && l.ignored.n_bytes > 0 && !c->is_quiet)
        log_warn("%s: ignored, as nothing is known of them: %.*s", c->file, (int)l.ignored.n_bytes,
                 l.ignored.bytes);
    buf_clear(&l.ignored);
    json_decref(c->read);
    json_decref(c->uniform);
    c->read = c->uniform = NULL;
    return c->status;
}
