/* Replies of the responses API: an answer is a list of items, a message and function calls. */
#include "server/openai/openai_responses.h"

#include "base/json/json_list.h"
#include "server/openai/openai_answer.h"
#include "server/openai/openai_calls.h"

#include <string.h>

/* ---- values ---- */

static json_t *repeated(const struct job *job, const char *name, json_t *otherwise)
{
    const json_t *value = responses_field(&job->req, name);
    if (!value)
        return otherwise;
    json_decref(otherwise);
    return json_incref((json_t *)(uintptr_t)value);
}

static bool is_cut(const struct reply_choice *choice)
{
    return choice->finish == TUTTI_FINISH_LENGTH;
}

/* The id of a message or of reasoning: a further one of the answer has its number in it. */
static json_t *item_id(const struct job *job, const char *prefix)
{
    const char *id = job->id + strlen("resp-");
    size_t turn = job->choices[0].turn;
    return turn > 0 ? json_sprintf("%s_%s_%zu", prefix, id, turn) : json_sprintf("%s_%s", prefix, id);
}

static json_t *message_id(const struct job *job)
{
    return item_id(job, "msg");
}

static json_t *call_item_id(const struct job *job, size_t call)
{
    return json_sprintf("fc_%s_%zu", job->id + strlen("resp-"), call);
}

/* A text of the answer that is not part of a call. logprobs: a list, which is released. */
static json_t *part_value(const char *text, size_t n_bytes, json_t *logprobs)
{
    return json_pack("{s:s, s:o, s:[], s:o}", "type", "output_text", "text", json_text(text, n_bytes),
                     "annotations", "logprobs", logprobs);
}

static json_t *message_value(const struct job *job, const char *status, json_t *content)
{
    return json_pack("{s:s, s:o, s:s, s:s, s:o}", "type", "message", "id", message_id(job), "status", status,
                     "role", "assistant", "content", content);
}

static const char *item_status(const struct answer_event *event)
{
    return event->moment != ANSWER_END ? "in_progress" : event->is_cut ? "incomplete" : "completed";
}

/* A complete message. logprobs: a list, which is released. */
static json_t *text_item(const struct job *job, const struct answer_event *event, json_t *logprobs)
{
    return message_value(job, item_status(event),
                         json_pack("[o]", part_value(event->text, event->n_bytes, logprobs)));
}

/* {"name"} of the function that is called, and "namespace" if it is in one. */
static json_t *function_name(const struct job *job, const struct answer_event *event)
{
    json_t *name = json_text(event->name, event->n_name);
    const json_t *own = name ? responses_function(&job->req, json_string_value(name)) : NULL;
    if (!own)
        return json_pack("{s:o}", "name", name);
    json_decref(name);
    return json_copy((json_t *)(uintptr_t)own);
}

static json_t *call_value(const struct job *job, const struct answer_event *event)
{
    char id[CALL_ID_BYTES];
    const struct call_name named = { 0, event->call, event->id, event->name, event->n_name };
    calls_make_id(job, &named, "call", id);
    json_t *value = json_pack("{s:s, s:o, s:s, s:s}", "type", "function_call", "id",
                              call_item_id(job, event->call), "call_id", id, "status", item_status(event));
    return json_merge(json_merge(value, function_name(job, event)),
                      json_pack("{s:o}", "arguments", json_text(event->text, event->n_bytes)));
}

static json_t *usage_value(const struct job *job)
{
    size_t n_cached, n_prompt = job_n_prompt_tokens(job, &n_cached), n = job_n_generated(job);
    return json_pack("{s:I, s:{s:I}, s:I, s:{s:I}, s:I}", "input_tokens", (json_int_t)n_prompt,
                     "input_tokens_details", "cached_tokens", (json_int_t)n_cached, "output_tokens",
                     (json_int_t)n, "output_tokens_details", "reasoning_tokens",
                     (json_int_t)answer_n_reasoning_tokens(job), "total_tokens",
                     (json_int_t)n_prompt + (json_int_t)n);
}

