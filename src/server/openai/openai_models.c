/* GET /v1/models and /v1/models/{id}, for the clients of both APIs:
 * https://platform.openai.com/docs/api-reference/models, https://docs.anthropic.com/en/api/models-list */
#include "base/system/clock.h"
#include "server/models/model_set.h"

#include <string.h>
#include <time.h>

int app_max_context(const struct app *app)
{
    struct tutti_stats stats;
    tutti_engine_stats(app->engine, &stats);
    return stats.max_context;
}

enum tutti_embedding app_embedding(const struct app *app)
{
    return app->options->embedding ? app->options->embedding : app->info.embedding;
}

json_t *app_model_name(const struct app *app, const char *adapter)
{
    return json_sprintf("%s%s%s", app->model_id, adapter ? ":" : "", adapter ? adapter : "");
}

static const struct {
    enum server_ability ability;
    const char *name;
} ABILITIES[] = {
    { SERVER_CAN_COMPLETE, "completion" }, { SERVER_CAN_CHAT, "chat" },
    { SERVER_CAN_INFILL, "infill" },       { SERVER_CAN_CALL_TOOLS, "tools" },
    { SERVER_CAN_REASON, "reasoning" },    { SERVER_CAN_EMBED, "embeddings" },
    { SERVER_CAN_RANK, "rerank" },
};

unsigned server_abilities(const struct tutti_model_info *info)
{
    bool generates = !info->only_embeds;
    unsigned abilities = generates ? SERVER_CAN_COMPLETE : 0;
    abilities |= generates && info->has_chat ? SERVER_CAN_CHAT : 0;
    abilities |= generates && info->has_infill ? SERVER_CAN_INFILL : 0;
    abilities |= generates && info->tool_form ? SERVER_CAN_CALL_TOOLS : 0;
    abilities |= generates && info->reasoning_form ? SERVER_CAN_REASON : 0;
    abilities |= !info->has_score ? SERVER_CAN_EMBED : 0;
    abilities |= info->has_score || info->embedding != TUTTI_EMBEDDING_NONE ? SERVER_CAN_RANK : 0;
    return abilities;
}

json_t *app_abilities(unsigned abilities)
{
    json_t *names = json_array();
    for (size_t i = 0; i < sizeof ABILITIES / sizeof *ABILITIES; i++)
        if (abilities & ABILITIES[i].ability)
            json_array_append_new(names, json_string(ABILITIES[i].name));
    return names;
}

json_t *app_device(const char *type, const struct tutti_device *device)
{
    if (!type || !*type)
        return NULL;
    json_t *value = json_pack("{s:s}", "type", type);
    if (!value || !device->name[0])
        return value;
    json_object_set_new(value, "id", json_string(device->id));
    json_object_set_new(value, "name", json_string(device->name));
    json_object_set_new(value, "memory_bytes", json_integer((json_int_t)device->memory_bytes));
    if (device->free_bytes > 0)
        json_object_set_new(value, "memory_used_bytes",
                            json_integer((json_int_t)(device->memory_bytes - device->free_bytes)));
    return value;
}

/* adapter NULL: the model itself. root and parent are vLLM's fields of adapters. From type on the fields
 * are those of Anthropic's API. */
static json_t *model_value(struct app *app, const char *adapter)
{
    char created_at[32];
    struct tm time;
    strftime(created_at, sizeof created_at, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&app->start_time, &time));
    int max_context = app_max_context(app);
    return json_pack("{s:o, s:s, s:I, s:s, s:i, s:o, s:o*, s:s*, s:s*, s:s, s:o, s:s, s:s, s:i, s:i}", "id",
                     app_model_name(app, adapter), "object", "model", "created", (json_int_t)app->start_time,
                     "owned_by", "tutti", "max_model_len", max_context, "capabilities",
                     app_abilities(server_abilities(&app->info)), "device",
                     app_device(app->info.device, &app->device), "root", adapter, "parent",
                     adapter ? app->model_id : NULL, "type", "model", "display_name",
                     app_model_name(app, adapter), "created_at", created_at, "lifecycle", "active",
                     "max_input_tokens", max_context, "max_tokens", max_context);
}

/* All models are one page of Anthropic's API. */
static json_t *model_list(struct app *app)
{
    json_t *list = json_array();
    json_array_append_new(list, model_value(app, NULL));
    for (int i = 0; i < tutti_model_n_adapters(app->model); i++)
        json_array_append_new(list, model_value(app, tutti_model_adapter_name(app->model, i)));
    const json_t *last = json_array_get(list, json_array_size(list) - 1);
    return json_pack("{s:s, s:O, s:O, s:b, s:o}", "object", "list", "first_id",
                     json_object_get(json_array_get(list, 0), "id"), "last_id", json_object_get(last, "id"),
                     "has_more", 0, "data", list);
}

/* Clients may list the models as often as they like: the driver is called once a second at most. */
static void read_device(struct app *app)
{
    enum { VALID_US = 1000000 };
    uint64_t now_us = clock_now_us();
    if (app->device_us > 0 && now_us - app->device_us < VALID_US)
        return;
    tutti_engine_device(app->engine, &app->device);
    app->device_us = now_us;
}

void models_request(struct app *app, struct http_conn *conn)
{
    const char *name = http_request(conn)->head.path + strlen("/v1/models");
    const char *adapter = NULL;
    if (app->models) {
        model_set_list(app->models, conn, *name ? name + 1 : NULL);
    } else if (!*name || app_check_model(app, conn, name + 1, &adapter)) {
        read_device(app);
        app_reply_json(conn, 200, *name ? model_value(app, adapter) : model_list(app));
    }
}
