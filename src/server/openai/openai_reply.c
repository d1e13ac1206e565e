/* Builds OpenAI's chat and completion replies: whole, or in chunks. */
#include "server/openai/openai_reply.h"

#include "server/openai/openai_answer.h"

#include <string.h>

static const struct openai_api *api_of(const struct job *job)
{
    return (const struct openai_api *)(const void *)job->api; /* its first member */
}

/* {"id", "object", "created", "model", "system_fingerprint"}; the caller adds the rest. */
static json_t *openai_frame(const struct job *job, const char *object)
{
    return json_pack("{s:s, s:s, s:I, s:o, s:s}", "id", job->id, "object", object, "created",
                     (json_int_t)job->created, "model", app_model_name(job->app, job->req.adapter),
                     "system_fingerprint", job->app->fingerprint);
}

static json_t *token_entry(const char *bytes, size_t n_bytes, float logprob)
{
    return json_pack("{s:o, s:o, s:o}", "token", json_text(bytes, n_bytes), "logprob", json_logprob(logprob),
                     "bytes", json_byte_list(bytes, n_bytes));
}

void openai_add_logprobs(json_t *list, const struct tutti_event *event)
{
    for (size_t i = 0; i < event->n_tokens; i++) {
        const struct tutti_token *token = &event->tokens[i];
        json_t *entry = token_entry(token->bytes, token->n_bytes, token->logprob), *top = json_array();
        for (int k = 0; k < token->n_top; k++)
            json_array_append_new(
                top, token_entry(token->top[k].bytes, token->top[k].n_bytes, token->top[k].logprob));
        json_object_set_new(entry, "top_logprobs", top);
        json_array_append_new(list, entry);
    }
}

json_t *openai_finish_reason(enum tutti_finish finish)
{
    switch (finish) {
    case TUTTI_FINISH_NONE:
        return json_null();
    case TUTTI_FINISH_LENGTH:
        return json_string("length");
    default:
        return json_string("stop");
    }
}

static json_t *usage_value(const struct job *job)
{
    size_t n_cached, n_prompt = job_n_prompt_tokens(job, &n_cached), n_generated = job_n_generated(job);
    size_t n_total = n_prompt + n_generated;
    size_t n_accepted = 0, n_rejected = 0;
    for (size_t i = 0; i < job->n_choices; i++) {
        n_accepted += job->choices[i].n_accepted_drafts;
        n_rejected += job->choices[i].n_rejected_drafts;
    }
    return json_pack("{s:I, s:I, s:I, s:{s:I}, s:{s:I, s:I, s:I}}", "prompt_tokens", (json_int_t)n_prompt,
                     "completion_tokens", (json_int_t)n_generated, "total_tokens", (json_int_t)n_total,
                     "prompt_tokens_details", "cached_tokens", (json_int_t)n_cached,
                     "completion_tokens_details", "reasoning_tokens",
                     (json_int_t)answer_n_reasoning_tokens(job), "accepted_prediction_tokens",
                     (json_int_t)n_accepted, "rejected_prediction_tokens", (json_int_t)n_rejected);
}

bool openai_write_chunk(const struct job *job, json_t *choice, struct buf *out)
{
    json_t *chunk = openai_frame(job, api_of(job)->chunk_object);
    int failed = !choice || !chunk || json_object_set_new(chunk, "choices", json_pack("[o]", choice));
    if (!failed && job->req.include_usage)
        failed = json_object_set_new(chunk, "usage", json_null());
    bool ok = !failed && buf_add_string(out, "data: ") && json_write(out, chunk) &&
              buf_add_string(out, "\n\n");
    json_decref(chunk);
    return ok;
}

void openai_stream_choice(struct job *job, json_t *choice)
{
    struct buf chunk = { 0 };
    if (!job->conn)
        json_decref(choice);
    else
        job_stream_text(job, openai_write_chunk(job, choice, &chunk), &chunk);
}

