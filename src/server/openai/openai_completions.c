/* POST /v1/completions: https://platform.openai.com/docs/api-reference/completions */
#include "base/utf8.h"
#include "server/openai/generated.h"
#include "server/openai/openai_reply.h"
#include "server/requests/infill_request.h"

#include <string.h>

static const char *const LISTS[REPLY_LISTS] = { "tokens", "token_logprobs", "top_logprobs", "text_offset" };

static json_t *new_logprobs(void)
{
    json_t *value = json_object();
    for (int k = 0; k < REPLY_LISTS; k++)
        json_object_set_new(value, LISTS[k], json_array());
    return value;
}

/* {token: logprob} of the most probable tokens, and of the token itself if it is not one of them. */
static json_t *top_value(const struct tutti_token *token, json_t *text)
{
    json_t *top = json_object();
    for (int k = 0; k <= token->n_top; k++) {
        bool is_own = k == token->n_top;
        json_t *name = is_own ? json_incref(text) : json_text(token->top[k].bytes, token->top[k].n_bytes);
        /* Several tokens can have the same text; the most probable one is kept. */
        const char *key = json_string_value(name);
        if (key && !json_object_get(top, key))
            json_object_set_new(top, key, json_logprob(is_own ? token->logprob : token->top[k].logprob));
        json_decref(name);
    }
    return top;
}

/* Takes ownership of text. offset: in characters. has_logprob: false for the first token of the
 * prompt. */
static void completion_add_token(json_t *into, const struct tutti_token *token, json_t *text,
                                 bool has_logprob, size_t offset)
{
    json_array_append_new(json_object_get(into, "token_logprobs"),
                          has_logprob ? json_logprob(token->logprob) : json_null());
    json_array_append_new(json_object_get(into, "top_logprobs"),
                          has_logprob ? top_value(token, text) : json_null());
    json_array_append_new(json_object_get(into, "tokens"), text);
    json_array_append_new(json_object_get(into, "text_offset"), json_integer((json_int_t)offset));
}

/* {"tokens": [], "token_logprobs": [], "top_logprobs": [{token: logprob}], "text_offset": []} */
static json_t *logprobs(struct reply_choice *choice, const struct tutti_event *event)
{
    json_t *into = new_logprobs();
    for (size_t i = 0; i < event->n_tokens; i++) {
        const struct tutti_token *token = &event->tokens[i];
        completion_add_token(into, token, json_text(token->bytes, token->n_bytes), true, choice->n_chars);
        choice->n_chars += utf8_count(token->bytes, token->n_bytes);
    }
    return into;
}

/* ---- echo ---- */

/* Length of a token's own bytes in the prompt's text, at offset at. Bytes that a tokenizer adds in
 * front of a text (such as a blank) are not part of the text; bytes that a normalizer has changed
 * are shown as in the token. */
static size_t own_bytes(const struct tutti_token *token, const char *text, size_t n_text, size_t *n_skipped)
{
    size_t n = token->n_bytes;
    *n_skipped = 0;
    if (n <= n_text && memcmp(text, token->bytes, n) == 0)
        return n;
    bool has_blank = n > 0 && token->bytes[0] == ' ';
    *n_skipped = has_blank && n - 1 <= n_text && memcmp(text, token->bytes + 1, n - 1) == 0;
    return n - *n_skipped < n_text ? n - *n_skipped : n_text;
}

/* Sets the prompt's text, and its log-probabilities if the event has them; shared by its choices. */
static bool completion_read_prompt(const struct job *job, struct submission *sub,
                                   const struct tutti_event *event)
{
    struct buf text = { 0 };
    bool ok = job_read_prompt_text(job, sub);
    if (!event->prompt_tokens)
        return ok;
    json_t *into = new_logprobs();
    ok = ok && into && job_prompt_text(job, sub->index * (size_t)job->req.n, &text);
    size_t at = 0, n_chars = 0;
    for (size_t i = 0; ok && i < event->n_prompt_tokens; i++) {
        const struct tutti_token *token = &event->prompt_tokens[i];
        size_t n_skipped, n = own_bytes(token, text.bytes + at, text.n_bytes - at, &n_skipped);
        completion_add_token(into, token, json_text(token->bytes + n_skipped, token->n_bytes - n_skipped),
                             i > 0, n_chars);
        n_chars += utf8_count(text.bytes + at, n);
        at += n;
    }
    buf_clear(&text);
    if (ok)
        sub->prompt = into;
    else
        json_decref(into);
    return ok;
}

/* The stop token that ended an answer is not part of its text. It gets an entry if the prompt's
 * tokens do, so that there is one entry for each computed token. */
static void add_stop_token(const struct job *job, json_t *into, const struct reply_choice *choice,
                           const struct tutti_event *event)
{
    struct tutti_token token = { .id = event->stop_token, .logprob = event->stop_logprob };
    completion_add_token(into, &token, generated_special(job->app, event->stop_token), true, choice->n_chars);
}

/* Sets the text offset where the answer's tokens begin. */
static bool begin_choice(struct job *job, size_t index, struct reply_choice *choice, struct buf *prompt)
{
    choice->has_begun = true;
    if (!job->req.echo)
        return true;
    if (!job_prompt_text(job, index, prompt))
        return false;
    choice->n_chars = utf8_count(prompt->bytes, prompt->n_bytes);
    return true;
}

/* ---- choices ---- */

static json_t *choice_value(size_t index, json_t *text, json_t *lp, enum tutti_finish finish)
{
    return json_pack("{s:I, s:o, s:o, s:o}", "index", (json_int_t)index, "text", text, "logprobs",
                     lp ? lp : json_null(), "finish_reason", openai_finish_reason(finish));
}

