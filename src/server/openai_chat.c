/* POST /v1/chat/completions: https://platform.openai.com/docs/api-reference/chat */
#include "server/job.h"

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

static json_t *whole(struct job *job, size_t index, struct choice *choice)
{
    json_t *lp = job->req.logprobs && choice->logprobs ? json_incref(choice->logprobs) : json_null();
    return json_pack("{s:I, s:{s:s, s:o, s:n}, s:o, s:o}", "index", (json_int_t)index, "message", "role",
                     "assistant", "content", json_text(choice->text.bytes, choice->text.n_bytes), "refusal",
                     "logprobs", lp, "finish_reason", job_finish_reason(choice->finish));
}

static json_t *chunk_choice(size_t index, json_t *delta, json_t *lp, enum tutti_finish finish)
{
    return json_pack("{s:I, s:o, s:o, s:o}", "index", (json_int_t)index, "delta", delta, "logprobs",
                     lp ? lp : json_null(), "finish_reason", job_finish_reason(finish));
}

static void stream(struct job *job, size_t index, struct choice *choice, const struct tutti_event *event)
{
    if (!choice->has_begun) {
        choice->has_begun = true;
        job_stream_choice(job,
                          chunk_choice(index, json_pack("{s:s, s:s}", "role", "assistant", "content", ""),
                                       NULL, TUTTI_FINISH_NONE));
    }
    bool has_tokens = job->req.logprobs && event->n_tokens > 0;
    if (event->n_text_bytes > 0 || has_tokens)
        job_stream_choice(
            job,
            chunk_choice(index, json_pack("{s:o}", "content", json_text(event->text, event->n_text_bytes)),
                         has_tokens ? logprobs(NULL, choice, event) : NULL, TUTTI_FINISH_NONE));
    if (event->finish != TUTTI_FINISH_NONE)
        job_stream_choice(job, chunk_choice(index, json_object(), NULL, event->finish));
}

static const struct job_api CHAT_API = {
    .id_prefix = "chatcmpl",
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .whole = whole,
    .stream = stream,
    .logprobs = logprobs,
};

void chat_request(struct app *app, struct http_conn *conn)
{
    job_start(app, conn, API_CHAT, &CHAT_API);
}
