/* Replies: an answer is a list of blocks. */
#include "server/anthropic/anthropic_messages.h"

#include "base/hash.h"
#include "base/json/json_list.h"
#include "base/json/json_wide.h"
#include "server/openai/openai_answer.h"
#include "server/openai/openai_calls.h"

#include <string.h>

/* ---- values ---- */

/* Prompt tokens that this request added to the prefix cache: the rest of its full pages. Clients count them
 * apart only if they wanted a cache. */
static size_t n_cache_writes(const struct job *job, size_t n_prompt, size_t n_cached)
{
    struct tutti_stats stats;
    if (!job->req.messages_api.has_cache_control)
        return 0;
    tutti_engine_stats(job->app->engine, &stats);
    if (!stats.has_prefix_cache)
        return 0;
    size_t page = (size_t)stats.kv_page_tokens, n_full = page > 0 ? n_prompt / page * page : 0;
    return n_full > n_cached ? n_full - n_cached : 0;
}

static json_t *usage_value(const struct job *job)
{
    size_t n_cached, n_prompt = job_n_prompt_tokens(job, &n_cached);
    json_int_t n_writes = (json_int_t)n_cache_writes(job, n_prompt, n_cached);
    return json_pack("{s:I, s:I, s:I, s:{s:I, s:i}, s:I, s:{s:I}, s:s}", "input_tokens",
                     (json_int_t)(n_prompt - n_cached) - n_writes, "cache_creation_input_tokens", n_writes,
                     "cache_read_input_tokens", (json_int_t)n_cached, "cache_creation",
                     "ephemeral_5m_input_tokens", n_writes, "ephemeral_1h_input_tokens", 0, "output_tokens",
                     (json_int_t)job_n_generated(job), "output_tokens_details", "thinking_tokens",
                     (json_int_t)answer_n_reasoning_tokens(job), "service_tier", "standard");
}

static const char *stop_reason(const struct job *job, const struct reply_choice *choice)
{
    const struct sent_calls *calls = &choice->calls;
    if (choice->finish == TUTTI_FINISH_LENGTH)
        return choice->n_generated < (size_t)job->req.max_tokens ? "model_context_window_exceeded"
                                                                 : "max_tokens";
    if (choice->stop_string)
        return "stop_sequence";
    return calls->n > 0 && !calls->is_open ? "tool_use" : "end_turn";
}

/* {"stop_reason", "stop_sequence", "stop_details"}; choice NULL: the answer has not ended. */
static json_t *stop_value(const struct job *job, const struct reply_choice *choice)
{
    const struct tutti_string *stop = choice ? choice->stop_string : NULL;
    return json_pack("{s:s?, s:o, s:n}", "stop_reason", choice ? stop_reason(job, choice) : NULL,
                     "stop_sequence", stop ? json_stringn(stop->text, stop->n_bytes) : json_null(),
                     "stop_details");
}

static json_t *message_value(const struct job *job, const struct reply_choice *choice)
{
    json_t *message = json_pack("{s:o, s:s, s:s, s:o, s:o}", "id", json_string(job->id), "type", "message",
                                "role", "assistant", "model", app_model_name(job->app, job->req.adapter),
                                "content", choice ? json_incref(choice->items) : json_array());
    message = json_merge(message, stop_value(job, choice));
    return json_merge(message, json_pack("{s:o}", "usage", usage_value(job)));
}

/* ---- blocks ---- */

static json_t *text_block(const char *text, size_t n_bytes)
{
    return json_pack("{s:s, s:o}", "type", "text", "text", json_text(text, n_bytes));
}

static json_t *thinking_block(const struct answer_event *event, json_t *signature)
{
    return json_pack("{s:s, s:o, s:o}", "type", "thinking", "thinking",
                     json_text(event->text, event->n_bytes), "signature", signature);
}

/* A checksum: clients keep blocks of thinking only if they are signed. */
static json_t *signature_of(const struct answer_event *event)
{
    return json_sprintf("%016llx", (unsigned long long)hash64(0, event->text, event->n_bytes));
}

static json_t *tool_use_block(const struct job *job, const struct answer_event *event, json_t *input)
{
    char id[CALL_ID_BYTES];
    const struct call_name named = { 0, event->call, event->id, event->name, event->n_name };
    calls_make_id(job, &named, "toolu", id);
    return json_pack("{s:s, s:s, s:o, s:o}", "type", "tool_use", "id", id, "name",
                     json_text(event->name, event->n_name), "input", input);
}