static json_t *whole(struct job *job, size_t index, struct reply_choice *choice)
{
    struct buf text = { 0 };
    json_t *value = NULL;
    if ((!job->req.echo || job_prompt_text(job, index, &text)) &&
        buf_add(&text, choice->text.bytes, choice->text.n_bytes))
        value = json_pack("{s:I, s:o, s:o}", "index", (json_int_t)index, "text",
                          json_text(text.bytes, text.n_bytes), "finish_reason",
                          openai_finish_reason(choice->finish));
    buf_clear(&text);
    return value;
}

/* Those of the prompt, if the reply has them, and of the answer. */
static bool write_logprobs(const struct job *job, size_t index, const struct reply_choice *choice,
                           struct buf *out)
{
    const json_t *prompt = job->subs[index / (size_t)job->req.n].prompt;
    if (!job->req.logprobs || (!prompt && choice->lists[0].n_bytes == 0))
        return buf_add_string(out, "null");
    bool ok = true;
    for (int k = 0; ok && k < REPLY_LISTS; k++) {
        struct buf list = { 0 };
        const struct buf *own = &choice->lists[k];
        ok = json_write_entries(&list, json_object_get(prompt, LISTS[k])) &&
             (list.n_bytes == 0 || own->n_bytes == 0 || buf_add_string(&list, ",")) &&
             buf_printf(out, "%s\"%s\":[", k == 0 ? "{" : ",", LISTS[k]) &&
             buf_add(out, list.bytes, list.n_bytes) && buf_add(out, own->bytes, own->n_bytes) &&
             buf_add_string(out, "]");
        buf_clear(&list);
    }
    return ok && buf_add_string(out, "}");
}

/* Log-probabilities added by an event; NULL: none, or out of memory. */
static json_t *event_logprobs(const struct job *job, struct reply_choice *choice,
                              const struct tutti_event *event)
{
    bool has_stop = job->req.echo && event->has_stop_token && event->finish != TUTTI_FINISH_NONE;
    if (!job->req.logprobs || (event->n_tokens == 0 && !has_stop))
        return NULL;
    json_t *into = logprobs(choice, event);
    if (has_stop)
        add_stop_token(job, into, choice, event);
    return into;
}

static void completion_collect(struct job *job, size_t index, struct reply_choice *choice,
                               const struct tutti_event *event)
{
    struct buf prompt = { 0 };
    bool ok = (choice->has_begun || begin_choice(job, index, choice, &prompt)) &&
              buf_add(&choice->text, event->text, event->n_text_bytes);
    buf_clear(&prompt);
    json_t *lp = ok ? event_logprobs(job, choice, event) : NULL;
    ok = ok && (lp || !job->req.logprobs || event->n_tokens == 0);
    for (int k = 0; ok && lp && k < REPLY_LISTS; k++)
        ok = json_write_entries(&choice->lists[k], json_object_get(lp, LISTS[k]));
    json_decref(lp);
    if (!ok)
        job_fail_memory(job);
}

/* The prompt is a chunk of its own, with the log-probabilities of its tokens. */
static bool completion_open(struct job *job, size_t index, struct buf *out)
{
    struct buf prompt = { 0 };
    bool ok = begin_choice(job, index, &job->choices[index], &prompt);
    if (ok && job->req.echo) {
        json_t *text = json_text(prompt.bytes, prompt.n_bytes);
        json_t *lp = job->req.logprobs ? json_incref(job->subs[index / (size_t)job->req.n].prompt) : NULL;
        ok = openai_write_chunk(job, choice_value(index, text, lp, TUTTI_FINISH_NONE), out);
    }
    buf_clear(&prompt);
    return ok;
}

static void stream(struct job *job, size_t index, struct reply_choice *choice,
                   const struct tutti_event *event)
{
    json_t *lp = event_logprobs(job, choice, event);
    if (event->n_text_bytes > 0 || lp || event->finish != TUTTI_FINISH_NONE)
        openai_stream_choice(
            job, choice_value(index, json_text(event->text, event->n_text_bytes), lp, event->finish));
}

static void completion_take_event(struct job *job, size_t index, struct reply_choice *choice,
                                  const struct tutti_event *event)
{
    if (job->req.stream) {
        job_begin_stream(job);
        stream(job, index, choice, event);
    } else {
        completion_collect(job, index, choice, event);
    }
}

static enum tutti_status completion_read_value(struct api_request *req, struct app *app, json_t *body,
                                               struct tutti_error *err)
{
    enum tutti_status st = api_request_read_client(req, API_COMPLETION, app->model, body, err);
    if (st == TUTTI_OK)
        st = infill_read_suffix(req, app, err);
    req->reports_prompt = req->echo;
    if (st == TUTTI_OK && req->prompt_logprobs && app->info.has_bidirectional_prompt)
        st = error_set_param(err, TUTTI_E_ARGUMENT, "echo",
                             "this model has bidirectional attention over the prompt: its tokens have no "
                             "log-probabilities, so echo cannot be combined with logprobs");
    if (st == TUTTI_OK && req->echo && !app->info.has_tokenizer)
        st = error_set_param(err, TUTTI_E_UNSUPPORTED, "echo",
                             "the model has no tokenizer, so the text of a prompt is not known");
    return st;
}

const struct openai_api OPENAI_COMPLETIONS = {
    .job.read_value = completion_read_value,
    .job.read_prompt = completion_read_prompt,
    .job.open = completion_open,
    .job.event = completion_take_event,
    .job.finish = openai_finish,
    .job.fail = openai_fail,
    .job.id_prefix = "cmpl-",
    .object = "text_completion",
    .chunk_object = "text_completion",
    .whole = whole,
    .write_logprobs = write_logprobs,
};
