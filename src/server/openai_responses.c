/* POST /v1/responses, for text: https://platform.openai.com/docs/api-reference/responses
 *
 * A request becomes one of the chat API, so that both read settings in the same way. Nothing is stored: what refers to an earlier
 * response is refused. */
#include "base/json_type.h"
#include "server/openai_reply.h"

#include <string.h>

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static const json_t *value_of(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

static enum tutti_status no_memory(struct tutti_error *err)
{
    return error_set(err, TUTTI_E_MEMORY, "out of memory for the request");
}

/* The texts of an item's content, one behind the other. */
static enum tutti_status read_content(const json_t *content, size_t item, struct buf *out,
                                      struct tutti_error *err)
{
    size_t i;
    const json_t *part;
    char param[64];
    snprintf(param, sizeof param, "input[%zu].content", item);
    if (json_is_string(content))
        return buf_add(out, json_string_value(content), json_string_length(content)) ? TUTTI_OK
                                                                                     : no_memory(err);
    if (!json_is_array(content))
        return error_set_param(err, TUTTI_E_ARGUMENT, param,
                               "%s must be a string or a list of parts, found %s", param,
                               json_type_name(content));
    json_array_foreach(content, i, part)
    {
        const json_t *text = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        bool is_text = type &&
                       (!strcmp(type, "input_text") || !strcmp(type, "output_text") || !strcmp(type, "text"));
        if (!is_text || !json_is_string(text))
            return error_set_param(err, TUTTI_E_ARGUMENT, param,
                                   "%s[%zu]: this model reads parts of type input_text and output_text only",
                                   param, i);
        if (!buf_add(out, json_string_value(text), json_string_length(text)))
            return no_memory(err);
    }
    return TUTTI_OK;
}

static enum tutti_status add_message(json_t *messages, const char *role, const char *text, size_t n_bytes,
                                     struct tutti_error *err)
{
    json_t *message = json_pack("{s:s, s:o}", "role", role, "content", json_text(text, n_bytes));
    return json_array_append_new(messages, message) == 0 ? TUTTI_OK : no_memory(err);
}

static enum tutti_status add_item(json_t *messages, const json_t *item, size_t i, struct tutti_error *err)
{
    char param[64];
    const char *type = json_string_value(json_object_get(item, "type"));
    const char *role = json_string_value(json_object_get(item, "role"));
    snprintf(param, sizeof param, "input[%zu]", i);
    if (type && strcmp(type, "message"))
        return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s: items of type %.64s are not supported",
                               param, type);
    if (!json_is_object(item) || !role)
        return error_set_param(err, TUTTI_E_ARGUMENT, param, "%s must be an object with role and content",
                               param);
    struct buf text = { 0 };
    enum tutti_status st = read_content(json_object_get(item, "content"), i, &text, err);
    if (st == TUTTI_OK)
        st = add_message(messages, role, text.bytes, text.n_bytes, err);
    buf_clear(&text);
    return st;
}

static enum tutti_status read_input(const json_t *root, json_t *messages, struct tutti_error *err)
{
    const json_t *input = value_of(root, "input"), *instructions = value_of(root, "instructions"), *item;
    size_t i;
    enum tutti_status st = TUTTI_OK;
    if (instructions && !json_is_string(instructions))
        return error_set_param(err, TUTTI_E_ARGUMENT, "instructions",
                               "instructions must be a string, found %s", json_type_name(instructions));
    if (instructions)
        st = add_message(messages, "system", json_string_value(instructions),
                         json_string_length(instructions), err);
    if (st != TUTTI_OK)
        return st;
    if (json_is_string(input))
        return add_message(messages, "user", json_string_value(input), json_string_length(input), err);
    if (!json_is_array(input) || json_array_size(input) == 0)
        return error_set_param(err, TUTTI_E_ARGUMENT, "input",
                               "input must be a string or a list of at least one item, found %s",
                               json_is_array(input) ? "an empty list" : json_type_name(input));
    json_array_foreach(input, i, item) if (st == TUTTI_OK) st = add_item(messages, item, i, err);
    return st;
}

