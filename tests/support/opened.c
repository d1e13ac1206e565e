#include "support/opened.h"

#include "support/on_card.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static tutti_model *open_or_fail(const char *path, struct tutti_model_options options)
{
    char fixture[PATH_MAX];
    tutti_model *model = NULL;
    struct tutti_error err = { 0 };
    options.device = getenv("TUTTI_TEST_DEVICE");
    snprintf(fixture, sizeof fixture, "%s%s", path[0] == '/' ? "" : TEST_FIXTURES "/", path);
    (void)next_division(&options, "");
    enum tutti_status st;
    do {
        st = tutti_model_open(&model, fixture, &options, &err);
    } while (st != TUTTI_OK && next_division(&options, err.param));
    if (st != TUTTI_OK)
        fail_msg("%s", err.text);
    return model;
}

tutti_model *opened_model(const char *path, const char *weight_type, const char *kv_type, int n_threads)
{
    return open_or_fail(path, (struct tutti_model_options){
                                  .weight_type = weight_type, .kv_type = kv_type, .n_threads = n_threads });
}

tutti_model *opened_on_rank(const char *path, tutti_ranks *ranks)
{
    return open_or_fail(path, (struct tutti_model_options){ .n_threads = 1, .ranks = ranks });
}

tutti_engine *opened_engine(tutti_model *model, const struct tutti_engine_options *options,
                            const struct engine_hooks *hooks)
{
    tutti_engine *engine = NULL;
    struct tutti_error err = { 0 };
    if (engine_open(&engine, model_of(model), options, hooks, &err) != TUTTI_OK)
        fail_msg("%s", err.text);
    return engine;
}
