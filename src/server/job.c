#include "server/job.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

static void job_free(struct job *job)
{
    if (job->link) {
        *job->link = job->next;
        if (job->next)
            job->next->link = job->link;
    }
    for (size_t i = 0; job->subs && i < job->req.n_prompts; i++)
        free(job->subs[i].spare);
    for (size_t i = 0; job->choices && i < job->n_choices; i++) {
        buf_clear(&job->choices[i].text);
        json_decref(job->choices[i].logprobs);
    }
    free(job->subs);
    free(job->choices);
    api_request_clear(&job->req);
    free(job);
}

static void cancel_all(struct job *job)
{
    for (size_t i = 0; i < job->req.n_prompts; i++)
        if (job->subs[i].is_open)
            tutti_engine_cancel(job->app->engine, job->subs[i].engine_id);
}

/* The client is gone. */
static void on_abort(void *user)
{
    struct job *job = user;
    job->conn = NULL;
    cancel_all(job);
}

/* Takes the connection off the job, to write its last words. */
static struct http_conn *take_conn(struct job *job)
{
    struct http_conn *conn = job->conn;
    job->conn = NULL;
    http_on_abort(conn, NULL, NULL);
    return conn;
}

/* ---- replies ----------------------------------------------------------------------------------------------------- */

json_t *job_frame(const struct job *job, const char *object)
{
    const char *adapter = job->req.adapter;
    return json_pack("{s:s, s:s, s:I, s:o, s:s}", "id", job->id, "object", object, "created",
                     (json_int_t)job->created, "model",
                     json_sprintf("%s%s%s", job->app->model_id, adapter ? ":" : "", adapter ? adapter : ""),
                     "system_fingerprint", job->app->fingerprint);
}

json_t *job_finish_reason(enum tutti_finish finish)
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

static json_t *usage_of(const struct job *job)
{
    size_t n_prompt = 0, n_cached = 0, n_generated = 0;
    for (size_t i = 0; i < job->req.n_prompts; i++) {
        n_prompt += job->subs[i].n_prompt_tokens;
        n_cached += job->subs[i].n_cached_tokens;
    }
    for (size_t i = 0; i < job->n_choices; i++)
        n_generated += job->choices[i].n_generated;
    size_t n_total = n_prompt + n_generated;
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)n_prompt, "completion_tokens",
                     (json_int_t)n_generated, "total_tokens", (json_int_t)n_total, "prompt_tokens_details",
                     "cached_tokens", (json_int_t)n_cached);
}

/* Fails the job: what was not sent yet becomes an error, the rest is cancelled. */
static void fail(struct job *job, const struct tutti_error *err)
{
    cancel_all(job);
    if (!job->conn)
        return;
    struct http_conn *conn = take_conn(job);
    int status = json_error_status(err->status);
    if (status >= 500 && err->status != TUTTI_E_CLOSED)
        log_error("%s: %s", http_request_id(conn), err->text);
    if (!http_stream_has_begun(conn)) {
        app_reply_error(conn, status, NULL, err);
        return;
    }
    /* The status line is gone already: clients look for an error among the chunks. */
    struct buf text = { 0 };
    if (buf_add_string(&text, "data: ") && json_error_body(&text, status, NULL, err) &&
        buf_add_string(&text, "\n\ndata: [DONE]\n\n"))
        http_stream_write(conn, text.bytes, text.n_bytes);
    buf_clear(&text);
    http_stream_end(conn);
}

static void fail_memory(struct job *job)
{
    struct tutti_error err;
    error_set(&err, TUTTI_E_MEMORY, "out of memory for the answer");
    fail(job, &err);
}

/* One "data:" line; drops the value. */
static bool stream_json(struct job *job, json_t *value)
{
    struct buf text = { 0 };
    bool ok = buf_add_string(&text, "data: ") && json_write(&text, value) && buf_add_string(&text, "\n\n");
    json_decref(value);
    if (ok && job->conn)
        http_stream_write(job->conn, text.bytes, text.n_bytes);
    buf_clear(&text);
    return ok;
}

void job_stream_choice(struct job *job, json_t *choice)
{
    if (!job->conn) {
        json_decref(choice);
        return;
    }
    json_t *chunk = job_frame(job, job->api->chunk_object);
    int failed = !choice || !chunk || json_object_set_new(chunk, "choices", json_pack("[o]", choice));
    if (!failed && job->req.include_usage)
        failed = json_object_set_new(chunk, "usage", json_null());
    if (failed || !stream_json(job, json_incref(chunk)))
        fail_memory(job);
    json_decref(chunk);
}

