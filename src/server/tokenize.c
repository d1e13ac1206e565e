/* POST /tokenize and /detokenize, GET /tokenizer_info, compatible with vLLM and llama-server. */
#include "base/json/json_field.h"
#include "server/intake.h"
#include "server/openai/generated.h"
#include "server/requests/openai_fields.h"

#include <stdlib.h>
#include <string.h>

enum {
    TOKENIZE_MAX_BYTES = 1024 * 1024,
    DETOKENIZE_MAX_IDS = 1024 * 1024,
    DETOKENIZE_MAX_BYTES = 16 * 1024 * 1024, /* of text, which the reply has twice, with escapes */
};

/* Reads a boolean field; otherwise: its value if it is absent. */
static enum tutti_status read_flag(const json_t *root, const char *name, bool otherwise, bool *out,
                                   struct tutti_error *err)
{
    const json_t *value = json_field(root, name);
    *out = value ? json_is_true(value) : otherwise;
    return json_check(value, JSON_KIND_BOOL, name, err);
}

/* Refuses the text of another form, whose ids the reply would not have, and fields that have no effect in this form.
 * names: end with NULL. */
static enum tutti_status refuse_others(const json_t *root, const char *form, const char *const *names,
                                       struct tutti_error *err)
{
    for (; *names; names++)
        if (json_field(root, *names))
            return error_set_param(err, TUTTI_E_ARGUMENT, *names, "%s cannot be combined with %s", *names,
                                   form);
    return TUTTI_OK;
}

/* Accepts the field names of vLLM and of llama-server. */
static enum tutti_status tokenize_text(struct app *app, const json_t *root, struct ids *ids,
                                       struct tutti_error *err)
{
    static const char *const NOT_LLAMA[] = { "add_special_tokens", NULL };
    static const char *const NOT_VLLM[] = { "content", "add_special", NULL };
    bool is_llama = !json_field(root, "prompt") && json_field(root, "content");
    bool add_special, parse_special = false;
    const char *name = is_llama ? "content" : "prompt";
    const json_t *prompt = json_field(root, name);
    if (!json_is_string(prompt))
        return json_wrong_type(name, "a string", prompt, err);
    enum tutti_status st = refuse_others(root, name, is_llama ? NOT_LLAMA : NOT_VLLM, err);
    if (st == TUTTI_OK)
        st = read_flag(root, is_llama ? "add_special" : "add_special_tokens", !is_llama, &add_special, err);
    if (st == TUTTI_OK)
        st = read_flag(root, "parse_special", false, &parse_special, err);
    if (st != TUTTI_OK)
        return st;
    size_t n_bytes = json_string_length(prompt);
    if (n_bytes > TOKENIZE_MAX_BYTES)
        return error_set_param(err, TUTTI_E_ARGUMENT, name, "%s has %zu bytes, at most %d are allowed", name,
                               n_bytes, TOKENIZE_MAX_BYTES);
    api_tokenize_fn *tokenize = parse_special ? tutti_tokenize_trusted : tutti_tokenize;
    return api_tokenize(ids, app->model, tokenize, json_string_value(prompt), n_bytes, add_special, err);
}

static enum tutti_status tokenize_messages(struct app *app, json_t *root, struct ids *ids,
                                           struct tutti_error *err)
{
    static const char *const OTHERS[] = { "prompt", "content", NULL };
    static const char *const FLAGS[] = { "add_special_tokens", "add_special" };
    enum tutti_status st = refuse_others(root, "messages", OTHERS, err);
    for (size_t i = 0; st == TUTTI_OK && i < sizeof FLAGS / sizeof *FLAGS; i++) {
        const json_t *flag = json_field(root, FLAGS[i]);
        if (flag && !json_is_false(flag))
            st = error_set_param(err, TUTTI_E_ARGUMENT, FLAGS[i],
                                 "%s must be false with messages: the chat format writes the special tokens",
                                 FLAGS[i]);
    }
    if (st != TUTTI_OK)
        return st;
    struct api_request req = { .kind = API_CHAT, .root = json_incref(root), .n = 1 };
    st = api_read_messages(&req, err);
    if (st == TUTTI_OK)
        st = api_read_tools(&req, err);
    if (st == TUTTI_OK)
        st = api_render_messages(&req, app->model, ids, err);
    api_request_clear(&req);
    return st;
}

