/* GET /v1/models, POST /tokenize and /detokenize: the last two as vLLM has them. */
#include "server/job.h"

#include "engine/engine.h"
#include "model/chat.h"

#include <stdlib.h>
#include <string.h>

enum { TOKENIZE_MAX_BYTES = 1024 * 1024 }; /* runs on the loop's thread: about a tenth of a second */

static int max_context(struct app *app)
{
    struct tutti_stats stats;
    tutti_engine_stats(app->engine, &stats);
    return stats.max_context;
}

/* adapter NULL: the model itself. root and parent are vLLM's words for what an adapter belongs to. */
static json_t *model_value(struct app *app, const char *adapter)
{
    json_t *value = json_pack("{s:s, s:s, s:I, s:s, s:i}", "id", app->model_id, "object", "model", "created",
                              (json_int_t)app->start_time, "owned_by", "tutti", "max_model_len",
                              max_context(app));
    if (value && adapter) {
        json_object_set_new(value, "id", json_sprintf("%s:%s", app->model_id, adapter));
        json_object_set_new(value, "root", json_string(adapter));
        json_object_set_new(value, "parent", json_string(app->model_id));
    }
    return value;
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
    const char *name = http_request_head(conn)->path + strlen("/v1/models");
    const char *adapter;
    if (!*name)
        app_reply_json(conn, 200, model_list(app));
    else if (app_check_model(app, conn, name + 1, &adapter))
        app_reply_json(conn, 200, model_value(app, adapter));
}

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

static enum tutti_status tokenize_text(struct app *app, const json_t *root, struct ids *ids,
                                       struct tutti_error *err)
{
    const json_t *prompt = json_object_get(root, "prompt"),
                 *special = json_object_get(root, "add_special_tokens");
    if (!json_is_string(prompt))
        return error_set_param(err, TUTTI_E_ARGUMENT, "prompt", "prompt must be a string, found %s",
                               json_kind(prompt));
    if (special && !json_is_boolean(special))
        return error_set_param(err, TUTTI_E_ARGUMENT, "add_special_tokens",
                               "add_special_tokens must be true or false, found %s", json_kind(special));
    size_t n_bytes = json_string_length(prompt);
    if (n_bytes > TOKENIZE_MAX_BYTES)
        return error_set_param(err, TUTTI_E_ARGUMENT, "prompt",
                               "prompt holds %zu bytes, at most %d are allowed", n_bytes, TOKENIZE_MAX_BYTES);
    bool add_special = !special || json_is_true(special);
    const char *text = json_string_value(prompt);
    /* A token has at least one byte, but for those in front and a few that a normaliser adds. */
    int32_t *space = calloc(n_bytes + 64, sizeof *space);
    if (!space)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the tokens");
    int64_t n = tutti_tokenize(app->model, text, n_bytes, add_special, space, n_bytes + 64);
    bool ok = n >= 0 && (uint64_t)n <= n_bytes + 64 && ids_add_all(ids, space, (size_t)n);
    free(space);
    if (!ok)
        return error_set(err, TUTTI_E_UNSUPPORTED, "the model has no tokenizer, or there is no memory");
    return TUTTI_OK;
}

static enum tutti_status tokenize_messages(struct app *app, json_t *root, struct ids *ids,
                                           struct tutti_error *err)
{
    const struct model *model = model_of(app->model);
    struct api_request req = { .kind = API_CHAT, .root = json_incref(root), .n = 1 };
    enum tutti_status st = api_read_messages(&req, err);
    if (st == TUTTI_OK)
        st = api_read_tools(&req, err);
    if (st == TUTTI_OK && (!model->chat || !model->tokenizer))
        st = error_set_param(err, TUTTI_E_UNSUPPORTED, "messages", "the model has no chat format");
    if (st == TUTTI_OK) {
        struct tutti_request request = api_request_make(&req, 0);
        st = chat_render(model, &request, ids, err);
    }
    api_request_clear(&req);
    return st;
}

void tokenize_request(struct app *app, struct http_conn *conn)
{
    struct tutti_error err;
    struct ids ids = { 0 };
    json_t *root = NULL;
    size_t n_bytes;
    const char *body = http_request_body(conn, &n_bytes);
    enum tutti_status st = json_read(&root, body, n_bytes, &err);
    if (st == TUTTI_OK && !json_is_object(root))
        st = error_set(&err, TUTTI_E_ARGUMENT, "the body must be a JSON object, found %s", json_kind(root));
    if (st == TUTTI_OK &&
        !app_check_model(app, conn, json_string_value(json_object_get(root, "model")), NULL))
        goto done;
    if (st == TUTTI_OK)
        st = json_object_get(root, "messages") ? tokenize_messages(app, root, &ids, &err)
                                               : tokenize_text(app, root, &ids, &err);
    if (st != TUTTI_OK) {
        app_reply_error(conn, json_error_status(st), NULL, &err);
        goto done;
    }
    json_t *tokens = json_array();
    for (size_t i = 0; i < ids.n; i++)
        json_array_append_new(tokens, json_integer(ids.ids[i]));
    app_reply_json(conn, 200,
                   json_pack("{s:I, s:i, s:o}", "count", (json_int_t)ids.n, "max_model_len", max_context(app),
                             "tokens", tokens));
done:
    ids_clear(&ids);
    json_decref(root);
}

static enum tutti_status detokenize(struct app *app, const json_t *root, struct ids *ids, struct buf *text,
                                    struct tutti_error *err)
{
    const json_t *tokens = json_object_get(root, "tokens");
    if (!json_is_array(tokens))
        return error_set_param(err, TUTTI_E_ARGUMENT, "tokens",
                               "tokens must be a list of token ids, found %s", json_kind(tokens));
    enum tutti_status st = api_read_ids(ids, tokens, "tokens", app->info.n_vocab, err);
    if (st != TUTTI_OK)
        return st;
    int64_t n = tutti_detokenize(app->model, ids->ids, ids->n, NULL, 0);
    if (n < 0)
        return error_set(err, TUTTI_E_UNSUPPORTED, "the model has no tokenizer, or there is no memory");
    if (!buf_reserve(text, (size_t)n))
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the text");
    tutti_detokenize(app->model, ids->ids, ids->n, text->bytes, (size_t)n);
    text->n_bytes = (size_t)n;
    return TUTTI_OK;
}

void detokenize_request(struct app *app, struct http_conn *conn)
{
    struct tutti_error err;
    struct ids ids = { 0 };
    struct buf text = { 0 };
    json_t *root = NULL;
    size_t n_bytes;
    const char *body = http_request_body(conn, &n_bytes);
    enum tutti_status st = json_read(&root, body, n_bytes, &err);
    if (st == TUTTI_OK && !json_is_object(root))
        st = error_set(&err, TUTTI_E_ARGUMENT, "the body must be a JSON object, found %s", json_kind(root));
    if (st == TUTTI_OK &&
        !app_check_model(app, conn, json_string_value(json_object_get(root, "model")), NULL))
        goto done;
    if (st == TUTTI_OK)
        st = detokenize(app, root, &ids, &text, &err);
    if (st == TUTTI_OK)
        app_reply_json(conn, 200, json_pack("{s:o}", "prompt", json_text(text.bytes, text.n_bytes)));
    else
        app_reply_error(conn, json_error_status(st), NULL, &err);
done:
    ids_clear(&ids);
    buf_clear(&text);
    json_decref(root);
}