/* Arguments that were cut are none. Integers beyond 64 bits become the nearest double. */
static json_t *input_of(const struct answer_event *event)
{
    json_error_t why;
    json_t *input = event->is_cut ? NULL : json_load_wide(event->text, event->n_bytes, JSON_ALLOW_NUL, &why);
    if (json_is_object(input))
        return input;
    json_decref(input);
    return json_object();
}

/* The block of a complete part. */
static json_t *block_value(const struct job *job, const struct answer_event *event)
{
    if (event->part == ANSWER_TEXT)
        return text_block(event->text, event->n_bytes);
    if (event->part == ANSWER_CALL)
        return tool_use_block(job, event, input_of(event));
    json_t *signature = signature_of(event);
    const struct answer_event omitted = { .text = "" };
    return thinking_block(job->req.messages_api.omits_thinking ? &omitted : event, signature);
}

/* ---- streams ---- */

/* Sends one event; takes ownership of fields. */
static void emit(struct job *job, const char *type, json_t *fields)
{
    char prefix[64];
    if (!job->conn) {
        json_decref(fields);
        return;
    }
    snprintf(prefix, sizeof prefix, "event: %s\ndata: ", type);
    if (!job_stream_json(job, prefix, json_merge(json_pack("{s:s}", "type", type), fields), "\n\n"))
        job_fail_memory(job);
}

/* The index of the block being streamed: n_events counts the complete ones. */
static json_int_t index_of(const struct reply_choice *choice)
{
    return (json_int_t)choice->n_events;
}

static void emit_start(struct job *job, const struct reply_choice *choice, json_t *block)
{
    emit(job, "content_block_start",
         json_pack("{s:I, s:o}", "index", index_of(choice), "content_block", block));
}

/* name: the field of the delta with the value. */
static void emit_delta(struct job *job, const struct reply_choice *choice, const char *type, const char *name,
                       json_t *value)
{
    emit(job, "content_block_delta",
         json_pack("{s:I, s:{s:s, s:o}}", "index", index_of(choice), "delta", "type", type, name, value));
}

static void emit_begin(struct job *job, const struct reply_choice *choice, const struct answer_event *event)
{
    if (event->part == ANSWER_REASONING)
        emit_start(job, choice, thinking_block(event, json_string("")));
    else if (event->part == ANSWER_CALL)
        emit_start(job, choice, tool_use_block(job, event, json_object()));
    /* A text may be empty, and is then no block. */
}

static void emit_part(struct job *job, const struct reply_choice *choice, const struct answer_event *event)
{
    json_t *text = json_text(event->text, event->n_bytes);
    if (event->part == ANSWER_CALL) {
        emit_delta(job, choice, "input_json_delta", "partial_json", text);
    } else if (event->part == ANSWER_TEXT) {
        if (choice->n_sent - choice->text_begin == event->n_bytes) /* the first */
            emit_start(job, choice, text_block("", 0));
        emit_delta(job, choice, "text_delta", "text", text);
    } else if (!job->req.messages_api.omits_thinking) {
        emit_delta(job, choice, "thinking_delta", "thinking", text);
    } else {
        json_decref(text);
    }
}

static void stream_part(struct job *job, struct reply_choice *choice, const struct answer_event *event)
{
    switch (event->moment) {
    case ANSWER_BEGIN:
        emit_begin(job, choice, event);
        break;
    case ANSWER_DELTA:
        emit_part(job, choice, event);
        break;
    case ANSWER_END:
        if (event->part == ANSWER_TEXT && event->n_bytes == 0)
            break;
        if (event->part == ANSWER_REASONING)
            emit_delta(job, choice, "signature_delta", "signature", signature_of(event));
        emit(job, "content_block_stop", json_pack("{s:I}", "index", index_of(choice)));
        choice->n_events++;
        break;
    }
}

/* ---- events ---- */

static void collect_part(struct job *job, struct reply_choice *choice, const struct answer_event *event)
{
    bool is_empty = event->part == ANSWER_TEXT && event->n_bytes == 0;
    if (event->moment == ANSWER_END && !is_empty &&
        json_array_append_new(choice->items, block_value(job, event)) != 0)
        job_fail_memory(job);
}

