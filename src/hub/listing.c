#include "hub/listing.h"

#include "base/json/json_field.h"
#include "base/json/json_wide.h"
#include "base/text.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool hub_checksum_read(struct hub_checksum *out, const char *text)
{
    size_t n = strlen(text);
    if (n != 64 && n != 40)
        return false;
    for (size_t i = 0; i <= n; i++) {
        if (i < n && hex_digit(text[i]) < 0)
            return false;
        out->text[i] = (char)tolower((unsigned char)text[i]);
    }
    out->kind = n == 64 ? DIGEST_SHA256 : DIGEST_SHA1;
    return true;
}

bool hub_checksum_equal(const struct hub_checksum *a, const struct hub_checksum *b)
{
    return a->kind == b->kind && strcmp(a->text, b->text) == 0;
}

/* Reads a checksum that must be there. */
static enum tutti_status read_checksum(const struct json_place *at, const json_t *object, const char *name,
                                       bool must_be_sha256, struct hub_checksum *out)
{
    const char *text;
    enum tutti_status st = json_get_string(at, object, name, &text);
    if (st == TUTTI_OK && (!hub_checksum_read(out, text) || (must_be_sha256 && out->kind != DIGEST_SHA256)))
        st = json_invalid(at, name, "'%.80s' is no checksum, expected %s hexadecimal digits", text,
                          must_be_sha256 ? "64" : "40 or 64");
    return st;
}

static enum tutti_status read_path(const struct json_place *at, const json_t *object, const char *name,
                                   struct hub_file *out)
{
    const char *path;
    enum tutti_status st = json_get_string(at, object, name, &path);
    if (st != TUTTI_OK)
        return st;
    if (strlen(path) != json_string_length(json_object_get(object, name)) || !hub_path_is_safe(path))
        return json_invalid(at, name,
                            "'%.120s' would leave the model's folder, or is no file name; nothing of this "
                            "model was downloaded",
                            path);
    out->path = strdup(path);
    return out->path ? TUTTI_OK : error_set(at->err, TUTTI_E_MEMORY, "out of memory for the listing");
}

static enum tutti_status read_size(const struct json_place *at, const json_t *object, const char *name,
                                   struct hub_file *out)
{
    int64_t size = 0;
    enum tutti_status st = json_get_int(at, object, name, 0, HUB_MAX_FILE_BYTES, &size);
    out->n_bytes = (uint64_t)size;
    return st;
}

/* Hugging Face: {"rfilename", "size", "blobId", "lfs": {"sha256", "size"}} */
static enum tutti_status read_sibling(struct json_place *at, const json_t *object, struct hub_file *out)
{
    enum tutti_status st = read_path(at, object, "rfilename", out);
    const json_t *lfs = json_field(object, "lfs");
    if (st != TUTTI_OK)
        return st;
    if (lfs && !json_is_object(lfs))
        return json_unexpected(at, "lfs", lfs, "an object");
    st = read_size(at, object, "size", out);
    if (st != TUTTI_OK || !lfs)
        return st == TUTTI_OK ? read_checksum(at, object, "blobId", false, &out->checksum) : st;
    size_t n = strlen(at->prefix);
    snprintf(at->prefix + n, sizeof at->prefix - n, "lfs.");
    st = read_checksum(at, lfs, "sha256", true, &out->checksum);
    at->prefix[n] = '\0';
    return st;
}

/* ModelScope: {"Path", "Size", "Sha256", "Type": "blob" or "tree"} */
static enum tutti_status read_blob(struct json_place *at, const json_t *object, struct hub_file *out)
{
    enum tutti_status st = read_path(at, object, "Path", out);
    if (st == TUTTI_OK)
        st = read_size(at, object, "Size", out);
    return st == TUTTI_OK ? read_checksum(at, object, "Sha256", true, &out->checksum) : st;
}

static bool is_folder(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "Type"));
    return type && strcmp(type, "tree") == 0;
}

static int compare_files(const void *a, const void *b)
{
    return strcmp(((const struct hub_file *)a)->path, ((const struct hub_file *)b)->path);
}

