/* POST /v1/completions: https://platform.openai.com/docs/api-reference/completions */
#include "server/openai_reply.h"

/* {"tokens": [], "token_logprobs": [], "top_logprobs": [{token: logprob}], "text_offset": []}; offsets in characters */
static json_t *logprobs(json_t *into, struct choice *choice, const struct tutti_event *event)
{
    if (!into)
        into = json_pack("{s:[], s:[], s:[], s:[]}", "tokens", "token_logprobs", "top_logprobs",
                         "text_offset");
    json_t *tokens = json_object_get(into, "tokens"), *values = json_object_get(into, "token_logprobs");
    json_t *tops = json_object_get(into, "top_logprobs"), *offsets = json_object_get(into, "text_offset");
    for (size_t i = 0; i < event->n_tokens; i++) {
        const struct tutti_token *token = &event->tokens[i];
        json_t *top = json_object();
        for (int k = 0; k < token->n_top; k++) {
            json_t *name = json_text(token->top[k].bytes, token->top[k].n_bytes);
            /* Several tokens can read alike; the most probable comes first and stays. */
            const char *text = json_string_value(name);
            if (text && !json_object_get(top, text))
                json_object_set_new(top, text, json_logprob(token->top[k].logprob));
            json_decref(name);
        }
        json_array_append_new(tokens, json_text(token->bytes, token->n_bytes));
        json_array_append_new(values, json_logprob(token->logprob));
        json_array_append_new(tops, top);
        json_array_append_new(offsets, json_integer((json_int_t)choice->n_chars));
        for (size_t b = 0; b < token->n_bytes; b++)
            choice->n_chars += ((unsigned char)token->bytes[b] & 0xC0) !=
                               0x80; /* first bytes of characters */
    }
    return into;
}

static json_t *choice_value(size_t index, json_t *text, json_t *lp, enum tutti_finish finish)
{
    return json_pack("{s:I, s:o, s:o, s:o}", "index", (json_int_t)index, "text", text, "logprobs",
                     lp ? lp : json_null(), "finish_reason", openai_finish_reason(finish));
}

static json_t *whole(struct job *job, size_t index, struct choice *choice)
{
    struct buf text = { 0 };
    json_t *value = NULL, *lp = job->req.logprobs && choice->logprobs ? json_incref(choice->logprobs) : NULL;
    if ((!job->req.echo || job_prompt_text(job, index, &text)) &&
        buf_add(&text, choice->text.bytes, choice->text.n_bytes))
        value = choice_value(index, json_text(text.bytes, text.n_bytes), lp, choice->finish);
    else
        json_decref(lp);
    buf_clear(&text);
    return value;
}

static void stream(struct job *job, size_t index, struct choice *choice, const struct tutti_event *event)
{
    if (!choice->has_begun && job->req.echo) {
        struct buf prompt = { 0 };
        json_t *text = job_prompt_text(job, index, &prompt) ? json_text(prompt.bytes, prompt.n_bytes) : NULL;
        openai_stream_choice(job, text ? choice_value(index, text, NULL, TUTTI_FINISH_NONE) : NULL);
        buf_clear(&prompt);
    }
    choice->has_begun = true;
    bool has_tokens = job->req.logprobs && event->n_tokens > 0;
    if (event->n_text_bytes > 0 || has_tokens || event->finish != TUTTI_FINISH_NONE)
        openai_stream_choice(job,
                             choice_value(index, json_text(event->text, event->n_text_bytes),
                                          has_tokens ? logprobs(NULL, choice, event) : NULL, event->finish));
}

static enum tutti_status read_request(struct api_request *req, struct app *app, struct http_conn *conn,
                                      struct tutti_error *err)
{
    return openai_read(req, API_COMPLETION, app, conn, err);
}

static const struct openai_api COMPLETION_API = {
    .job.read = read_request,
    .job.event = openai_event,
    .job.finish = openai_finish,
    .job.fail = openai_fail,
    .job.id_prefix = "cmpl",
    .object = "text_completion",
    .chunk_object = "text_completion",
    .whole = whole,
    .stream = stream,
    .logprobs = logprobs,
};

void completion_request(struct app *app, struct http_conn *conn)
{
    job_start(app, conn, &COMPLETION_API.job);
}
