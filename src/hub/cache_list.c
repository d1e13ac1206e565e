/* Finds and removes the models in the cache. */
#include "base/containers/array.h"
#include "base/text.h"
#include "hub/cache.h"

#include <errno.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MODEL_LEVEL = 4 }; /* LAYOUT/HUB/ORG/NAME */

static const char *const KINDS[] = { "models", "partial" };

/* Appends text with each %XX decoded. */
static bool add_decoded(struct buf *out, const char *text)
{
    bool ok = true;
    for (const char *c = text; *c && ok; c++) {
        uint32_t byte;
        bool is_escaped = *c == '%' && hex_read(c + 1, strlen(c + 1), 2, &byte);
        char decoded = is_escaped ? (char)byte : *c;
        ok = buf_add(out, &decoded, 1);
        c += is_escaped ? 2 : 0;
    }
    return ok;
}

/* Reads "LAYOUT/HUB/ORG/NAME..." back. False: no folder of the cache, or out of memory. */
static bool name_of_place(struct hub_name *out, const char *place)
{
    struct buf text = { 0 }, part = { 0 };
    const char *hub = strchr(place, '/'), *org = hub ? strchr(hub + 1, '/') : NULL;
    bool ok = org && buf_printf(&text, "%.*s:", (int)(hub - place), place) &&
              buf_add(&part, hub + 1, (size_t)(org - hub - 1)) &&
              buf_add_string(&text, strncmp(part.bytes, "http:", 5) == 0 ? "" : "https://") &&
              add_decoded(&text, part.bytes) && add_decoded(&text, org) && hub_name_is(text.bytes) &&
              hub_name_parse(out, text.bytes, NULL, NULL) == TUTTI_OK;
    buf_clear(&text);
    buf_clear(&part);
    return ok;
}

static int compare_names(const void *a, const void *b)
{
    const struct hub_cached *x = a, *y = b;
    int order = strcmp(x->name.model, y->name.model);
    if (order == 0)
        order = strcmp(x->name.hub, y->name.hub);
    if (order == 0)
        order = strcmp(x->name.revision, y->name.revision);
    if (order == 0)
        order = strcmp(x->name.selection, y->name.selection);
    return order != 0 ? order : (int)x->name.layout - (int)y->name.layout;
}

/* Bytes that the files below path occupy. */
static uint64_t tree_bytes(const char *path)
{
    char *paths[] = { (char *)(uintptr_t)path, NULL };
    FTS *tree = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    uint64_t n = 0;
    for (FTSENT *entry; tree && (entry = fts_read(tree));)
        if (entry->fts_info == FTS_F)
            n += 512 * (uint64_t)entry->fts_statp->st_blocks;
    if (tree)
        fts_close(tree);
    return n;
}

/* Adds a folder at MODEL_LEVEL. kind: of KINDS. */
static enum tutti_status add_cached(struct hub_cached **list, size_t *n, const char *place,
                                    const char *folder, int kind, struct tutti_error *err)
{
    struct hub_cached found = { .is_partial = kind == 1 };
    if (!name_of_place(&found.name, place))
        return TUTTI_OK;
    if (kind == 0) {
        struct hub_record record;
        if (hub_record_read(&record, folder, &found.is_complete, NULL) == TUTTI_OK)
            found.pulled_at = record.pulled_at;
        hub_record_clear(&record);
    }
    found.n_bytes = tree_bytes(folder);
    for (size_t i = 0; i < *n; i++)
        if (compare_names(&(*list)[i], &found) == 0) {
            (*list)[i].n_bytes += found.n_bytes;
            (*list)[i].is_partial |= found.is_partial;
            return TUTTI_OK;
        }
    if (!array_resize(list, *n + 1, sizeof **list))
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the list of models");
    (*list)[(*n)++] = found;
    return TUTTI_OK;
}

static enum tutti_status list_kind(struct hub_cached **list, size_t *n, const char *root, int kind,
                                   struct tutti_error *err)
{
    char *top = NULL;
    if (asprintf(&top, "%s/%s", root, KINDS[kind]) < 0)
        return error_out_of_memory(root, err);
    char *paths[] = { top, NULL };
    FTS *tree = access(top, F_OK) == 0 ? fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, NULL) : NULL;
    enum tutti_status st = TUTTI_OK;
    for (FTSENT *entry; tree && st == TUTTI_OK && (entry = fts_read(tree));) {
        if (entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR) {
            errno = entry->fts_errno;
            st = error_from_errno(entry->fts_path, err);
        } else if (entry->fts_info == FTS_D && entry->fts_level == MODEL_LEVEL) {
            st = add_cached(list, n, entry->fts_path + strlen(top) + 1, entry->fts_path, kind, err);
            fts_set(tree, entry, FTS_SKIP);
        }
    }
    if (tree)
        fts_close(tree);
    free(top);
    return st;
}

enum tutti_status hub_list(struct hub_cached **out, size_t *n, struct tutti_error *err)
{
    char *root = hub_cache_root(err);
    *out = NULL;
    *n = 0;
    if (!root)
        return err->status;
    enum tutti_status st = TUTTI_OK;
    for (int kind = 0; kind < 2 && st == TUTTI_OK; kind++)
        st = list_kind(out, n, root, kind, err);
    free(root);
    if (st == TUTTI_OK && *n > 0)
        qsort(*out, *n, sizeof **out, compare_names);
    if (st != TUTTI_OK) {
        free(*out);
        *out = NULL;
        *n = 0;
    }
    return st;
}

void hub_remove_empty_parents(char *path, const char *root)
{
    for (char *slash; (slash = strrchr(path, '/')) && (size_t)(slash - path) > strlen(root);) {
        *slash = '\0';
        if (rmdir(path) != 0)
            return;
    }
}

enum tutti_status hub_remove(const struct hub_name *name, uint64_t *n_bytes, struct tutti_error *err)
{
    struct hub_places places;
    struct buf text = { 0 };
    int fd = -1;
    enum tutti_status st = hub_places_of(&places, name, err);
    *n_bytes = 0;
    if (st != TUTTI_OK)
        goto done;
    if (access(places.complete, F_OK) != 0 && access(places.partial, F_OK) != 0) {
        st = hub_name_write(name, &text)
                 ? error_set(err, TUTTI_E_NOT_FOUND, "%s is not in %s; tutti list shows what is", text.bytes,
                             places.root)
                 : error_out_of_memory(places.root, err);
        goto done;
    }
    st = hub_lock(&places, NULL, NULL, &fd, err);
    if (st != TUTTI_OK)
        goto done;
    *n_bytes = tree_bytes(places.complete) + tree_bytes(places.partial) + tree_bytes(places.aside);
    st = hub_remove_tree(places.complete, err);
    if (st == TUTTI_OK)
        st = hub_remove_tree(places.aside, err);
    if (st == TUTTI_OK)
        st = hub_remove_tree(places.partial, err);
    if (st == TUTTI_OK) {
        hub_remove_empty_parents(places.complete, places.root);
        hub_remove_empty_parents(places.partial, places.root);
    }
done:
    if (fd >= 0)
        close(fd);
    buf_clear(&text);
    hub_places_clear(&places);
    return st;
}