static enum tutti_status read_files(struct hub_listing *out, enum hub_layout layout, const json_t *list,
                                    const char *name, struct json_place *at)
{
    size_t n = json_array_size(list);
    if (!json_is_array(list) || n > HUB_MAX_FILES)
        return json_unexpected(at, name, list, "a list of at most 100,000 files");
    out->files = calloc(n + 1, sizeof *out->files);
    if (!out->files)
        return error_set(at->err, TUTTI_E_MEMORY, "out of memory for the listing");
    for (size_t i = 0; i < n; i++) {
        const json_t *object = json_array_get(list, i);
        if (layout == HUB_MODELSCOPE && is_folder(object))
            continue;
        snprintf(at->prefix, sizeof at->prefix, "%s[%zu].", name, i);
        struct hub_file
            *file = &out->files[out->n_files++]; /* cleared with the listing, even if incomplete */
        enum tutti_status st = !json_is_object(object)    ? json_unexpected(at, "", object, "an object")
                               : layout == HUB_MODELSCOPE ? read_blob(at, object, file)
                                                          : read_sibling(at, object, file);
        if (st != TUTTI_OK)
            return st;
    }
    at->prefix[0] = '\0';
    qsort(out->files, out->n_files, sizeof *out->files, compare_files);
    for (size_t i = 1; i < out->n_files; i++)
        if (compare_files(&out->files[i - 1], &out->files[i]) == 0)
            return json_invalid(at, name, "duplicate file '%.120s'", out->files[i].path);
    return TUTTI_OK;
}

static enum tutti_status read_hugging_face(struct hub_listing *out, const json_t *root, struct json_place *at)
{
    const char *commit = json_string_value(json_object_get(root, "sha"));
    struct hub_checksum hex;
    if (!commit || !hub_checksum_read(&hex, commit))
        return json_unexpected(at, "sha", json_object_get(root, "sha"), "the hexadecimal id of a commit");
    snprintf(out->commit, sizeof out->commit, "%s", hex.text);
    return read_files(out, HUB_HUGGING_FACE, json_object_get(root, "siblings"), "siblings", at);
}

static enum tutti_status read_modelscope(struct hub_listing *out, const json_t *root, struct json_place *at)
{
    const json_t *code = json_object_get(root, "Code");
    const char *message = json_string_value(json_object_get(root, "Message"));
    if (!json_is_integer(code))
        return json_unexpected(at, "Code", code, "an integer");
    if (json_integer_value(code) != 200)
        return error_set(at->err, TUTTI_E_NOT_FOUND, "%s: the hub says: %.160s (code %lld)", at->file,
                         message ? message : "no reason", (long long)json_integer_value(code));
    return read_files(out, HUB_MODELSCOPE, json_object_get(json_object_get(root, "Data"), "Files"),
                      "Data.Files", at);
}

enum tutti_status hub_listing_read(struct hub_listing *out, enum hub_layout layout, const char *bytes,
                                   size_t n_bytes, const char *url, struct tutti_error *err)
{
    struct json_place at = { .file = url, .err = err };
    json_error_t why;
    *out = (struct hub_listing){ 0 };
    if (n_bytes > HUB_MAX_LISTING_BYTES)
        return error_set(err, TUTTI_E_FORMAT, "%s: %zu bytes, expected at most %d", url, n_bytes,
                         HUB_MAX_LISTING_BYTES);
    json_t *root = json_load_wide(bytes, n_bytes, JSON_ALLOW_NUL, &why);
    if (!root)
        return error_set(err, TUTTI_E_FORMAT,
                         "%s: the answer is not JSON: %s; check that this is the URL of a hub with %s layout",
                         url, why.text, layout == HUB_MODELSCOPE ? "ModelScope's" : "Hugging Face's");
    enum tutti_status st = !json_is_object(root)      ? json_unexpected(&at, "", root, "an object")
                           : layout == HUB_MODELSCOPE ? read_modelscope(out, root, &at)
                                                      : read_hugging_face(out, root, &at);
    json_decref(root);
    return st;
}

void hub_listing_clear(struct hub_listing *listing)
{
    for (size_t i = 0; i < listing->n_files; i++)
        free(listing->files[i].path);
    free(listing->files);
    *listing = (struct hub_listing){ 0 };
}

const struct hub_file *hub_listing_find(const struct hub_listing *listing, const char *path)
{
    struct hub_file key = { .path = (char *)(uintptr_t)path };
    return listing->n_files == 0 ? NULL
                                 : bsearch(&key, listing->files, listing->n_files, sizeof key, compare_files);
}