static void begin_stream(struct job *job)
{
    if (http_stream_has_begun(job->conn))
        return;
    job_begin_stream(job);
    emit(job, "message_start", json_pack("{s:o}", "message", message_value(job, NULL)));
    emit(job, "ping", json_object());
}

static void messages_take_event(struct job *job, size_t index, struct reply_choice *choice,
                                const struct tutti_event *event)
{
    (void)index;
    if (!answer_add(job, choice, event)) {
        job_fail_memory(job);
    } else if (job->req.stream) {
        begin_stream(job);
        answer_pass_new(job, choice, stream_part);
    }
}

static void finish_stream(struct job *job, struct reply_choice *choice)
{
    answer_pass_rest(job, choice, stream_part);
    emit(job, "message_delta",
         json_pack("{s:o, s:o}", "delta", stop_value(job, choice), "usage", usage_value(job)));
    emit(job, "message_stop", json_object());
    if (job->conn)
        http_stream_end(job_take_conn(job));
}

static bool write_reply(struct job *job, struct buf *out)
{
    return job_write_json(out, message_value(job, &job->choices[0]), "");
}

/* A call that the limit of tokens has cut is a block without input, as the end of a stream shows it. */
static void finish_whole(struct job *job, struct reply_choice *choice)
{
    choice->items = json_array();
    if (choice->finish == TUTTI_FINISH_LENGTH) {
        answer_pass_new(job, choice, collect_part);
        answer_pass_rest(job, choice, collect_part);
    } else {
        answer_pass_whole(job, choice, collect_part);
    }
    if (job->is_over)
        return; /* out of memory */
    job_reply(job, write_reply);
}

static void messages_finish(struct job *job)
{
    (job->req.stream ? finish_stream : finish_whole)(job, &job->choices[0]);
}

static void messages_fail(struct app *app, struct job *job, struct http_conn *conn,
                          const struct tutti_error *err)
{
    (void)app, (void)job;
    struct tutti_error named = *err;
    /* Errors of this API have no other place for the field. */
    if (!strstr(named.text, named.param))
        error_prefix(&named, "%s", named.param);
    app_fail(conn, json_anthropic_status(&named), "event: error\ndata: ",
             json_anthropic_error(json_anthropic_status(&named), &named, http_request(conn)->id), "\n\n",
             &named);
}

static enum tutti_status messages_read_value(struct api_request *req, struct app *app, json_t *body,
                                             struct tutti_error *err)
{
    return messages_read(req, app->model, body, false, err);
}

const struct job_api ANTHROPIC_MESSAGES = { .id_prefix = "msg_",
                                            .read_value = messages_read_value,
                                            .name_field = messages_name_field,
                                            .event = messages_take_event,
                                            .finish = messages_finish,
                                            .fail = messages_fail };

/* ---- count_tokens ---- */

static enum tutti_status render_messages(const struct api_request *req, const tutti_model *model,
                                         struct ids *out, struct tutti_error *err)
{
    enum tutti_status st = api_render_messages(req, model, out, err);
    if (st != TUTTI_OK)
        messages_name_field(err);
    return st;
}

static void read_count(struct intake_task *task)
{
    struct ids ids = { 0 };
    json_t *root = NULL;
    task->status = json_read(&root, task->body.text, task->body.n_bytes, &task->err);
    if (task->status == TUTTI_OK)
        task->status = messages_read(&task->req, task->app->model, root, true, &task->err);
    if (task->status == TUTTI_OK)
        task->status = app_find_model(task->app, task->req.model, NULL, &task->err);
    if (task->status == TUTTI_OK)
        task->status = render_messages(&task->req, task->app->model, &ids, &task->err);
    if (task->status == TUTTI_OK && !buf_printf(&task->reply, "{\"input_tokens\":%zu}", ids.n))
        task->status = error_out_of_memory("reply", &task->err);
    ids_clear(&ids);
}

static void send_count(struct intake_task *task, struct http_conn *conn)
{
    if (task->status == TUTTI_OK)
        http_reply(conn, 200, "application/json", task->reply.bytes, task->reply.n_bytes);
    else
        messages_fail(task->app, NULL, conn, &task->err);
}

void count_tokens_request(struct app *app, struct http_conn *conn)
{
    static const struct intake_route ROUTE = { .read = read_count, .done = send_count };
    intake_start(app, conn, &ROUTE, NULL);
}