/* A token as the vocabulary spells it. */
static json_t *token_text(struct app *app, int32_t id, struct buf *bytes)
{
    if (!app_token_bytes(app, id, bytes))
        return NULL;
    return bytes->n_bytes > 0 ? json_text(bytes->bytes, bytes->n_bytes) : generated_special(app, id);
}

/* Appends value and releases it; NULL: out of memory. */
static bool write_value(struct buf *out, json_t *value)
{
    bool ok = value && json_write(out, value);
    json_decref(value);
    return ok;
}

static bool write_id(struct app *app, int32_t id, struct buf *bytes, struct buf *out)
{
    (void)app, (void)bytes;
    return buf_printf(out, "%d", id);
}

static bool write_text(struct app *app, int32_t id, struct buf *bytes, struct buf *out)
{
    return write_value(out, token_text(app, id, bytes));
}

/* As llama-server: bytes that are not UTF-8 are a list of numbers. */
static bool write_piece(struct app *app, int32_t id, struct buf *bytes, struct buf *out)
{
    json_t *text = token_text(app, id, bytes);
    if (text && bytes->n_bytes > 0 &&
        json_string_length(text) != bytes->n_bytes) { /* escaped by json_text() */
        json_decref(text);
        text = json_byte_list(bytes->bytes, bytes->n_bytes);
    }
    bool ok = buf_printf(out, "{\"id\":%d,\"piece\":", id);
    return write_value(out, text) && ok && buf_add_string(out, "}");
}

/* Appends a list with the result of write for each id. It is written directly, because a tree of
 * values takes some hundred bytes per token. */
static bool write_list(struct app *app, const struct ids *ids,
                       bool (*write)(struct app *app, int32_t id, struct buf *bytes, struct buf *out),
                       struct buf *out)
{
    struct buf bytes = { 0 };
    bool ok = buf_add_string(out, "[");
    for (size_t i = 0; i < ids->n && ok; i++)
        ok = (i == 0 || buf_add_string(out, ",")) && write(app, ids->ids[i], &bytes, out);
    buf_clear(&bytes);
    return ok && buf_add_string(out, "]");
}

static enum tutti_status reply_tokens(struct intake_task *task, const json_t *root, const struct ids *ids)
{
    struct app *app = task->app;
    struct buf *out = &task->reply;
    bool with_pieces, with_texts;
    enum tutti_status st = read_flag(root, "with_pieces", false, &with_pieces, &task->err);
    if (st == TUTTI_OK)
        st = read_flag(root, "return_token_strs", false, &with_texts, &task->err);
    if (st != TUTTI_OK)
        return st;
    bool ok = buf_printf(out, "{\"count\":%zu,\"max_model_len\":%d,\"tokens\":", ids->n,
                         app_max_context(app)) &&
              write_list(app, ids, with_pieces ? write_piece : write_id, out);
    if (with_texts)
        ok = ok && buf_add_string(out, ",\"token_strs\":") && write_list(app, ids, write_text, out);
    if (!ok || !buf_add_string(out, "}"))
        return error_set(&task->err, TUTTI_E_MEMORY, "out of memory for the tokens");
    return TUTTI_OK;
}

/* Parses the body: an object with fields of this API, whose model, if given, is served here. */
static enum tutti_status read_object(struct intake_task *task, enum api_kind kind, json_t **root)
{
    enum tutti_status st = json_read_object(root, task->body.text, task->body.n_bytes, &task->err);
    if (st == TUTTI_OK)
        st = api_check_fields(*root, kind, "", &task->err);
    const json_t *model = json_field(*root, "model");
    if (st == TUTTI_OK)
        st = json_check(model, JSON_KIND_STRING, "model", &task->err);
    return st == TUTTI_OK ? app_find_model(task->app, json_string_value(model), NULL, &task->err) : st;
}

