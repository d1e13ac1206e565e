/* tutti list: shows the downloaded models. */
#include "base/json/json_list.h"
#include "cli/options/command.h"
#include "cli/terminal/numbers.h"
#include "cli/terminal/output.h"
#include "hub/pull.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct list_values {
    bool json;
};

#define VALUES struct list_values
static const struct option OPTIONS[] = {
    FLAG_OPTION(VALUES, json, "json", "print a JSON list"),
    { .name = NULL },
};

static const struct option_group GROUPS[] = {
    { "Options", OPTIONS, 0 },
    { .title = NULL },
};

/* The model's name and path. path "": incomplete. */
static enum tutti_status describe(const struct hub_cached *model, struct buf *name, struct buf *path,
                                  struct tutti_error *err)
{
    bool is_there;
    if (!hub_name_write(&model->name, name))
        return error_out_of_memory("the list of models", err);
    return model->is_complete ? hub_find(&model->name, path, &is_there, err) : TUTTI_OK;
}

static const char *state_of(const struct hub_cached *model)
{
    return model->is_complete && model->is_partial ? "update incomplete"
           : model->is_complete                    ? "complete"
           : model->is_partial                     ? "incomplete"
                                                   : "damaged";
}

static enum tutti_status print_json(const struct hub_cached *models, size_t n, struct tutti_error *err)
{
    json_t *list = json_array();
    enum tutti_status st = list ? TUTTI_OK : error_out_of_memory("the list of models", err);
    for (size_t i = 0; i < n && st == TUTTI_OK; i++) {
        struct buf name = { 0 }, path = { 0 };
        st = describe(&models[i], &name, &path, err);
        if (st == TUTTI_OK) {
            const struct json_member members[] = {
                { "name", json_string(name.bytes) },
                { "path", path.bytes ? json_string(path.bytes) : json_null() },
                { "bytes", json_integer((json_int_t)models[i].n_bytes) },
                { "pulled_at", json_integer(models[i].pulled_at) },
                { "state", json_string(state_of(&models[i])) },
            };
            if (json_array_append_new(list, JSON_MEMBERS(members)) != 0)
                st = error_out_of_memory("the list of models", err);
        }
        buf_clear(&name);
        buf_clear(&path);
    }
    if (st == TUTTI_OK)
        output_json(list, true);
    json_decref(list);
    return st;
}

static enum tutti_status print_lines(const struct hub_cached *models, size_t n, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    for (size_t i = 0; i < n && st == TUTTI_OK; i++) {
        const struct hub_cached *model = &models[i];
        struct buf name = { 0 }, path = { 0 };
        char size[NUMBER_SIZE_BYTES], day[32] = "          ";
        struct tm local;
        time_t seconds = (time_t)model->pulled_at;
        st = describe(model, &name, &path, err);
        if (model->is_complete && localtime_r(&seconds, &local))
            strftime(day, sizeof day, "%Y-%m-%d", &local);
        bool is_plain = model->is_complete && !model->is_partial;
        if (st == TUTTI_OK)
            output_printf("%10s  %s  %s%s%s%s\n", number_write_size(size, model->n_bytes), day, name.bytes,
                          is_plain ? "" : " (", is_plain ? "" : state_of(model), is_plain ? "" : ")");
        buf_clear(&name);
        buf_clear(&path);
    }
    return st;
}

static enum tutti_status run_list(const void *v, const char *const *operands, struct tutti_error *err)
{
    const struct list_values *values = v;
    struct hub_cached *models = NULL;
    size_t n = 0;
    (void)operands;
    enum tutti_status st = hub_list(&models, &n, err);
    if (st == TUTTI_OK)
        st = values->json ? print_json(models, n, err) : print_lines(models, n, err);
    free(models);
    return st;
}

const struct command COMMAND_LIST = {
    .name = "list",
    .summary = "show the downloaded models",
    .about = "Prints for each model in the cache its size on disk, the day of its download and its name. "
             "Incomplete downloads are shown as such; tutti pull continues them.",
    .example = "tutti list",
    .options = OPTION_SET(GROUPS, "", 0, 0, ""),
    .values_bytes = sizeof(struct list_values),
    .run = run_list,
};