static void end_stream(struct job *job)
{
    if (job->req.include_usage) {
        json_t *chunk = openai_frame(job, api_of(job)->chunk_object);
        json_object_set_new(chunk, "choices", json_array());
        json_object_set_new(chunk, "usage", usage_value(job));
        if (!job_stream_json(job, "data: ", chunk, "\n\n")) {
            job_fail_memory(job);
            return;
        }
    }
    struct http_conn *conn = job_take_conn(job);
    http_stream_write(conn, "data: [DONE]\n\n", 14);
    http_stream_end(conn);
}

/* The mean log-probability of a choice's tokens. */
static double choice_score(const struct reply_choice *choice)
{
    return choice->n_scored > 0 ? choice->logprob_sum / (double)choice->n_scored : 0;
}

/* True: the choice is part of the reply: all are, or of each prompt the n_best with the highest
 * mean log-probability. */
static bool is_answer(const struct job *job, size_t index)
{
    size_t n = (size_t)job->req.n, n_better = 0, first = index / n * n;
    double own = choice_score(&job->choices[index]);
    if (job->req.n_best == 0)
        return true;
    for (size_t i = first; i < first + n; i++) {
        double score = choice_score(&job->choices[i]);
        n_better += score > own || (score == own && i < index);
    }
    return n_better < (size_t)job->req.n_best;
}

/* place: among the choices of the reply. */
static bool write_choice(struct job *job, size_t index, size_t place, struct buf *out)
{
    struct reply_choice *choice = &job->choices[index];
    json_t *value = api_of(job)->whole(job, index, choice),
           *reason = json_incref(json_object_get(value, "finish_reason"));
    json_object_del(value, "finish_reason");
    if (value && job->req.n_best > 0)
        json_object_set_new(value, "index", json_integer((json_int_t)place));
    bool ok = value && (place == 0 || buf_add_string(out, ",")) && json_write_open(out, value) &&
              buf_add_string(out, ",\"logprobs\":") && api_of(job)->write_logprobs(job, index, choice, out) &&
              buf_add_string(out, ",\"finish_reason\":") && json_write(out, reason) &&
              buf_add_string(out, "}");
    json_decref(reason);
    json_decref(value);
    return ok;
}

/* Each choice is written before the next one is built. */
static bool write_reply(struct job *job, struct buf *out)
{
    json_t *reply = openai_frame(job, api_of(job)->object), *usage = usage_value(job);
    size_t place = 0;
    bool ok = json_write_open(out, reply) && buf_add_string(out, ",\"choices\":[");
    for (size_t i = 0; ok && i < job->n_choices; i++)
        if (is_answer(job, i))
            ok = write_choice(job, i, place++, out);
    ok = ok && buf_add_string(out, "],\"usage\":") && json_write(out, usage) && buf_add_string(out, "}");
    json_decref(usage);
    json_decref(reply);
    return ok;
}

/* ---- events ---- */

static void collect_logprobs(struct job *job, struct reply_choice *choice, const struct tutti_event *event)
{
    if (!answer_add(job, choice, event)) {
        job_fail_memory(job);
        return;
    }
    if (!job->req.logprobs)
        return;
    json_t *list = json_array();
    openai_add_logprobs(list, event);
    if (!list || !json_write_entries(&choice->lists[0], list))
        job_fail_memory(job);
    json_decref(list);
}

void openai_event(struct job *job, size_t index, struct reply_choice *choice, const struct tutti_event *event)
{
    if (job->req.stream) {
        job_begin_stream(job);
        api_of(job)->stream(job, index, choice, event);
    } else {
        collect_logprobs(job, choice, event);
    }
}

void openai_finish(struct job *job)
{
    if (job->req.stream)
        end_stream(job);
    else
        job_reply(job, write_reply);
}

void openai_fail(struct app *app, struct job *job, struct http_conn *conn, const struct tutti_error *err)
{
    (void)app, (void)job;
    int status = json_error_status(err->status);
    app_fail(conn, status, "data: ", json_error_value(status, err), "\n\ndata: [DONE]\n\n", err);
}
