#include "hub/record.h"

#include "base/files/mapping.h"
#include "base/files/new_file.h"
#include "base/json/json_field.h"
#include "base/json/json_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static json_t *file_json(const void *user, size_t index)
{
    const struct hub_file *file = ((const struct hub_file *const *)user)[index];
    const struct json_member members[] = {
        { "path", json_string(file->path) },
        { "size", json_integer((json_int_t)file->n_bytes) },
        { "checksum", json_string(file->checksum.text) },
    };
    return JSON_MEMBERS(members);
}

enum tutti_status hub_record_write(const char *folder, const struct hub_listing *listing,
                                   const struct hub_choice *choice, struct tutti_error *err)
{
    const struct json_member members[] = {
        { "commit", json_string(listing->commit) },
        { "open", json_string(choice->open ? choice->open->path : "") },
        { "pulled_at", json_integer((json_int_t)time(NULL)) },
        { "files", json_list(choice->n_files, file_json, choice->files) },
    };
    json_t *root = JSON_MEMBERS(members);
    char *text = root ? json_dumps(root, JSON_INDENT(1)) : NULL, *path = NULL;
    if (asprintf(&path, "%s/%s", folder, HUB_RECORD_FILE) < 0)
        path = NULL;
    enum tutti_status st = text && path ? new_file_put(path, text, strlen(text), err)
                                        : error_out_of_memory(folder, err);
    free(path);
    free(text);
    json_decref(root);
    return st;
}

static enum tutti_status read_record_files(struct hub_listing *out, const json_t *list, struct json_place *at)
{
    size_t n = json_array_size(list);
    if (n == 0 || n > HUB_MAX_FILES)
        return json_unexpected(at, "files", list, "a list of at most 100,000 files");
    out->files = calloc(n, sizeof *out->files);
    if (!out->files)
        return error_out_of_memory(at->file, at->err);
    for (size_t i = 0; i < n; i++) {
        const json_t *object = json_array_get(list, i);
        const char *path, *checksum;
        int64_t size;
        snprintf(at->prefix, sizeof at->prefix, "files[%zu].", i);
        enum tutti_status st = json_get_string(at, object, "path", &path);
        if (st == TUTTI_OK)
            st = json_get_string(at, object, "checksum", &checksum);
        if (st == TUTTI_OK)
            st = json_get_int(at, object, "size", 0, HUB_MAX_FILE_BYTES, &size);
        if (st == TUTTI_OK &&
            (!hub_path_is_safe(path) || !hub_checksum_read(&out->files[i].checksum, checksum)))
            st = json_invalid(at, "path", "expected a file with its checksum");
        if (st != TUTTI_OK)
            return st;
        out->files[i].n_bytes = (uint64_t)size;
        out->files[i].path = strdup(path);
        if (!out->files[i].path)
            return error_out_of_memory(at->file, at->err);
        out->n_files++;
    }
    at->prefix[0] = '\0';
    return TUTTI_OK;
}

enum tutti_status hub_record_read(struct hub_record *out, const char *folder, bool *is_there,
                                  struct tutti_error *err)
{
    struct mapping map = { 0 };
    struct tutti_error inner;
    char *path = NULL;
    json_t *root = NULL;
    json_error_t why;
    *out = (struct hub_record){ 0 };
    *is_there = false;
    if (asprintf(&path, "%s/%s", folder, HUB_RECORD_FILE) < 0)
        return error_out_of_memory(folder, err);
    enum tutti_status st = mapping_open(&map, path, &inner);
    if (st != TUTTI_OK) {
        st = st == TUTTI_E_NOT_FOUND ? TUTTI_OK : error_set(err, st, "%s", inner.text);
        goto done;
    }
    struct json_place at = { .file = path, .err = err };
    const char *open, *commit;
    root = json_loadb(map.bytes ? (const char *)map.bytes : "", map.n_bytes, 0, &why);
    st = json_is_object(root) ? json_get_string(&at, root, "open", &open)
                              : error_set(err, TUTTI_E_FORMAT, "%s: it is damaged; remove its folder", path);
    if (st == TUTTI_OK)
        st = json_get_string(&at, root, "commit", &commit);
    if (st == TUTTI_OK)
        st = json_get_int(&at, root, "pulled_at", 0, INT64_MAX, &out->pulled_at);
    if (st == TUTTI_OK && *open && !hub_path_is_safe(open))
        st = json_invalid(&at, "open", "expected the path of a file in this folder");
    if (st == TUTTI_OK)
        st = read_record_files(&out->listing, json_object_get(root, "files"), &at);
    if (st != TUTTI_OK)
        goto done;
    snprintf(out->listing.commit, sizeof out->listing.commit, "%s", commit);
    out->open = strdup(open);
    st = out->open ? TUTTI_OK : error_out_of_memory(path, err);
    *is_there = st == TUTTI_OK;
done:
    json_decref(root);
    mapping_close(&map);
    free(path);
    return st;
}

void hub_record_clear(struct hub_record *record)
{
    hub_listing_clear(&record->listing);
    free(record->open);
    *record = (struct hub_record){ 0 };
}