static void end_stream(struct job *job)
{
    if (job->req.include_usage) {
        json_t *chunk = job_frame(job, job->api->chunk_object);
        json_object_set_new(chunk, "choices", json_array());
        json_object_set_new(chunk, "usage", usage_of(job));
        if (!stream_json(job, chunk)) {
            fail_memory(job);
            return;
        }
    }
    struct http_conn *conn = take_conn(job);
    http_stream_write(conn, "data: [DONE]\n\n", 14);
    http_stream_end(conn);
}

static void reply_whole(struct job *job)
{
    json_t *reply = job_frame(job, job->api->object), *choices = json_array();
    int failed = 0;
    for (size_t i = 0; i < job->n_choices; i++)
        failed |= json_array_append_new(choices, job->api->whole(job, i, &job->choices[i]));
    failed |= json_object_set_new(reply, "choices", choices);
    failed |= json_object_set_new(reply, "usage", usage_of(job));
    if (failed) {
        json_decref(reply);
        fail_memory(job);
        return;
    }
    app_reply_json(take_conn(job), 200, reply);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static void begin_stream(struct job *job)
{
    http_header(job->conn, "Cache-Control", "no-cache");
    http_header(job->conn, "X-Accel-Buffering", "no");
    http_stream_begin(job->conn, 200, "text/event-stream; charset=utf-8");
}

static void collect(struct job *job, struct choice *choice, const struct tutti_event *event)
{
    if (!buf_add(&choice->text, event->text, event->n_text_bytes)) {
        fail_memory(job);
        return;
    }
    if (job->req.logprobs) {
        choice->logprobs = job->api->logprobs(choice->logprobs, choice, event);
        if (!choice->logprobs)
            fail_memory(job);
    }
}

/* An event for a client that is still there. */
static void deliver(struct job *job, size_t index, const struct tutti_event *event)
{
    struct choice *choice = &job->choices[index];
    if (event->finish == TUTTI_FINISH_ERROR) {
        fail(job, &event->error);
        return;
    }
    if (event->finish == TUTTI_FINISH_CANCELLED) {
        struct tutti_error err;
        error_set(&err, TUTTI_E_CLOSED, "the server is shutting down");
        fail(job, &err);
        return;
    }
    if (job->req.stream) {
        if (!http_stream_has_begun(job->conn))
            begin_stream(job);
        job->api->stream(job, index, choice, event);
    } else {
        collect(job, choice, event);
    }
    if (job->conn && job->n_unfinished == 0) {
        if (job->req.stream)
            end_stream(job);
        else
            reply_whole(job);
    }
}

void job_read_letter(void *user, const struct letter *letter)
{
    (void)user;
    const struct tutti_event *event = &letter->event;
    struct submission *sub = letter->submission;
    struct job *job = sub->job;
    size_t index = sub->index * (size_t)job->req.n + (size_t)event->choice;
    struct choice *choice = &job->choices[index];

    sub->n_prompt_tokens = event->n_prompt_tokens;
    sub->n_cached_tokens = event->n_cached_tokens;
    choice->n_generated = event->n_generated_tokens;
    if (event->ttft_us && !job->ttft_us)
        job->ttft_us = event->ttft_us;
    job->total_us = event->total_us;
    if (event->finish != TUTTI_FINISH_NONE && choice->finish == TUTTI_FINISH_NONE) {
        choice->finish = event->finish;
        job->n_unfinished--;
    }
    if (event->is_last) {
        sub->is_open = false;
        job->n_open--;
    }
    if (job->conn)
        deliver(job, index, event);
    if (job->n_open == 0) {
        if (job->conn) { /* the engine ended a request without finishing each choice: a defect, but no silence */
            struct tutti_error err;
            error_set(&err, TUTTI_E_INTERNAL, "the engine ended the request early");
            fail(job, &err);
        }
        job_free(job);
    }
}

/* ---- submission -------------------------------------------------------------------------------------------------- */

static struct job *job_new(struct app *app, struct http_conn *conn, enum api_kind kind,
                           const struct job_api *api, struct tutti_error *err)
{
    struct job *job = calloc(1, sizeof *job);
    if (!job) {
        error_set(err, TUTTI_E_MEMORY, "out of memory for the request");
        return NULL;
    }
    job->app = app;
    job->conn = conn;
    job->api = api;
    job->created = time(NULL);
    snprintf(job->id, sizeof job->id, "%s-%s", api->id_prefix, http_request_id(conn) + strlen("req_"));
    size_t n_bytes;
    const char *body = http_request_body(conn, &n_bytes);
    if (api_request_read(&job->req, kind, app->model, body, n_bytes, err) != TUTTI_OK) {
        job_free(job);
        return NULL;
    }
    job->n_choices = job->n_unfinished = job->req.n_prompts * (size_t)job->req.n;
    job->subs = calloc(job->req.n_prompts, sizeof *job->subs);
    job->choices = calloc(job->n_choices, sizeof *job->choices);
    bool ok = job->subs && job->choices;
    for (size_t i = 0; ok && i < job->req.n_prompts; i++) {
        job->subs[i] = (struct submission){ .job = job, .inbox = app->inbox, .index = i };
        job->subs[i].copies_tokens = job->req.logprobs;
        job->subs[i].spare = calloc(1, sizeof(struct letter));
        ok = job->subs[i].spare;
    }
    if (ok)
        return job;
    error_set(err, TUTTI_E_MEMORY, "out of memory for the request");
    job_free(job);
    return NULL;
}

/* Submits every prompt, or cancels those that were taken before one was refused. */
static enum tutti_status submit_all(struct job *job, struct tutti_error *err)
{
    for (size_t i = 0; i < job->req.n_prompts; i++) {
        struct tutti_request request = api_request_make(&job->req, i);
        enum tutti_status st = tutti_engine_submit(job->app->engine, &request, inbox_callback, &job->subs[i],
                                                   &job->subs[i].engine_id, err);
        if (st != TUTTI_OK)
            return st;
        job->subs[i].is_open = true;
        job->n_open++;
    }
    return TUTTI_OK;
}

void job_start(struct app *app, struct http_conn *conn, enum api_kind kind, const struct job_api *api)
{
    struct tutti_error err;
    struct job *job = job_new(app, conn, kind, api, &err);
    if (!job) {
        app_reply_error(conn, json_error_status(err.status), NULL, &err);
        return;
    }
    if (!app_check_model(app, conn, job->req.model, &job->req.adapter)) {
        job_free(job);
        return;
    }
    http_set_data(conn, job);
    http_on_abort(conn, on_abort, job);
    enum tutti_status st = submit_all(job, &err);
    if (st != TUTTI_OK)
        fail(job, &err);
    if (job->n_open == 0) {
        job_free(job);
        return;
    }
    job->next = app->jobs;
    job->link = &app->jobs;
    if (job->next)
        job->next->link = &job->next;
    app->jobs = job;
}

void job_stop_all(struct app *app)
{
    for (struct job *job = app->jobs; job; job = job->next)
        cancel_all(job);
}

bool job_prompt_text(const struct job *job, size_t index, struct buf *out)
{
    const struct api_prompt *prompt = &job->req.prompts[index / (size_t)job->req.n];
    if (prompt->text)
        return buf_add(out, prompt->text, prompt->n_text_bytes);
    const int32_t *ids = job->req.ids.ids + prompt->first_id;
    int64_t n = tutti_detokenize(job->app->model, ids, prompt->n_ids, NULL, 0);
    if (n < 0 || !buf_reserve(out, (size_t)n))
        return false;
    tutti_detokenize(job->app->model, ids, prompt->n_ids, out->bytes + out->n_bytes, (size_t)n);
    out->n_bytes += (size_t)n;
    out->bytes[out->n_bytes] = '\0';
    return true;
}

void job_describe(const struct job *job, char *out, size_t n_bytes)
{
    size_t n_prompt = 0, n_cached = 0, n_generated = 0;
    for (size_t i = 0; i < job->req.n_prompts; i++) {
        n_prompt += job->subs[i].n_prompt_tokens;
        n_cached += job->subs[i].n_cached_tokens;
    }
    for (size_t i = 0; i < job->n_choices; i++)
        n_generated += job->choices[i].n_generated;
    double seconds = job->total_us > job->ttft_us ? (double)(job->total_us - job->ttft_us) / 1e6 : 0;
    double rate = seconds > 0 && n_generated > job->n_choices
                      ? (double)(n_generated - job->n_choices) / seconds
                      : 0;
    snprintf(out, n_bytes, " id=%s prompt=%zu cached=%zu generated=%zu ttft_ms=%.1f tok_s=%.1f", job->id,
             n_prompt, n_cached, n_generated, (double)job->ttft_us / 1e3, rate);
}
