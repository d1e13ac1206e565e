#include "checkpoint/json_file.h"

#include "base/files/mapping.h"
#include "base/json/json_type.h"
#include "base/json/json_wide.h"
#include "base/limits.h"

static enum tutti_status load_as(json_type type, const char *path, json_t **out, struct tutti_error *err)
{
    struct mapping map;
    struct tutti_error inner;
    enum tutti_status st = mapping_open(&map, path, &inner);
    *out = NULL;
    if (st == TUTTI_E_NOT_FOUND)
        return TUTTI_OK;
    if (st != TUTTI_OK)
        return error_set(err, st, "%s", inner.text);
    if (map.n_bytes > LIMIT_JSON_FILE_BYTES) {
        st = error_set(err, TUTTI_E_FORMAT, "%s: %zu bytes, expected at most %d", path, map.n_bytes,
                       LIMIT_JSON_FILE_BYTES);
        goto done;
    }
    json_error_t json_err;
    json_t *root = json_load_wide(map.bytes ? (const char *)map.bytes : "", map.n_bytes, JSON_ALLOW_NUL,
                                  &json_err);
    if (!root && json_err.text[0] == '\0') /* jansson sets a text for all other errors */
        st = error_set(err, TUTTI_E_MEMORY, "%s: out of memory", path);
    else if (!root)
        st = error_set(err, TUTTI_E_FORMAT, "%s: %s (line %d, column %d)", path, json_err.text, json_err.line,
                       json_err.column);
    else if (json_typeof(root) != type)
        st = error_set(err, TUTTI_E_FORMAT, "%s: found %s, expected %s", path, json_type_name(root),
                       type == JSON_OBJECT ? "an object" : "a list");
    if (st == TUTTI_OK)
        *out = root;
    else
        json_decref(root);
done:
    mapping_close(&map);
    return st;
}

enum tutti_status json_file_load(const char *path, json_t **out, struct tutti_error *err)
{
    return load_as(JSON_OBJECT, path, out, err);
}

enum tutti_status json_file_load_list(const char *path, json_t **out, struct tutti_error *err)
{
    return load_as(JSON_ARRAY, path, out, err);
}
