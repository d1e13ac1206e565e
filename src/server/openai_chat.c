/* POST /v1/chat/completions: https://platform.openai.com/docs/api-reference/chat */
#include "model/chat.h"
#include "server/openai_reply.h"

/* {"content": [{"token", "logprob", "bytes", "top_logprobs": [...]}, ...]} */
static json_t *token_entry(const char *bytes, size_t n_bytes, float logprob)
{
    return json_pack("{s:o, s:o, s:o}", "token", json_text(bytes, n_bytes), "logprob", json_logprob(logprob),
                     "bytes", json_byte_list(bytes, n_bytes));
}

static json_t *logprobs(json_t *into, struct choice *choice, const struct tutti_event *event)
{
    (void)choice;
    if (!into)
        into = json_pack("{s:[], s:n}", "content", "refusal");
    json_t *content = json_object_get(into, "content");
    for (size_t i = 0; i < event->n_tokens; i++) {
        const struct tutti_token *token = &event->tokens[i];
        json_t *entry = token_entry(token->bytes, token->n_bytes, token->logprob), *top = json_array();
        for (int k = 0; k < token->n_top; k++)
            json_array_append_new(
                top, token_entry(token->top[k].bytes, token->top[k].n_bytes, token->top[k].logprob));
        json_object_set_new(entry, "top_logprobs", top);
        json_array_append_new(content, entry);
    }
    return into;
}

/* ---- calls of tools ---- */

static const json_t *tools_of(const struct job *job)
{
    if (job->req.forced != API_FORCED_NONE)
        return json_object_get(job->req.root, "tools");
    /* What must fit a grammar is the answer, whatever it looks like. */
    return job->req.tools && job->req.grammar_kind == TUTTI_GRAMMAR_NONE
               ? json_object_get(job->req.root, "tools")
               : NULL;
}

/* [{"id", "type", "function": {"name", "arguments"}}]; chunks have an index as well. */
static json_t *tool_calls(const struct job *job, size_t choice, const json_t *calls, bool is_chunk)
{
    json_t *out = json_array();
    size_t i;
    const json_t *call;
    json_array_foreach(calls, i, call)
    {
        char id[80];
        snprintf(id, sizeof id, "call_%s_%zu_%zu", job->id, choice, i);
        json_t *entry = json_pack("{s:s, s:s, s:O}", "id", id, "type", "function", "function", call);
        if (entry && is_chunk)
            json_object_set_new(entry, "index", json_integer((json_int_t)i));
        if (json_array_append_new(out, entry) != 0) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

/* A call that was cut off is text. */
static json_t *find_calls(const struct job *job, const struct choice *choice, enum tutti_finish finish,
                          size_t *n_content)
{
    const json_t *tools = tools_of(job);
    *n_content = choice->text.n_bytes;
    if (!tools || finish != TUTTI_FINISH_STOP || choice->text.n_bytes == 0)
        return NULL;
    if (job->req.forced != API_FORCED_NONE) {
        json_t *forced = api_forced_calls(&job->req, choice->text.bytes, choice->text.n_bytes);
        *n_content = forced ? 0 : *n_content;
        return forced;
    }
    json_t *calls = chat_find_calls(choice->text.bytes, choice->text.n_bytes, tools, n_content);
    while (job->req.one_tool_call && json_array_size(calls) > 1)
        json_array_remove(calls, json_array_size(calls) - 1);
    return calls;
}

/* Where one function had to be called, there was nothing to stop for, as OpenAI has it. */
static json_t *reason_of_calls(const struct job *job)
{
    return json_string(job->req.forced == API_FORCED_NAMED ? "stop" : "tool_calls");
}

/* ---- replies ---- */

static json_t *whole(struct job *job, size_t index, struct choice *choice)
{
    size_t n_content;
    json_t *lp = job->req.logprobs && choice->logprobs ? json_incref(choice->logprobs) : json_null();
    json_t *calls = find_calls(job, choice, choice->finish, &n_content);
    json_t *content = calls && n_content == 0 ? json_null() : json_text(choice->text.bytes, n_content);
    json_t *message = json_pack("{s:s, s:o, s:n}", "role", "assistant", "content", content, "refusal");
    if (message && calls)
        json_object_set_new(message, "tool_calls", tool_calls(job, index, calls, false));
    json_t *reason = calls ? reason_of_calls(job) : openai_finish_reason(choice->finish);
    json_decref(calls);
    return json_pack("{s:I, s:o, s:o, s:o}", "index", (json_int_t)index, "message", message, "logprobs", lp,
                     "finish_reason", reason);
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

/* Where tools may be called, text is held back for as long as it may be a call. */
static json_t *stream_with_tools(struct job *job, size_t index, struct choice *choice,
                                 const struct tutti_event *event, json_t *lp)
{
    size_t n_sure;
    json_t *calls = NULL, *reason = NULL;
    if (!buf_add(&choice->text, event->text, event->n_text_bytes)) {
        openai_stream_choice(job, NULL); /* ends the job: no memory */
        json_decref(lp);
        return NULL;
    }
    if (event->finish == TUTTI_FINISH_NONE && job->req.forced != API_FORCED_NONE)
        n_sure = 0;
    else if (event->finish == TUTTI_FINISH_NONE)
        n_sure = chat_sure_content(choice->text.bytes, choice->text.n_bytes, tools_of(job));
    else
        calls = find_calls(job, choice, event->finish, &n_sure);
    size_t n_new = n_sure > choice->n_sent ? n_sure - choice->n_sent : 0;
    stream_content(job, index, choice->text.bytes + choice->n_sent, n_new, lp);
    choice->n_sent += n_new;
    if (calls) {
        json_t *delta = json_pack("{s:o}", "tool_calls", tool_calls(job, index, calls, true));
        openai_stream_choice(job, chunk_choice(index, delta, NULL, json_null()));
        reason = reason_of_calls(job);
    }
    json_decref(calls);
    return reason;
}

static void stream(struct job *job, size_t index, struct choice *choice, const struct tutti_event *event)
{
    if (!choice->has_begun) {
        choice->has_begun = true;
        openai_stream_choice(job,
                             chunk_choice(index, json_pack("{s:s, s:s}", "role", "assistant", "content", ""),
                                          NULL, json_null()));
    }
    bool has_tokens = job->req.logprobs && event->n_tokens > 0;
    json_t *lp = has_tokens ? logprobs(NULL, choice, event) : NULL, *reason = NULL;
    if (tools_of(job))
        reason = stream_with_tools(job, index, choice, event, lp);
    else
        stream_content(job, index, event->text, event->n_text_bytes, lp);
    if (event->finish != TUTTI_FINISH_NONE)
        openai_stream_choice(job, chunk_choice(index, json_object(), NULL,
                                               reason ? reason : openai_finish_reason(event->finish)));
    else
        json_decref(reason);
}

static enum tutti_status read_value(struct api_request *req, struct app *app, json_t *body,
                                    struct tutti_error *err)
{
    return api_request_read_value(req, API_CHAT, app->model, body, err);
}

const struct openai_api OPENAI_CHAT = {
    .job.read_value = read_value,
    .job.event = openai_event,
    .job.finish = openai_finish,
    .job.fail = openai_fail,
    .job.id_prefix = "chatcmpl",
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .whole = whole,
    .stream = stream,
    .logprobs = logprobs,
};

void chat_request(struct app *app, struct http_conn *conn)
{
    job_start(app, conn, &OPENAI_CHAT.job);
}
