/* POST /v1/chat/completions: https://platform.openai.com/docs/api-reference/chat */
#include "base/json/json_list.h"
#include "server/openai/openai_answer.h"
#include "server/openai/openai_calls.h"
#include "server/openai/openai_reply.h"

/* {"content": [...], "refusal": null} of an event. */
static json_t *logprobs(const struct tutti_event *event)
{
    json_t *value = json_pack("{s:[], s:n}", "content", "refusal");
    openai_add_logprobs(json_object_get(value, "content"), event);
    return value;
}

/* The same of the whole answer. */
static bool write_logprobs(const struct job *job, size_t index, const struct reply_choice *choice,
                           struct buf *out)
{
    (void)index;
    if (!job->req.logprobs)
        return buf_add_string(out, "null");
    return buf_add_string(out, "{\"content\":[") &&
           buf_add(out, choice->lists[0].bytes, choice->lists[0].n_bytes) &&
           buf_add_string(out, "],\"refusal\":null}");
}

/* ---- tool calls ---- */

/* [{"id", "type", "function": {"name", "arguments"}}] */
static json_t *tool_calls(const struct job *job, size_t choice, const json_t *calls)
{
    json_t *out = json_array();
    size_t i;
    const json_t *call;
    json_array_foreach(calls, i, call)
    {
        char id[CALL_ID_BYTES];
        const json_t *name = json_object_get(call, "name"), *arguments = json_object_get(call, "arguments");
        const struct call_name named = { choice, i, json_string_value(json_object_get(call, "id")),
                                         json_string_value(name), json_string_length(name) };
        calls_make_id(job, &named, "call", id);
        if (json_array_append_new(out, json_pack("{s:s, s:s, s:{s:O, s:O}}", "id", id, "type", "function",
                                                 "function", "name", name, "arguments", arguments)) != 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

/* A delta of a call, as a list with one entry. */
static json_t *tool_call_delta(const struct job *job, size_t choice,
                               const struct tutti_tool_call_delta *delta)
{
    char id[CALL_ID_BYTES];
    json_t *arguments = json_text(delta->arguments, delta->n_arguments);
    if (!delta->name)
        return json_pack("[{s:I, s:{s:o}}]", "index", (json_int_t)delta->index, "function", "arguments",
                         arguments);
    const tutti_tool_parser *parser = job->choices[choice].calls.parser;
    const struct call_name named = { choice, delta->index,
                                     parser ? tutti_tool_parser_call_id(parser, delta->index) : NULL,
                                     delta->name, delta->n_name };
    calls_make_id(job, &named, "call", id);
    return json_pack("[{s:I, s:s, s:s, s:{s:o, s:o}}]", "index", (json_int_t)delta->index, "id", id, "type",
                     "function", "function", "name", json_text(delta->name, delta->n_name), "arguments",
                     arguments);
}

/* As OpenAI: a forced function call ends with "stop", other calls with "tool_calls". */
static json_t *reason_of_calls(const struct job *job)
{
    return json_string(job->req.forced == API_FORCED_NAMED ? "stop" : "tool_calls");
}

/* ---- replies ---- */

/* Clients read either name. */
static json_t *reasoning_fields(const char *text, size_t n_bytes)
{
    json_t *value = json_text(text, n_bytes);
    return json_pack("{s:O, s:o}", "reasoning_content", value, "reasoning", value);
}

static json_t *whole(struct job *job, size_t index, struct reply_choice *choice)
{
    size_t n_content;
    json_t *calls = calls_find(job, choice, choice->finish, &n_content);
    json_t *content = calls && n_content == 0 ? json_null() : json_text(choice->text.bytes, n_content);
    json_t *message = json_pack("{s:s, s:o, s:n, s:o*}", "role", "assistant", "content", content, "refusal",
                                "tool_calls", calls ? tool_calls(job, index, calls) : NULL);
    const struct buf *reasoning = answer_reasoning(job, choice);
    if (reasoning)
        message = json_merge(message, reasoning_fields(reasoning->bytes, reasoning->n_bytes));
    json_t *reason = calls ? reason_of_calls(job) : openai_finish_reason(choice->finish);
    json_decref(calls);
    return json_pack("{s:I, s:o, s:o}", "index", (json_int_t)index, "message", message, "finish_reason",
                     reason);
}

static json_t *chunk_choice(size_t index, json_t *delta, json_t *lp, json_t *finish_reason)
{
    return json_pack("{s:I, s:o, s:o, s:o}", "index", (json_int_t)index, "delta", delta, "logprobs",
                     lp ? lp : json_null(), "finish_reason", finish_reason);
}

static void stream_content(struct job *job, size_t index, const char *text, size_t n_bytes, json_t *lp)
{
    if (n_bytes > 0 || lp)
        openai_stream_choice(job, chunk_choice(index, json_pack("{s:o}", "content", json_text(text, n_bytes)),
                                               lp, json_null()));
}

static void stream_calls(struct job *job, size_t index, json_t *entries)
{
    openai_stream_choice(job,
                         chunk_choice(index, json_pack("{s:o}", "tool_calls", entries), NULL, json_null()));
}

/* With tools, text is held back as long as it may be a call. Returns the finish reason if it is
 * calls. */
static json_t *stream_with_tools(struct job *job, size_t index, struct reply_choice *choice,
                                 const struct tutti_event *event, json_t *lp)
{
    struct tutti_tool_call_delta delta;
    bool has_ended = event->finish != TUTTI_FINISH_NONE;
    if (!calls_prepare(job, choice)) {
        openai_stream_choice(job, NULL); /* out of memory: ends the job */
        json_decref(lp);
        return NULL;
    }
    size_t n_bytes = choice->text.n_bytes, n_sure = calls_sure_content(job, choice, n_bytes);
    bool has_delta = calls_next_delta(job, choice, n_bytes, &delta);
    if (has_ended && choice->calls.n == 0)
        n_sure = n_bytes;
    size_t n_new = n_sure > choice->n_sent ? n_sure - choice->n_sent : 0;
    stream_content(job, index, choice->text.bytes + choice->n_sent, n_new, lp);
    choice->n_sent += n_new;
    for (; has_delta; has_delta = calls_next_delta(job, choice, n_bytes, &delta))
        stream_calls(job, index, tool_call_delta(job, index, &delta));
    return event->finish == TUTTI_FINISH_STOP && calls_are_whole(job, choice) ? reason_of_calls(job) : NULL;
}

/* True: there is new reasoning, sent with these log-probabilities. */
static bool stream_reasoning(struct job *job, size_t index, struct reply_choice *choice, json_t *lp)
{
    const struct buf *reasoning = answer_reasoning(job, choice);
    if (!reasoning || reasoning->n_bytes == choice->n_reasoning_sent)
        return false;
    size_t n_sent = choice->n_reasoning_sent;
    choice->n_reasoning_sent = reasoning->n_bytes;
    json_t *delta = reasoning_fields(reasoning->bytes + n_sent, reasoning->n_bytes - n_sent);
    openai_stream_choice(job, chunk_choice(index, delta, lp, json_null()));
    return true;
}

static void stream(struct job *job, size_t index, struct reply_choice *choice,
                   const struct tutti_event *event)
{
    if (!choice->has_begun) {
        choice->has_begun = true;
        openai_stream_choice(job,
                             chunk_choice(index, json_pack("{s:s, s:s}", "role", "assistant", "content", ""),
                                          NULL, json_null()));
    }
    if (!answer_add(job, choice, event)) {
        openai_stream_choice(job, NULL); /* out of memory: ends the job */
        return;
    }
    bool has_tokens = job->req.logprobs && event->n_tokens > 0;
    json_t *lp = has_tokens ? logprobs(event) : NULL, *reason = NULL;
    if (stream_reasoning(job, index, choice, lp))
        lp = NULL;
    if (calls_are_possible(job)) {
        reason = stream_with_tools(job, index, choice, event, lp);
    } else {
        size_t n_new = choice->text.n_bytes - choice->n_sent;
        stream_content(job, index, n_new > 0 ? choice->text.bytes + choice->n_sent : "", n_new, lp);
        choice->n_sent = choice->text.n_bytes;
    }
    if (event->finish != TUTTI_FINISH_NONE)
        openai_stream_choice(job, chunk_choice(index, json_object(), NULL,
                                               reason ? reason : openai_finish_reason(event->finish)));
    else
        json_decref(reason);
}

static enum tutti_status chat_read_value(struct api_request *req, struct app *app, json_t *body,
                                         struct tutti_error *err)
{
    return api_request_read_client(req, API_CHAT, app->model, body, err);
}

const struct openai_api OPENAI_CHAT = {
    .job.read_value = chat_read_value,
    .job.event = openai_event,
    .job.finish = openai_finish,
    .job.fail = openai_fail,
    .job.id_prefix = "chatcmpl-",
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .whole = whole,
    .stream = stream,
    .write_logprobs = write_logprobs,
};
