#include "cli/options/model_path.h"

#include "base/utf8.h"
#include "cli/terminal/numbers.h"
#include "cli/terminal/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct pull_view {
    const struct hub_name *name;
    struct progress progress;
};

static void on_progress(void *user, uint64_t n_done, uint64_t n_total)
{
    struct pull_view *view = user;
    progress_update(&view->progress, n_done, n_total);
}

/* Prints a text that may quote the hub. */
static void print_line(struct pull_view *view, const char *text)
{
    char line[700];
    snprintf(line, sizeof line, "%s", text);
    utf8_make_printable(line, strlen(line));
    progress_end(&view->progress);
    fprintf(stderr, "tutti: %s\n", line);
}

static void on_note(void *user, const char *text)
{
    print_line(user, text);
}

static void on_describe(void *user, const char *commit, const struct hub_choice *choice, uint64_t n_there)
{
    struct pull_view *view = user;
    struct buf name = { 0 };
    char text[600], size[NUMBER_SIZE_BYTES], there[NUMBER_SIZE_BYTES];
    if (!hub_name_write(view->name, &name))
        return; /* the download itself will say that memory is short */
    snprintf(text, sizeof text, "%s%s%.12s: %zu file%s, %s%s%s%s", name.bytes, *commit ? ", commit " : "",
             commit, choice->n_files, choice->n_files == 1 ? "" : "s",
             number_write_size(size, choice->n_bytes), n_there > 0 ? " (" : "",
             n_there > 0 ? number_write_size(there, n_there) : "", n_there > 0 ? " are here already)" : "");
    print_line(view, text);
    for (size_t i = 0; i < choice->n_files; i++) {
        snprintf(text, sizeof text, "  %10s  %.500s", number_write_size(size, choice->files[i]->n_bytes),
                 choice->files[i]->path);
        print_line(view, text);
    }
    buf_clear(&name);
}

enum tutti_status model_path_pull(const struct hub_name *name, int n_connections, int n_retries,
                                  struct buf *path, bool *is_new, struct tutti_error *err)
{
    struct pull_view view = { .name = name };
    const struct hub_pull_options options = {
        .n_connections = n_connections,
        .n_retries = n_retries,
        .user = &view,
        .describe = on_describe,
        .progress = on_progress,
        .note = on_note,
    };
    progress_begin(&view.progress, "downloading", PROGRESS_BYTES);
    enum tutti_status st = hub_pull(name, &options, path, is_new, err);
    progress_end(&view.progress);
    return st;
}

enum tutti_status model_path_find(const char *model, char **out, struct tutti_error *err)
{
    const char *equals = strchr(model, '='), *text = model;
    struct hub_name name;
    struct buf path = { 0 };
    bool is_there = false, is_new;
    *out = NULL;
    if (equals && !hub_name_is(model))
        text = equals + 1;
    if (!hub_name_is(text))
        return TUTTI_OK;
    enum tutti_status st = hub_name_parse(&name, text, NULL, err);
    if (st == TUTTI_OK && !buf_printf(&path, "%.*s", (int)(text - model), model))
        st = error_out_of_memory(model, err);
    if (st == TUTTI_OK)
        st = hub_find(&name, &path, &is_there, err);
    if (st == TUTTI_OK && !is_there)
        st = model_path_pull(&name, PULL_CONNECTIONS, PULL_RETRIES, &path, &is_new, err);
    if (st == TUTTI_OK)
        *out = path.bytes;
    else
        buf_clear(&path);
    return st;
}
