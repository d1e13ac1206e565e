#include "cli/options/model_places.h"

#include "base/files/path_name.h"
#include "base/text.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char GGUF[] = ".gguf";

static bool exists(const char *folder, const char *name)
{
    char path[4096];
    int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    return n > 0 && (size_t)n < sizeof path && access(path, F_OK) == 0;
}

static bool is_folder(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

static bool is_model_folder(const char *path)
{
    return is_folder(path) && (exists(path, "config.json") || exists(path, "params.json"));
}

/* What requests and metrics call a model. */
static bool is_name(const char *text, size_t n)
{
    static const char OTHERS[] = "._-/";
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!is_letter && !text_is_digit(c) && !strchr(OTHERS, c))
            return false;
    }
    return n > 0 && n <= 128;
}

static enum tutti_status add(struct model_places *out, const char *name, size_t n_name, const char *path,
                             struct tutti_error *err)
{
    struct model_place *place = &out->list[out->n];
    if (out->n == MODEL_PLACES_MOST)
        return error_set(err, TUTTI_E_LIMIT, "%s: one server has at most %d models", path, MODEL_PLACES_MOST);
    if (!is_name(name, n_name))
        return error_set(
            err, TUTTI_E_ARGUMENT,
            "%s: expected a name of letters, digits, '.', '_', '-' and '/' before =, found '%.*s'", path,
            (int)(n_name < 128 ? n_name : 128), name);
    for (int i = 0; i < out->n; i++)
        if (strlen(out->list[i].name) == n_name && !memcmp(out->list[i].name, name, n_name))
            return error_set(err, TUTTI_E_ARGUMENT,
                             "%s: there is another model of the name %.*s: expected NAME=%s", path,
                             (int)n_name, name, path);
    place->name = strndup(name, n_name);
    place->path = strdup(path);
    out->n++;
    if (!place->name || !place->path)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the names of models");
    return TUTTI_OK;
}

/* The name of a path without one: its last part. */
static enum tutti_status add_path(struct model_places *out, const char *path, struct tutti_error *err)
{
    char name[256];
    path_name(name, sizeof name, path);
    size_t n = strlen(name);
    if (n > sizeof GGUF - 1 && text_ends_with(name, GGUF))
        n -= sizeof GGUF - 1;
    return add(out, name, n, path, err);
}

static enum tutti_status add_operand(struct model_places *out, const char *operand, struct tutti_error *err)
{
    const char *equals = strchr(operand, '=');
    if (!equals || access(operand, F_OK) == 0)
        return add_path(out, operand, err);
    if (equals[1] == '\0')
        return error_set(err, TUTTI_E_ARGUMENT, "%s: expected NAME=MODEL", operand);
    return add(out, operand, (size_t)(equals - operand), equals + 1, err);
}

/* Parts of one model but the first. */
static bool is_later_part(const char *name)
{
    const char *of = strstr(name, "-of-");
    return of && of - name >= 6 && of[-6] == '-' && strncmp(of - 5, "00001", 5) != 0;
}

static int is_candidate(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && !is_later_part(entry->d_name);
}

static enum tutti_status add_folder(struct model_places *out, const char *folder, struct tutti_error *err)
{
    struct dirent **entries;
    int n = scandir(folder, &entries, is_candidate, alphasort);
    enum tutti_status st = TUTTI_OK;
    if (n < 0)
        return error_set(err, TUTTI_E_IO, "%s: cannot read this folder: %s", folder, strerror(errno));
    for (int i = 0; i < n; i++) {
        char path[4096];
        int n_path = snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        bool fits = n_path > 0 && (size_t)n_path < sizeof path;
        if (st == TUTTI_OK && fits && (text_ends_with(path, GGUF) ? !is_folder(path) : is_model_folder(path)))
            st = add_path(out, path, err);
        free(entries[i]);
    }
    free(entries);
    return st;
}

enum tutti_status model_places_read(struct model_places *out, const char *const *operands,
                                    struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    *out = (struct model_places){ .n = 0 };
    const char *first = operands[0];
    if (!operands[1] && is_folder(first) && !is_model_folder(first))
        return add_folder(out, first, err); /* none in it: that of a model says what is missing */
    if (!operands[1] && (!strchr(first, '=') || access(first, F_OK) == 0))
        return TUTTI_OK;
    for (; st == TUTTI_OK && *operands; operands++)
        st = add_operand(out, *operands, err);
    return st;
}

void model_places_clear(struct model_places *places)
{
    for (int i = 0; i < places->n; i++) {
        free(places->list[i].name);
        free(places->list[i].path);
    }
    places->n = 0;
}