static void read_tokenize(struct intake_task *task)
{
    struct ids ids = { 0 };
    json_t *root = NULL;
    enum tutti_status st = read_object(task, API_TOKENIZE, &root);
    if (st == TUTTI_OK)
        st = json_field(root, "messages") ? tokenize_messages(task->app, root, &ids, &task->err)
                                          : tokenize_text(task->app, root, &ids, &task->err);
    if (st == TUTTI_OK)
        st = reply_tokens(task, root, &ids);
    task->status = st;
    ids_clear(&ids);
    json_decref(root);
}

static enum tutti_status detokenize(struct app *app, const json_t *root, struct ids *ids, struct buf *text,
                                    struct tutti_error *err)
{
    const json_t *tokens = json_field(root, "tokens");
    if (!json_is_array(tokens))
        return json_wrong_type("tokens", "a list of token ids", tokens, err);
    if (json_array_size(tokens) > DETOKENIZE_MAX_IDS)
        return error_set_param(err, TUTTI_E_ARGUMENT, "tokens",
                               "tokens has %zu token ids, at most %d are allowed", json_array_size(tokens),
                               DETOKENIZE_MAX_IDS);
    enum tutti_status st = api_read_ids(ids, tokens, "tokens", app->info.n_vocab, err);
    if (st != TUTTI_OK)
        return st;
    int64_t n = tutti_detokenize(app->model, ids->ids, ids->n, NULL, 0);
    if (n < 0)
        return error_set(err, TUTTI_E_UNSUPPORTED, "the model has no tokenizer, or out of memory");
    if (n > DETOKENIZE_MAX_BYTES)
        return error_set_param(err, TUTTI_E_ARGUMENT, "tokens",
                               "the text of tokens has %lld bytes, at most %d are allowed", (long long)n,
                               DETOKENIZE_MAX_BYTES);
    if (!buf_reserve(text, (size_t)n))
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the text");
    tutti_detokenize(app->model, ids->ids, ids->n, text->bytes, (size_t)n);
    text->n_bytes = (size_t)n;
    return TUTTI_OK;
}

static void read_detokenize(struct intake_task *task)
{
    struct ids ids = { 0 };
    struct buf text = { 0 };
    json_t *root = NULL;
    enum tutti_status st = read_object(task, API_DETOKENIZE, &root);
    if (st == TUTTI_OK)
        st = detokenize(task->app, root, &ids, &text, &task->err);
    if (st == TUTTI_OK &&
        !write_value(&task->reply, json_pack("{s:o, s:o}", "prompt", json_text(text.bytes, text.n_bytes),
                                             "content", json_text(text.bytes, text.n_bytes))))
        st = error_set(&task->err, TUTTI_E_MEMORY, "out of memory for the reply");
    task->status = st;
    ids_clear(&ids);
    buf_clear(&text);
    json_decref(root);
}

static void send_reply(struct intake_task *task, struct http_conn *conn)
{
    if (task->status == TUTTI_OK)
        http_reply(conn, 200, "application/json", task->reply.bytes, task->reply.n_bytes);
    else
        app_reply_error(conn, json_error_status(task->status), &task->err);
}

void tokenize_request(struct app *app, struct http_conn *conn)
{
    static const struct intake_route ROUTE = { .read = read_tokenize, .done = send_reply };
    intake_start(app, conn, &ROUTE, NULL);
}

void detokenize_request(struct app *app, struct http_conn *conn)
{
    static const struct intake_route ROUTE = { .read = read_detokenize, .done = send_reply };
    intake_start(app, conn, &ROUTE, NULL);
}

/* ---- the vocabulary ---- */

static json_t *special_value(struct app *app, int32_t id)
{
    return id < 0 ? json_null() : generated_special(app, id);
}

void tokenizer_info_request(struct app *app, struct http_conn *conn)
{
    const struct tutti_model_info *info = &app->info;
    struct tutti_error err;
    if (!info->has_tokenizer) {
        error_set(&err, TUTTI_E_NOT_FOUND, "the model has no tokenizer");
        app_reply_error(conn, 404, &err);
        return;
    }
    app_reply_json(conn, 200,
                   json_pack("{s:o, s:o, s:o, s:i, s:i, s:n}", "bos_token", special_value(app, info->bos_id),
                             "eos_token", special_value(app, info->eos_id), "pad_token",
                             special_value(app, info->pad_id), "vocab_size", info->n_usable_vocab,
                             "model_max_length", app_max_context(app), "chat_template"));
}
