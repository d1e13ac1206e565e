/* tutti rm: removes downloaded models. */
#include "cli/options/command.h"
#include "cli/terminal/numbers.h"
#include "hub/cache.h"

#include <stdio.h>

struct rm_values {
    const char *hub;
};

#define VALUES struct rm_values
static const struct option OPTIONS[] = {
    TEXT_OPTION(VALUES, hub, "hub", "URL", "the hub of names without a URL, as for tutti pull"),
    { .name = NULL },
};

static const struct option_group GROUPS[] = {
    { "Options", OPTIONS, 0 },
    { .title = NULL },
};

static enum tutti_status run_rm(const void *v, const char *const *operands, struct tutti_error *err)
{
    const struct rm_values *values = v;
    struct hub_name name;
    enum tutti_status st = TUTTI_OK;
    /* All names first: a wrong one removes nothing. */
    for (const char *const *o = operands; *o && st == TUTTI_OK; o++)
        st = hub_name_parse(&name, *o, values->hub, err);
    for (const char *const *o = operands; *o && st == TUTTI_OK; o++) {
        char size[NUMBER_SIZE_BYTES];
        uint64_t n_bytes = 0;
        st = hub_name_parse(&name, *o, values->hub, err);
        if (st == TUTTI_OK)
            st = hub_remove(&name, &n_bytes, err);
        if (st == TUTTI_OK)
            fprintf(stderr, "tutti: %s: %s freed\n", *o, number_write_size(size, n_bytes));
    }
    return st;
}

enum { MAX_NAMES = 1000 };

const struct command COMMAND_RM = {
    .name = "rm",
    .summary = "remove downloaded models",
    .about =
        "Removes models from the cache, also incomplete ones. Names are those of tutti list. A program that "
        "has a model open keeps it until it ends.",
    .example = "tutti rm hf:Qwen/Qwen3-0.6B-GGUF:q8_0",
    .options = OPTION_SET(GROUPS, "NAME...", 1, MAX_NAMES,
                          "expected the name of a model, as tutti list prints it"),
    .values_bytes = sizeof(struct rm_values),
    .run = run_rm,
};
