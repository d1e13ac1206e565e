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

static json_t *message_id(const struct job *job)
{
    return json_sprintf("msg_%s", job->id + strlen("resp-"));
}

static json_t *call_item_id(const struct job *job, size_t call)
{
    return json_sprintf("fc_%s_%zu", job->id + strlen("resp-"), call);
}

/* The text of an answer that is not part of a call. */
static json_t *part_value(const struct reply_choice *choice, size_t n_content)
{
    return json_pack("{s:s, s:o, s:[], s:o}", "type", "output_text", "text",
                     json_text(choice->text.bytes, n_content), "annotations", "logprobs",
                     choice->logprobs && n_content > 0 ? json_incref(choice->logprobs) : json_array());
}

static json_t *message_value(const struct job *job, const char *status, json_t *content)
{
    return json_pack("{s:s, s:o, s:s, s:s, s:o}", "type", "message", "id", message_id(job), "status", status,
                     "role", "assistant", "content", content);
}

/* own: the id that the model wrote; NULL: none. */
static json_t *call_value(const struct job *job, size_t call, const char *status, json_t *name,
                          json_t *arguments, const char *own)
{
    char id[CALL_ID_BYTES];
    json_t *source = json_pack("{s:O, s:s*}", "name", name, "id", own);
    calls_make_id(job, 0, call, source, id);
    json_decref(source);
    return json_pack("{s:s, s:o, s:s, s:s, s:o, s:o}", "type", "function_call", "id", call_item_id(job, call),
                     "call_id", id, "status", status, "name", name, "arguments", arguments);
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

/* Sends one event of the stream; takes ownership of fields. */
static void emit(struct job *job, struct reply_choice *choice, const char *type, json_t *fields)
{
    char prefix[96];
    if (!job->conn) {
        json_decref(fields);
        return;
    }
    snprintf(prefix, sizeof prefix, "event: %s\ndata: ", type);
    json_t *value = json_pack("{s:s, s:I}", "type", type, "sequence_number", (json_int_t)choice->n_events++);
    if (!job_stream_json(job, prefix, json_merge(value, fields), "\n\n"))
        job_fail_memory(job);
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

static void begin_stream(struct job *job, struct reply_choice *choice)
{
    job_begin_stream(job);
    emit(job, choice, "response.created", json_pack("{s:o}", "response", response_value(job, NULL)));
    emit(job, choice, "response.in_progress", json_pack("{s:o}", "response", response_value(job, NULL)));
}

/* ---- items ---- */

/* Starts the message; n_content bytes of the answer are certain. */
static void begin_message(struct job *job, struct reply_choice *choice)
{
    if (choice->has_begun || !job->req.stream)
        return;
    choice->has_begun = true;
    emit(job, choice, "response.output_item.added",
         item_event(choice, message_value(job, "in_progress", json_array())));
    emit(job, choice, "response.content_part.added",
         text_event(job, choice, "part", part_value(choice, 0), NULL));
}

static void output_add_item(struct job *job, struct reply_choice *choice, json_t *item)
{
    if (job->req.stream)
        emit(job, choice, "response.output_item.done", item_event(choice, json_incref(item)));
    if (!item || json_array_append_new(choice->items, item) != 0)
        job_fail_memory(job);
}

/* Its text is complete. */
static void end_message(struct job *job, struct reply_choice *choice, size_t n_content)
{
    const char *status = choice->calls.n == 0 && is_cut(choice) ? "incomplete" : "completed";
    choice->message_is_over = true;
    begin_message(job, choice);
    if (job->req.stream) {
        emit(job, choice, "response.output_text.done",
             text_event(job, choice, "text", json_text(choice->text.bytes, n_content),
                        choice->logprobs ? json_incref(choice->logprobs) : json_array()));
        emit(job, choice, "response.content_part.done",
             text_event(job, choice, "part", part_value(choice, n_content), NULL));
    }
    output_add_item(job, choice, message_value(job, status, json_pack("[o]", part_value(choice, n_content))));
}

static void stream_arguments(struct job *job, struct reply_choice *choice, size_t call, const char *text,
                             size_t n_bytes)
{
    if (job->req.stream && n_bytes > 0)
        emit(job, choice, "response.function_call_arguments.delta",
             json_pack("{s:o, s:I, s:o}", "item_id", call_item_id(job, call), "output_index", n_items(choice),
                       "delta", json_text(text, n_bytes)));
}

static void begin_call(struct job *job, struct reply_choice *choice, size_t call, json_t *name,
                       const char *own)
{
    if (job->req.stream)
        emit(job, choice, "response.output_item.added",
             item_event(choice, call_value(job, call, "in_progress", name, json_string(""), own)));
    else
        json_decref(name);
}

static void end_call(struct job *job, struct reply_choice *choice, size_t call, json_t *name,
                     json_t *arguments, bool is_whole, const char *own)
{
    if (job->req.stream)
        emit(job, choice, "response.function_call_arguments.done",
             json_pack("{s:o, s:I, s:O, s:O}", "item_id", call_item_id(job, call), "output_index",
                       n_items(choice), "name", name, "arguments", arguments));
    output_add_item(job, choice,
                    call_value(job, call, is_whole ? "completed" : "incomplete", name, arguments, own));
}

/* Sends a call in one piece. */
static void add_call(struct job *job, struct reply_choice *choice, size_t call, const json_t *value)
{
    json_t *name = json_object_get(value, "name"), *arguments = json_object_get(value, "arguments");
    const char *own = json_string_value(json_object_get(value, "id"));
    begin_call(job, choice, call, json_incref(name), own);
    stream_arguments(job, choice, call, json_string_value(arguments), json_string_length(arguments));
    end_call(job, choice, call, json_incref(name), json_incref(arguments), true, own);
}

/* ---- reasoning ---- */

static json_t *reasoning_id(const struct job *job)
{
    return json_sprintf("rs_%s", job->id + strlen("resp-"));
}

static json_t *reasoning_value(const struct job *job, const struct buf *reasoning, const char *status)
{
    json_t *content = reasoning ? json_pack("[{s:s, s:o}]", "type", "reasoning_text", "text",
                                            json_text(reasoning->bytes, reasoning->n_bytes))
                                : json_array();
    return json_pack("{s:s, s:o, s:s, s:[], s:o}", "type", "reasoning", "id", reasoning_id(job), "status",
                     status, "summary", "content", content);
}

static void stream_reasoning(struct job *job, struct reply_choice *choice)
{
    const struct buf *reasoning = answer_reasoning(job, choice);
    size_t n_sent = choice->n_reasoning_sent;
    if (!reasoning || choice->reasoning_is_over || reasoning->n_bytes == n_sent)
        return;
    if (n_sent == 0)
        emit(job, choice, "response.output_item.added",
             item_event(choice, reasoning_value(job, NULL, "in_progress")));
    emit(job, choice, "response.reasoning_text.delta",
         json_pack("{s:o, s:I, s:i, s:o}", "item_id", reasoning_id(job), "output_index", n_items(choice),
                   "content_index", 0, "delta",
                   json_text(reasoning->bytes + n_sent, reasoning->n_bytes - n_sent)));
    choice->n_reasoning_sent = reasoning->n_bytes;
}

/* The reasoning is complete: its item comes before all others. */
static void end_reasoning(struct job *job, struct reply_choice *choice)
{
    const struct buf *reasoning = answer_reasoning(job, choice);
    if (!reasoning || choice->reasoning_is_over)
        return;
    bool is_all_cut = choice->text.n_bytes == 0 && is_cut(choice);
    if (job->req.stream) {
        stream_reasoning(job, choice);
        emit(job, choice, "response.reasoning_text.done",
             json_pack("{s:o, s:I, s:i, s:o}", "item_id", reasoning_id(job), "output_index", n_items(choice),
                       "content_index", 0, "text", json_text(reasoning->bytes, reasoning->n_bytes)));
    }
    choice->reasoning_is_over = true;
    output_add_item(job, choice, reasoning_value(job, reasoning, is_all_cut ? "incomplete" : "completed"));
}

/* ---- events ---- */

/* The id of a streamed call. */
static const char *streamed_id(const struct reply_choice *choice, size_t call)
{
    return choice->calls.parser ? tutti_tool_parser_call_id(choice->calls.parser, call) : NULL;
}

/* The call being streamed is in choice->held: its name, a zero byte, its arguments. */
static void end_streamed_call(struct job *job, struct reply_choice *choice, bool is_whole)
{
    if (choice->held.n_bytes == 0)
        return;
    const char *name = choice->held.bytes;
    size_t n_name = strlen(name), n_before = n_name + 1;
    end_call(job, choice, choice->calls.n - 1, json_text(name, n_name),
             json_text(name + n_before, choice->held.n_bytes - n_before), is_whole, choice->own_id);
    buf_truncate(&choice->held, 0);
}

static void stream_call_delta(struct job *job, struct reply_choice *choice,
                              const struct tutti_tool_call_delta *delta)
{
    bool ok = true;
    if (delta->name) {
        ok = buf_add(&choice->held, delta->name, delta->n_name) && buf_add(&choice->held, "", 1);
        choice->own_id = streamed_id(choice, delta->index);
        begin_call(job, choice, delta->index, json_text(delta->name, delta->n_name), choice->own_id);
    }
    stream_arguments(job, choice, delta->index, delta->arguments, delta->n_arguments);
    if (!ok || !buf_add(&choice->held, delta->arguments, delta->n_arguments))
        job_fail_memory(job);
    else if (delta->is_last)
        end_streamed_call(job, choice, true);
}

static void stream_text(struct job *job, struct reply_choice *choice, size_t n_sure, json_t *logprobs)
{
    size_t n_new = n_sure > choice->n_sent ? n_sure - choice->n_sent : 0;
    if (n_new == 0 && json_array_size(logprobs) == 0) {
        json_decref(logprobs);
        return;
    }
    begin_message(job, choice);
    emit(job, choice, "response.output_text.delta",
         text_event(job, choice, "delta", json_text(choice->text.bytes + choice->n_sent, n_new),
                    logprobs ? logprobs : json_array()));
    choice->n_sent += n_new;
}

/* Sends text and calls as far as they are certain. */
static void stream_event(struct job *job, struct reply_choice *choice, const struct tutti_event *event)
{
    struct tutti_tool_call_delta delta;
    json_t *logprobs = job->req.logprobs ? json_array() : NULL;
    if (logprobs)
        openai_add_logprobs(logprobs, event);
    if (choice->n_events == 0)
        begin_stream(job, choice);
    stream_reasoning(job, choice);
    if (choice->text.n_bytes > 0)
        end_reasoning(job, choice);
    if (!calls_are_possible(job)) {
        stream_text(job, choice, choice->text.n_bytes, logprobs);
        return;
    }
    if (!calls_prepare(job, choice)) {
        json_decref(logprobs);
        job_fail_memory(job);
        return;
    }
    size_t n_sure = calls_sure_content(job, choice);
    bool has_delta = calls_next_delta(job, choice, &delta);
    if (n_sure > choice->n_sent)
        stream_text(job, choice, n_sure, logprobs);
    else
        json_decref(logprobs); /* of text that may be a call; the whole message has them */
    if (has_delta && choice->has_begun && !choice->message_is_over)
        end_message(job, choice, choice->n_sent);
    for (; has_delta; has_delta = calls_next_delta(job, choice, &delta))
        stream_call_delta(job, choice, &delta);
}

static void responses_take_event(struct job *job, size_t index, struct reply_choice *choice,
                                 const struct tutti_event *event)
{
    (void)index;
    if (!choice->items)
        choice->items = json_array();
    bool ok = choice->items && answer_add(job, choice, event);
    if (ok && job->req.logprobs) {
        if (!choice->logprobs)
            choice->logprobs = json_array();
        openai_add_logprobs(choice->logprobs, event);
        ok = choice->logprobs != NULL;
    }
    if (!ok)
        job_fail_memory(job);
    else if (job->req.stream)
        stream_event(job, choice, event);
}

/* Sends the remaining items of the answer: a stream has sent its calls. */
static void end_items(struct job *job, struct reply_choice *choice)
{
    size_t n_content = choice->text.n_bytes, i;
    json_t *calls = job->req.stream ? NULL : calls_find(job, choice, choice->finish, &n_content);
    const json_t *call;
    end_reasoning(job, choice);
    if (choice->calls.n > 0)
        end_streamed_call(job, choice, false);
    else if (!calls || n_content > 0) {
        if (job->req.stream)
            stream_text(job, choice, n_content, NULL);
        end_message(job, choice, n_content);
    }
    json_array_foreach(calls, i, call) add_call(job, choice, i, call);
    json_decref(calls);
}

static void responses_finish(struct job *job)
{
    struct reply_choice *choice = &job->choices[0];
    end_items(job, choice);
    if (job->is_over)
        return; /* out of memory */
    if (!job->req.stream) {
        json_t *value = response_value(job, choice);
        if (value)
            job_reply_json(job, value, "");
        else
            job_fail_memory(job);
        return;
    }
    emit(job, choice, is_cut(choice) ? "response.incomplete" : "response.completed",
         json_pack("{s:o}", "response", response_value(job, choice)));
    if (job->conn)
        http_stream_end(job_take_conn(job));
}

static void responses_fail(struct app *app, struct job *job, struct http_conn *conn,
                           const struct tutti_error *err)
{
    struct tutti_error named = *err;
    responses_name_field(&named);
    if (!http_stream_has_begun(conn)) {
        openai_fail(app, job, conn, &named);
        return;
    }
    json_t *value = json_pack(
        "{s:s, s:s, s:o, s:s?, s:I}", "type", "error", "code", tutti_status_name(named.status), "message",
        json_text(named.text, strlen(named.text)), "param", named.param[0] ? named.param : NULL,
        "sequence_number", (json_int_t)(job ? job->choices[0].n_events : 0));
    app_fail(conn, json_error_status(named.status), "event: error\ndata: ", value, "\n\n", &named);
}

const struct job_api OPENAI_RESPONSES = { .id_prefix = "resp",
                                          .read_value = responses_read,
                                          .event = responses_take_event,
                                          .finish = responses_finish,
                                          .fail = responses_fail };