/* choice NULL: the answer has not ended. */
static json_t *response_value(const struct job *job, const struct reply_choice *choice)
{
    const char *status = !choice ? "in_progress" : is_cut(choice) ? "incomplete" : "completed";
    json_t *reason = choice && is_cut(choice) ? json_pack("{s:s}", "reason", "max_output_tokens")
                                              : json_null();
    const struct json_member members[] = {
        { "id", json_string(job->id) },
        { "object", json_string("response") },
        { "model", app_model_name(job->app, job->req.adapter) },
        { "system_fingerprint", json_string(job->app->fingerprint) },
        { "created_at", json_integer((json_int_t)job->created) },
        { "status", json_string(status) },
        { "error", json_null() },
        { "incomplete_details", reason },
        { "instructions", repeated(job, "instructions", json_null()) },
        { "max_output_tokens", repeated(job, "max_output_tokens", json_null()) },
        { "metadata", repeated(job, "metadata", json_object()) },
        { "output", choice ? json_incref(choice->items) : json_array() },
        { "parallel_tool_calls", repeated(job, "parallel_tool_calls", json_true()) },
        { "previous_response_id", json_null() },
        { "store", json_false() },
        { "temperature", json_real((double)job->req.sampling.temperature) },
        { "top_p", json_real((double)job->req.sampling.top_p) },
        { "text", repeated(job, "text", json_pack("{s:{s:s}}", "format", "type", "text")) },
        { "tool_choice", repeated(job, "tool_choice", json_string("auto")) },
        { "tools", repeated(job, "tools", json_array()) },
        { "top_logprobs", json_integer(job->req.top_logprobs) },
        { "truncation", json_string("disabled") },
        { "user", repeated(job, "user", json_null()) },
        { "usage", choice ? usage_value(job) : json_null() },
    };
    return JSON_MEMBERS(members);
}

/* ---- streams ---- */

/* Appends one event of the stream; takes ownership of fields. */
static bool write_event(struct reply_choice *choice, const char *type, json_t *fields, struct buf *out)
{
    json_t *value = json_merge(
        json_pack("{s:s, s:I}", "type", type, "sequence_number", (json_int_t)choice->n_events++), fields);
    bool ok = buf_printf(out, "event: %s\ndata: ", type);
    return job_write_json(out, value, "\n\n") && ok;
}

/* Sends one event of the stream; takes ownership of fields. */
static void emit(struct job *job, struct reply_choice *choice, const char *type, json_t *fields)
{
    struct buf event = { 0 };
    if (!job->conn)
        json_decref(fields);
    else
        job_stream_text(job, write_event(choice, type, fields, &event), &event);
}

static json_int_t n_items(const struct reply_choice *choice)
{
    return (json_int_t)json_array_size(choice->items);
}

/* An event of the item being streamed, whose index follows those of the complete items. */
static json_t *item_event(const struct reply_choice *choice, json_t *item)
{
    return json_pack("{s:I, s:o}", "output_index", n_items(choice), "item", item);
}

/* {"item_id", "output_index", "content_index"} of the message's text, one more field, and logprobs
 * unless NULL. */
static json_t *text_event(const struct job *job, const struct reply_choice *choice, const char *name,
                          json_t *value, json_t *logprobs)
{
    return json_pack("{s:o, s:I, s:i, s:o, s:o*}", "item_id", message_id(job), "output_index",
                     n_items(choice), "content_index", 0, name, value, "logprobs", logprobs);
}

static bool responses_open(struct job *job, size_t index, struct buf *out)
{
    struct reply_choice *choice = &job->choices[index];
    return write_event(choice, "response.created", json_pack("{s:o}", "response", response_value(job, NULL)),
                       out) &&
           write_event(choice, "response.in_progress",
                       json_pack("{s:o}", "response", response_value(job, NULL)), out);
}

/* ---- items ---- */

static void emit_item_done(struct job *job, struct reply_choice *choice, json_t *item)
{
    emit(job, choice, "response.output_item.done", item_event(choice, item));
}

static void output_add_item(struct job *job, struct reply_choice *choice, json_t *item)
{
    if (!item || json_array_append_new(choice->items, item) != 0)
        job_fail_memory(job);
}

/* At its end a text's log-probabilities are in the last event of the stream only, which has the whole response: they are large,
 * and the client has had them with the text. */
static void emit_text(struct job *job, struct reply_choice *choice, const struct answer_event *event)
{
    switch (event->moment) {
    case ANSWER_BEGIN:
        emit(job, choice, "response.output_item.added",
             item_event(choice, message_value(job, item_status(event), json_array())));
        emit(job, choice, "response.content_part.added",
             text_event(job, choice, "part", part_value("", 0, json_array()), NULL));
        break;
    case ANSWER_DELTA:
        emit(job, choice, "response.output_text.delta",
             text_event(job, choice, "delta", json_text(event->text, event->n_bytes),
                        answer_logprobs(choice, event->text, event->n_bytes)));
        break;
    case ANSWER_END:
        emit(job, choice, "response.output_text.done",
             text_event(job, choice, "text", json_text(event->text, event->n_bytes), json_array()));
        emit(job, choice, "response.content_part.done",
             text_event(job, choice, "part", part_value(event->text, event->n_bytes, json_array()), NULL));
        emit_item_done(job, choice, text_item(job, event, json_array()));
        break;
    }
}

static json_t *reasoning_id(const struct job *job)
{
    return item_id(job, "rs");
}

static json_t *reasoning_value(const struct job *job, const struct answer_event *event)
{
    json_t *content = event->moment == ANSWER_END ? json_pack("[{s:s, s:o}]", "type", "reasoning_text",
                                                              "text", json_text(event->text, event->n_bytes))
                                                  : json_array();
    return json_pack("{s:s, s:o, s:s, s:[], s:o}", "type", "reasoning", "id", reasoning_id(job), "status",
                     item_status(event), "summary", "content", content);
}