/* What would change the answer in a way that does not exist here. */
static enum tutti_status refuse_unsupported(const json_t *root, struct tutti_error *err)
{
    static const char *const FIELDS[] = { "previous_response_id", "conversation", "prompt" };
    const json_t *tools = value_of(root, "tools"), *background = value_of(root, "background");
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS; i++)
        if (value_of(root, FIELDS[i]))
            return error_set_param(err, TUTTI_E_ARGUMENT, FIELDS[i],
                                   "%s is not supported: responses are not stored", FIELDS[i]);
    if (json_is_true(background))
        return error_set_param(err, TUTTI_E_ARGUMENT, "background", "background is not supported");
    if (tools && !(json_is_array(tools) && json_array_size(tools) == 0))
        return error_set_param(err, TUTTI_E_ARGUMENT, "tools",
                               "tools are not supported here, only in /v1/chat/completions");
    return TUTTI_OK;
}

/* text.format in the words of the chat API. */
static int copy_format(json_t *chat, const json_t *root)
{
    json_t *format = json_object_get(json_object_get(root, "text"), "format");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (!format || json_is_null(format))
        return 0;
    if (type && !strcmp(type, "json_schema"))
        return json_object_set_new(chat, "response_format",
                                   json_pack("{s:s, s:O}", "type", "json_schema", "json_schema", format));
    return json_object_set(chat, "response_format", format);
}

/* The same request as one of the chat API, beside the original. */
static enum tutti_status make_chat(json_t *root, json_t **out, struct tutti_error *err)
{
    static const char *const SAME[] = {
        "model", "temperature",        "top_p",    "stream",   "user",          "top_k", "min_p", "seed",
        "stop",  "repetition_penalty", "metadata", "priority", "max_queue_time"
    };
    const json_t *max = value_of(root, "max_output_tokens");
    json_t *chat = json_object(), *messages = json_array();
    int failed = json_object_set_new(chat, "messages", messages);
    enum tutti_status st = refuse_unsupported(root, err);
    if (st == TUTTI_OK)
        st = read_input(root, messages, err);
    if (st == TUTTI_OK && max && (!json_is_integer(max) || json_integer_value(max) < 1))
        st = error_set_param(err, TUTTI_E_ARGUMENT, "max_output_tokens",
                             "max_output_tokens must be an integer of at least 1");
    for (size_t i = 0; i < sizeof SAME / sizeof *SAME; i++)
        if (value_of(root, SAME[i]))
            failed |= json_object_set(chat, SAME[i], json_object_get(root, SAME[i]));
    if (max)
        failed |= json_object_set(chat, "max_completion_tokens", json_object_get(root, "max_output_tokens"));
    failed |= copy_format(chat, root);
    failed |= json_object_set(chat, "response_request", root); /* for the reply, which repeats it */
    if (st == TUTTI_OK && failed)
        st = no_memory(err);
    if (st == TUTTI_OK)
        *out = chat;
    else
        json_decref(chat);
    return st;
}

