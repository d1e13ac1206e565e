/* tutti load in builds without libcurl: says so. */
#include "cli/options/command.h"

static const struct option_group GROUPS[] = { { .title = NULL } };

static enum tutti_status run_load(const void *values, const char *const *operands, struct tutti_error *err)
{
    (void)values, (void)operands;
    return error_set(
        err, TUTTI_E_UNSUPPORTED,
        "this tutti was built without libcurl, which \"tutti load\" needs; install libcurl4-openssl-dev "
        "and build again");
}

const struct command COMMAND_LOAD = {
    .name = "load",
    .summary = "measure a server under load (not in this build)",
    .about = "This tutti was built without libcurl, which \"tutti load\" needs.",
    .options = OPTION_SET(GROUPS, "URL", 0, 1, ""),
    .values_bytes = 1,
    .run = run_load,
};