static void emit_reasoning(struct job *job, struct reply_choice *choice, const struct answer_event *event)
{
    if (event->moment == ANSWER_BEGIN) {
        emit(job, choice, "response.output_item.added", item_event(choice, reasoning_value(job, event)));
        return;
    }
    bool is_end = event->moment == ANSWER_END;
    emit(job, choice, is_end ? "response.reasoning_text.done" : "response.reasoning_text.delta",
         json_pack("{s:o, s:I, s:i, s:o}", "item_id", reasoning_id(job), "output_index", n_items(choice),
                   "content_index", 0, is_end ? "text" : "delta", json_text(event->text, event->n_bytes)));
    if (is_end)
        emit_item_done(job, choice, reasoning_value(job, event));
}

static void emit_call(struct job *job, struct reply_choice *choice, const struct answer_event *event)
{
    switch (event->moment) {
    case ANSWER_BEGIN:
        emit(job, choice, "response.output_item.added", item_event(choice, call_value(job, event)));
        break;
    case ANSWER_DELTA:
        emit(job, choice, "response.function_call_arguments.delta",
             json_pack("{s:o, s:I, s:o}", "item_id", call_item_id(job, event->call), "output_index",
                       n_items(choice), "delta", json_text(event->text, event->n_bytes)));
        break;
    case ANSWER_END:
        emit(
            job, choice, "response.function_call_arguments.done",
            json_merge(json_pack("{s:o, s:I, s:o}", "item_id", call_item_id(job, event->call), "output_index",
                                 n_items(choice), "arguments", json_text(event->text, event->n_bytes)),
                       function_name(job, event)));
        emit_item_done(job, choice, call_value(job, event));
        break;
    }
}

/* A part of the answer is an item of the response. */
static void take_part(struct job *job, struct reply_choice *choice, const struct answer_event *event)
{
    bool is_end = event->moment == ANSWER_END;
    switch (event->part) {
    case ANSWER_REASONING:
        if (job->req.stream)
            emit_reasoning(job, choice, event);
        if (is_end)
            output_add_item(job, choice, reasoning_value(job, event));
        break;
    case ANSWER_TEXT:
        if (job->req.stream)
            emit_text(job, choice, event);
        if (is_end)
            output_add_item(job, choice,
                            text_item(job, event, answer_logprobs(choice, event->text, event->n_bytes)));
        break;
    case ANSWER_CALL:
        if (job->req.stream)
            emit_call(job, choice, event);
        if (is_end)
            output_add_item(job, choice, call_value(job, event));
        break;
    }
}

/* ---- events ---- */

static void responses_take_event(struct job *job, size_t index, struct reply_choice *choice,
                                 const struct tutti_event *event)
{
    (void)index;
    if (!choice->items)
        choice->items = json_array();
    bool ok = choice->items && (!job->req.logprobs || answer_add_logprobs(choice, event)) &&
              answer_add(job, choice, event);
    if (!ok) {
        job_fail_memory(job);
    } else if (job->req.stream) {
        answer_pass_new(job, choice, take_part);
    }
}

/* The last event of a stream has the whole response, too. */
static bool write_reply(struct job *job, struct buf *out)
{
    struct reply_choice *choice = &job->choices[0];
    json_t *value = response_value(job, choice);
    if (!job->req.stream)
        return job_write_json(out, value, "");
    return write_event(choice, is_cut(choice) ? "response.incomplete" : "response.completed",
                       json_pack("{s:o}", "response", value), out);
}

static void responses_finish(struct job *job)
{
    struct reply_choice *choice = &job->choices[0];
    (job->req.stream ? answer_pass_rest : answer_pass_whole)(job, choice, take_part);
    if (!job->is_over) /* else out of memory */
        job_reply(job, write_reply);
}

static void responses_fail(struct app *app, struct job *job, struct http_conn *conn,
                           const struct tutti_error *err)
{
    if (!http_stream_has_begun(conn)) {
        openai_fail(app, job, conn, err);
        return;
    }
    json_t *value = json_pack(
        "{s:s, s:s, s:o, s:s?, s:I}", "type", "error", "code", tutti_status_name(err->status), "message",
        json_text(err->text, strlen(err->text)), "param", err->param[0] ? err->param : NULL,
        "sequence_number", (json_int_t)(job ? job->choices[0].n_events : 0));
    app_fail(conn, json_error_status(err->status), "event: error\ndata: ", value, "\n\n", err);
}

const struct job_api OPENAI_RESPONSES = { .id_prefix = "resp-",
                                          .read_value = responses_read,
                                          .name_field = responses_name_field,
                                          .open = responses_open,
                                          .event = responses_take_event,
                                          .finish = responses_finish,
                                          .fail = responses_fail };
