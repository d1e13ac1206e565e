#include "server/slots.h"

#include "base/system/clock.h"
#include "server/job.h"
#include "server/models/model_set.h"

#include <stdio.h>
#include <string.h>

/* What the engine tells of all prompts of a job. */
struct slot_progress {
    size_t n_of_phase[TUTTI_PHASE_PREEMPTED + 1];
    size_t n_prompt, n_cached, n_computed;
    bool is_tokenized; /* every prompt is */
};

static void add_prompt(struct slot_progress *out, const struct job *job, size_t i)
{
    const struct submission *sub = &job->subs[i];
    struct tutti_progress now = { .phase = TUTTI_PHASE_WAITING };
    bool is_running = sub->is_open && tutti_engine_progress(job->app->engine, sub->engine_id, &now);
    size_t n_prompt = is_running ? (size_t)now.n_prompt_tokens : sub->n_prompt_tokens;
    size_t n_computed = is_running ? (size_t)now.n_computed_tokens : n_prompt;
    out->n_of_phase[now.phase] += is_running || i >= job->n_submitted;
    out->n_prompt += n_prompt;
    out->n_cached += is_running ? (size_t)now.n_cached_tokens : sub->n_cached_tokens;
    out->n_computed += n_computed < n_prompt ? n_computed : n_prompt;
    out->is_tokenized = out->is_tokenized && n_prompt > 0;
}

/* A request of several prompts is as far as the one that is farthest. */
static const char *state_of(const struct job *job, const struct slot_progress *progress)
{
    static const struct {
        enum tutti_phase phase;
        const char *name;
    } STATES[] = { { TUTTI_PHASE_DECODE, "decode" },
                   { TUTTI_PHASE_PREFILL, "prefill" },
                   { TUTTI_PHASE_PREEMPTED, "preempted" },
                   { TUTTI_PHASE_WAITING, "waiting" } };
    if (job->is_over)
        return "ending";
    for (size_t i = 0; i < sizeof STATES / sizeof *STATES; i++)
        if (progress->n_of_phase[STATES[i].phase] > 0)
            return STATES[i].name;
    return "ending";
}

static json_t *name_value(const char *name)
{
    return name && *name ? json_text(name, strlen(name)) : json_null();
}

static json_t *entry_value(const char *id, json_t *model, const char *key, const char *state,
                           uint64_t since_us)
{
    uint64_t now_us = clock_now_us();
    bool is_working = !strcmp(state, "decode") || !strcmp(state, "prefill");
    return json_pack("{s:o, s:o, s:o, s:s, s:b, s:f}", "id", json_text(id, strlen(id)), "model", model, "key",
                     name_value(key), "state", state, "is_processing", is_working, "age_s",
                     now_us > since_us ? (double)(now_us - since_us) * 1e-6 : 0.0);
}

static json_t *job_value(const struct job *job)
{
    struct slot_progress progress = { .is_tokenized = true };
    for (size_t i = 0; i < job->req.n_prompts; i++)
        add_prompt(&progress, job, i);
    bool has_keys = job->app->keys && job->client; /* without keys, clients are addresses */
    json_t *value = entry_value(job->id, app_model_name(job->app, job->req.adapter),
                                has_keys ? job->client->name : NULL, state_of(job, &progress), job->start_us);
    json_t *more = json_pack(
        "{s:o, s:I, s:I, s:I, s:I, s:b}", "prompt_tokens",
        progress.is_tokenized ? json_integer((json_int_t)progress.n_prompt) : json_null(), "cached_tokens",
        (json_int_t)progress.n_cached, "computed_prompt_tokens", (json_int_t)progress.n_computed,
        "generated_tokens", (json_int_t)job_n_generated(job), "n", (json_int_t)job->n_choices, "stream",
        job->req.stream);
    if (value && more)
        json_object_update(value, more);
    json_decref(more);
    return value;
}

json_t *slots_waiting(const struct http_conn *conn, const char *model)
{
    const struct http_request *request = http_request(conn);
    return entry_value(request->id, json_string(model), request->caller, "loading", request->start_us);
}

void slots_reply(struct http_conn *conn, json_t *list, size_t n)
{
    char text[32];
    snprintf(text, sizeof text, "%zu", n);
    http_header(conn, "X-Total-Count", text);
    app_reply_json(conn, 200, list);
}

void slots_request(struct app *app, struct http_conn *conn)
{
    const struct job *job;
    size_t n = 0, i = 0;
    if (app->models) {
        model_set_slots(app->models, conn);
        return;
    }
    LIST_FOREACH (job, &app->jobs, link)
        n++;
    size_t n_skipped = n > SLOTS_MAX ? n - SLOTS_MAX : 0; /* the newest is the first of the list */
    json_t *list = json_array();
    LIST_FOREACH (job, &app->jobs, link)
        if (i++ >= n_skipped)
            json_array_insert_new(list, 0, job_value(job));
    slots_reply(conn, list, n);
}
