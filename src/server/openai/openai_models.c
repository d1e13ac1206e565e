/* GET /v1/models and /v1/models/{id}: https://platform.openai.com/docs/api-reference/models */
#include "server/app.h"

#include <string.h>

int app_max_context(struct app *app)
{
    struct tutti_stats stats;
    tutti_engine_stats(app->engine, &stats);
    return stats.max_context;
}

json_t *app_model_name(const struct app *app, const char *adapter)
{
    return json_sprintf("%s%s%s", app->model_id, adapter ? ":" : "", adapter ? adapter : "");
}

/* adapter NULL: the model itself. root and parent are vLLM's fields of adapters. */
static json_t *model_value(struct app *app, const char *adapter)
{
    return json_pack("{s:o, s:s, s:I, s:s, s:i, s:s*, s:s*}", "id", app_model_name(app, adapter), "object",
                     "model", "created", (json_int_t)app->start_time, "owned_by", "tutti", "max_model_len",
                     app_max_context(app), "root", adapter, "parent", adapter ? app->model_id : NULL);
}

static json_t *model_list(struct app *app)
{
    json_t *list = json_array();
    json_array_append_new(list, model_value(app, NULL));
    for (int i = 0; i < tutti_model_n_adapters(app->model); i++)
        json_array_append_new(list, model_value(app, tutti_model_adapter_name(app->model, i)));
    return json_pack("{s:s, s:o}", "object", "list", "data", list);
}

void models_request(struct app *app, struct http_conn *conn)
{
    const char *name = http_request(conn)->head.path + strlen("/v1/models");
    const char *adapter;
    if (!*name)
        app_reply_json(conn, 200, model_list(app));
    else if (app_check_model(app, conn, name + 1, &adapter))
        app_reply_json(conn, 200, model_value(app, adapter));
}