static enum tutti_status read_value(struct api_request *req, struct app *app, json_t *root,
                                    struct tutti_error *err)
{
    json_t *chat = NULL;
    enum tutti_status st = TUTTI_OK;
    if (!json_is_object(root))
        st = error_set(err, TUTTI_E_ARGUMENT, "the body must be a JSON object, found %s",
                       json_type_name(root));
    if (st == TUTTI_OK)
        st = make_chat(root, &chat, err);
    json_decref(root);
    return st == TUTTI_OK ? api_request_read_value(req, API_CHAT, app->model, chat, err) : st;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static json_t *repeated(const struct job *job, const char *name, json_t *otherwise)
{
    json_t *value = json_object_get(json_object_get(job->req.root, "response_request"), name);
    if (!value || json_is_null(value))
        return otherwise;
    json_decref(otherwise);
    return json_incref(value);
}

static json_t *part_value(const struct choice *choice)
{
    return json_pack("{s:s, s:o, s:[], s:[]}", "type", "output_text", "text",
                     json_text(choice ? choice->text.bytes : "", choice ? choice->text.n_bytes : 0),
                     "annotations", "logprobs");
}

static bool is_cut(const struct choice *choice)
{
    return choice->finish == TUTTI_FINISH_LENGTH;
}

static json_t *item_value(const struct job *job, const struct choice *choice)
{
    const char *status = !choice ? "in_progress" : is_cut(choice) ? "incomplete" : "completed";
    json_t *content = choice ? json_pack("[o]", part_value(choice)) : json_array();
    return json_pack("{s:s, s:o, s:s, s:s, s:o}", "type", "message", "id",
                     json_sprintf("msg_%s", job->id + 5), "status", status, "role", "assistant", "content",
                     content);
}

static json_t *usage_value(const struct job *job)
{
    size_t n_cached, n_prompt = job_n_prompt_tokens(job, &n_cached), n = job_n_generated(job);
    return json_pack("{s:I, s:{s:I}, s:I, s:{s:i}, s:I}", "input_tokens", (json_int_t)n_prompt,
                     "input_tokens_details", "cached_tokens", (json_int_t)n_cached, "output_tokens",
                     (json_int_t)n, "output_tokens_details", "reasoning_tokens", 0, "total_tokens",
                     (json_int_t)(n_prompt + n));
}

/* choice NULL: it has not ended. */
static json_t *response_value(const struct job *job, const struct choice *choice)
{
    const char *status = !choice ? "in_progress" : is_cut(choice) ? "incomplete" : "completed";
    json_t *value = openai_frame(job, "response");
    if (!value)
        return NULL;
    json_object_del(value, "created");
    json_t *reason = choice && is_cut(choice) ? json_pack("{s:s}", "reason", "max_output_tokens")
                                              : json_null();
    int failed = json_object_set_new(value, "created_at", json_integer((json_int_t)job->created));
    failed |= json_object_set_new(value, "status", json_string(status));
    failed |= json_object_set_new(value, "error", json_null());
    failed |= json_object_set_new(value, "incomplete_details", reason);
    failed |= json_object_set_new(value, "instructions", repeated(job, "instructions", json_null()));
    failed |= json_object_set_new(value, "max_output_tokens",
                                  repeated(job, "max_output_tokens", json_null()));
    failed |= json_object_set_new(value, "metadata", repeated(job, "metadata", json_object()));
    failed |= json_object_set_new(value, "output",
                                  choice ? json_pack("[o]", item_value(job, choice)) : json_array());
    failed |= json_object_set_new(value, "parallel_tool_calls",
                                  repeated(job, "parallel_tool_calls", json_true()));
    failed |= json_object_set_new(value, "previous_response_id", json_null());
    failed |= json_object_set_new(value, "store", json_false());
    failed |= json_object_set_new(value, "temperature", json_real((double)job->req.sampling.temperature));
    failed |= json_object_set_new(value, "top_p", json_real((double)job->req.sampling.top_p));
    failed |= json_object_set_new(value, "text",
                                  repeated(job, "text", json_pack("{s:{s:s}}", "format", "type", "text")));
    failed |= json_object_set_new(value, "tool_choice", repeated(job, "tool_choice", json_string("auto")));
    failed |= json_object_set_new(value, "tools", json_array());
    failed |= json_object_set_new(value, "truncation", json_string("disabled"));
    failed |= json_object_set_new(value, "user", repeated(job, "user", json_null()));
    failed |= json_object_set_new(value, "usage", choice ? usage_value(job) : json_null());
    if (!failed)
        return value;
    json_decref(value);
    return NULL;
}

/* ---- replies ----------------------------------------------------------------------------------------------------- */

/* One event of the stream; its fields are taken over. */
static void emit(struct job *job, struct choice *choice, const char *type, json_t *fields)
{
    char prefix[96];
    if (!job->conn) {
        json_decref(fields);
        return;
    }
    snprintf(prefix, sizeof prefix, "event: %s\ndata: ", type);
    json_t *value = json_pack("{s:s, s:I}", "type", type, "sequence_number", (json_int_t)choice->n_sent++);
    int failed = !fields || !value || json_object_update(value, fields) != 0;
    json_decref(fields);
    if (failed) {
        json_decref(value);
        job_fail_memory(job);
    } else if (!job_stream_json(job, prefix, value, "\n\n")) {
        job_fail_memory(job);
    }
}

/* {"item_id", "output_index", "content_index"} and one more. */
static json_t *place_of(const struct job *job, const char *name, json_t *value)
{
    return json_pack("{s:o, s:i, s:i, s:o}", "item_id", json_sprintf("msg_%s", job->id + 5), "output_index",
                     0, "content_index", 0, name, value);
}

static void begin(struct job *job, struct choice *choice)
{
    choice->has_begun = true;
    job_begin_stream(job);
    emit(job, choice, "response.created", json_pack("{s:o}", "response", response_value(job, NULL)));
    emit(job, choice, "response.in_progress", json_pack("{s:o}", "response", response_value(job, NULL)));
    emit(job, choice, "response.output_item.added",
         json_pack("{s:i, s:o}", "output_index", 0, "item", item_value(job, NULL)));
    emit(job, choice, "response.content_part.added", place_of(job, "part", part_value(NULL)));
}

static json_t *delta_of(const struct job *job, const char *name, const char *text, size_t n_bytes)
{
    json_t *value = place_of(job, name, json_text(text, n_bytes));
    if (value)
        json_object_set_new(value, "logprobs", json_array());
    return value;
}

static void take_event(struct job *job, size_t index, struct choice *choice, const struct tutti_event *event)
{
    (void)index;
    if (!buf_add(&choice->text, event->text, event->n_text_bytes)) {
        job_fail_memory(job);
        return;
    }
    if (!job->req.stream)
        return;
    if (!choice->has_begun)
        begin(job, choice);
    if (event->n_text_bytes > 0)
        emit(job, choice, "response.output_text.delta",
             delta_of(job, "delta", event->text, event->n_text_bytes));
}

static void finish(struct job *job)
{
    struct choice *choice = &job->choices[0];
    if (!job->req.stream) {
        json_t *value = response_value(job, choice);
        if (value)
            job_reply_json(job, value);
        else
            job_fail_memory(job);
        return;
    }
    emit(job, choice, "response.output_text.done",
         delta_of(job, "text", choice->text.bytes, choice->text.n_bytes));
    emit(job, choice, "response.content_part.done", place_of(job, "part", part_value(choice)));
    emit(job, choice, "response.output_item.done",
         json_pack("{s:i, s:o}", "output_index", 0, "item", item_value(job, choice)));
    emit(job, choice, is_cut(choice) ? "response.incomplete" : "response.completed",
         json_pack("{s:o}", "response", response_value(job, choice)));
    if (job->conn)
        http_stream_end(job_take_conn(job));
}

static void fail(struct app *app, struct job *job, struct http_conn *conn, const struct tutti_error *err)
{
    if (!http_stream_has_begun(conn)) {
        openai_fail(app, job, conn, err);
        return;
    }
    struct buf text = { 0 };
    json_t *value = json_pack(
        "{s:s, s:s, s:o, s:s?, s:I}", "type", "error", "code", tutti_status_name(err->status), "message",
        json_text(err->text, strlen(err->text)), "param", err->param[0] ? err->param : NULL,
        "sequence_number", (json_int_t)(job ? job->choices[0].n_sent : 0));
    if (buf_add_string(&text, "event: error\ndata: ") && json_write(&text, value) &&
        buf_add_string(&text, "\n\n"))
        http_stream_write(conn, text.bytes, text.n_bytes);
    json_decref(value);
    buf_clear(&text);
    http_stream_end(conn);
}

const struct job_api OPENAI_RESPONSES = {
    .id_prefix = "resp", .read_value = read_value, .event = take_event, .finish = finish, .fail = fail
};

void responses_request(struct app *app, struct http_conn *conn)
{
    job_start(app, conn, &OPENAI_RESPONSES);
}
