#include "server/job.h"

#include "base/log.h"
#include "base/system/clock.h"
#include "server/access/keys.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_OPEN = 256, /* prompts of a job on the engine at the same time: the default of max_seqs */
    MAX_OPEN_BYTES = 8 * 1024 * 1024, /* of the engine's copies of what all prompts of a job share */
};

static void handle_events(struct job *job);

static uint64_t owner_of(const struct job *job)
{
    return job->client ? job->client->id : 0;
}

/* Releases what the reply is written from. */
static void drop_contents(struct job *job)
{
    for (size_t i = 0; i < job->n_submitted; i++) {
        json_decref(job->subs[i].prompt);
        buf_clear(&job->subs[i].prompt_text);
        job->subs[i].prompt = NULL;
    }
    for (size_t i = 0; i < job->n_submitted * (size_t)job->req.n; i++) {
        struct reply_choice *choice = &job->choices[i];
        json_decref(choice->items);
        json_decref(choice->logprobs);
        json_decref(choice->tokens);
        json_decref(choice->tops);
        choice->items = choice->logprobs = choice->tokens = choice->tops = NULL;
        buf_clear(&choice->text);
        buf_clear(&choice->held);
        buf_clear(&choice->raw);
        buf_clear(&choice->reasoning);
        for (int k = 0; k < REPLY_LISTS; k++)
            buf_clear(&choice->lists[k]);
    }
}

/* On the loop or a worker: frees the job, which nothing else uses any more. */
static void job_release(void *user)
{
    struct job *job = user;
    drop_contents(job);
    for (size_t i = 0; job->subs && i < job->req.n_prompts; i++)
        free(job->subs[i].spare);
    for (size_t i = 0; i < job->n_submitted * (size_t)job->req.n; i++) {
        buf_clear(&job->choices[i].turns);
        buf_clear(&job->choices[i].places);
        tutti_reasoning_parser_free(job->choices[i].splitter);
        tutti_tool_parser_free(job->choices[i].calls.parser);
    }
    free(job->subs);
    free(job->choices);
    api_request_clear(&job->req);
    free(job);
}

static void job_free(struct job *job)
{
    if (job->link.le_prev)
        LIST_REMOVE(job, link);
    job->app->n_stalled -= job->is_stalled;
    for (size_t i = job->n_submitted; job->client && job->subs && i < job->req.n_prompts; i++)
        client_charge(job->client, -job->subs[i].n_charged); /* refunds prompts that were never submitted */
    uint64_t owner = owner_of(job);
    if (job->client)
        client_leave(job->app->clients, job->client, (int64_t)job->n_choices);
    http_body_free(job->memory);
    http_body_free(job->reply_memory);
    intake_release(job->app, owner, job->req.n_bytes + job->n_reply_bytes, job_release, job);
}

static void cancel_all(struct job *job)
{
    for (size_t i = 0; i < job->n_submitted; i++)
        if (job->subs[i].is_open)
            tutti_engine_cancel(job->app->engine, job->subs[i].engine_id);
}

/* The client has disconnected. */
static void job_on_abort(void *user)
{
    struct job *job = user;
    job->conn = NULL;
    cancel_all(job);
    if (job->is_stalled)
        handle_events(job); /* frees it, unless a worker has it */
}

struct http_conn *job_take_conn(struct job *job)
{
    struct http_conn *conn = job->conn;
    job->conn = NULL;
    if (conn)
        http_on_abort(conn, NULL, NULL);
    return conn;
}

static bool is_listened_to(const struct job *job)
{
    return !job->is_over && (job->conn || job->api->is_detached || job->sink.reply);
}

void job_drop(struct job *job)
{
    job->is_over = true;
    cancel_all(job);
}

/* ---- memory of the reply ---- */

enum { CHARGE_STEP_BYTES = 16 * 1024 };

/* Counts n_more bytes. TUTTI_E_BUSY: the replies to the client's requests take too much memory. */
static enum tutti_status count_bytes(struct job *job, size_t n_more, struct tutti_error *err)
{
    job->n_reply_bytes += n_more;
    if (n_more == 0 || !job->reply_memory || job->n_reply_bytes <= HTTP_SMALL_REPLY_BYTES)
        return TUTTI_OK;
    size_t n_steps = (job->n_reply_bytes + CHARGE_STEP_BYTES - 1) / CHARGE_STEP_BYTES;
    http_body_set_charge(job->reply_memory, n_steps * CHARGE_STEP_BYTES);
    return http_check_reply_memory(job->reply_memory, err);
}

static size_t choice_bytes(const struct job *job, const struct reply_choice *choice)
{
    enum { ENTRY_BYTES = 1024 }; /* of a log-probability as a JSON value */
    size_t n_bytes = choice->n_json_bytes + choice->text.capacity + choice->held.capacity +
                     choice->raw.capacity + choice->reasoning.capacity + choice->places.capacity;
    for (int k = 0; k < REPLY_LISTS; k++)
        n_bytes += choice->lists[k].capacity;
    if (choice->logprobs)
        n_bytes += choice->n_scored * ((size_t)job->req.top_logprobs + 1) * ENTRY_BYTES;
    return n_bytes;
}

/* ---- replies ---- */

static void reply_error(const struct job_sink *sink, const struct tutti_error *err)
{
    struct buf body = { 0 };
    int status = json_error_status(err->status);
    bool ok = json_error_body(&body, status, err);
    sink->reply(sink->user, status, ok ? body.bytes : "null", ok ? body.n_bytes : 4);
    buf_clear(&body);
}

/* Makes an error name the field that the client sent. */
static void name_field(const struct job *job, struct tutti_error *err)
{
    api_name_field(&job->req, err);
    if (job->api->name_field)
        job->api->name_field(err);
}

/* Ends the job with an error. */
static void job_fail(struct job *job, const struct tutti_error *cause)
{
    struct tutti_error named = *cause, *err = &named;
    cancel_all(job);
    if (!is_listened_to(job))
        return;
    name_field(job, err);
    struct http_conn *conn = job_take_conn(job);
    job->is_over = true;
    if (json_error_status(err->status) >= 500 && err->status != TUTTI_E_CLOSED &&
        err->status != TUTTI_E_TIMEOUT)
        log_error("%s: %s", job->id, err->text);
    if (job->sink.reply)
        reply_error(&job->sink, err);
    else
        job->api->fail(job->app, job, conn, err);
}

static void send_body(struct job *job, const struct buf *body)
{
    if (job->sink.reply) {
        job->sink.reply(job->sink.user, 200, body->bytes, body->n_bytes);
        return;
    }
    struct http_conn *conn = job_take_conn(job);
    if (http_stream_has_begun(conn)) {
        http_stream_write(conn, body->bytes, body->n_bytes);
        http_stream_end(conn);
        return;
    }
    http_body_free(job->reply_memory); /* http_reply() counts the body */
    job->reply_memory = NULL;
    http_reply(conn, 200, "application/json", body->bytes, body->n_bytes);
}

/* On the worker the contents are freed, too, because that takes about as long. */
static void write_reply(struct intake_task *task)
{
    struct job *job = task->user;
    if (!job->write(job, &task->reply))
        task->status = TUTTI_E_MEMORY;
    drop_contents(job);
}

static void send_reply(struct intake_task *task, struct http_conn *conn)
{
    struct job *job = task->user;
    (void)conn;
    job->is_working = false;
    if (job->conn && task->status == TUTTI_OK) {
        send_body(job, &task->reply);
    } else if (job->conn) {
        job->is_over = false;
        job_fail_memory(job);
    }
    handle_events(job);
}

/* Bytes of a reply for n tokens. */
static size_t token_bytes(const struct job *job, size_t n)
{
    enum { TEXT_BYTES = 4, ENTRY_BYTES = 80 }; /* rough means; of the text, and of a log-probability */
    return n * (job->req.logprobs ? ((size_t)job->req.top_logprobs + 1) * ENTRY_BYTES : TEXT_BYTES);
}

enum { LARGE_BYTES = 64 * 1024 }; /* writing more on the loop would delay other streams */

/* Cost of writing the reply: about its bytes. */
static size_t reply_cost(const struct job *job)
{
    size_t n = job_n_generated(job);
    if (job->req.reports_prompt)
        n += job_n_prompt_tokens(job, NULL) * (size_t)job->req.n;
    return job->n_reply_bytes + job->req.n_repeated_bytes + token_bytes(job, n);
}

void job_reply(struct job *job, job_write_fn *write)
{
    static const struct intake_route WRITE = { .read = write_reply, .done = send_reply };
    size_t cost = reply_cost(job);
    job->write = write;
    if (job->conn && cost > LARGE_BYTES) {
        job->is_working = intake_run(job->app, owner_of(job), cost, &WRITE, job);
        if (job->is_working)
            return;
    }
    struct buf body = { 0 };
    if (write(job, &body))
        send_body(job, &body);
    else
        job_fail_memory(job);
    buf_clear(&body);
}

void job_end_choice(struct job *job, size_t index)
{
    struct reply_choice *choice = &job->choices[index];
    if (choice->finish == TUTTI_FINISH_NONE)
        job->n_unfinished--;
    choice->finish = TUTTI_FINISH_LENGTH;
    if (job->n_unfinished == 0)
        cancel_all(job);
}

void job_fail_memory(struct job *job)
{
    struct tutti_error err;
    error_set(&err, TUTTI_E_MEMORY, "out of memory for the answer");
    job_fail(job, &err);
}

/* Counts what was added for the reply, and ends a job that takes too much memory. */
static void job_count(struct job *job, size_t n_more)
{
    struct tutti_error err;
    if (count_bytes(job, n_more, &err) != TUTTI_OK)
        job_fail(job, &err);
}

bool job_write_json(struct buf *out, json_t *value, const char *end)
{
    bool ok = value && json_write(out, value) && buf_add_string(out, end);
    json_decref(value);
    return ok;
}

void job_stream_text(struct job *job, bool ok, struct buf *text)
{
    if (!ok)
        job_fail_memory(job);
    else if (job->conn)
        http_stream_write(job->conn, text->bytes, text->n_bytes);
    buf_clear(text);
}

bool job_stream_json(struct job *job, const char *prefix, json_t *value, const char *end)
{
    struct buf text = { 0 };
    bool ok = buf_add_string(&text, prefix) && json_write(&text, value) && buf_add_string(&text, end);
    json_decref(value);
    if (ok && job->conn)
        http_stream_write(job->conn, text.bytes, text.n_bytes);
    buf_clear(&text);
    return ok;
}

void job_begin_stream(struct job *job)
{
    if (http_stream_has_begun(job->conn))
        return;
    http_header(job->conn, "Cache-Control", "no-cache");
    http_header(job->conn, "X-Accel-Buffering", "no");
    http_stream_begin(job->conn, 200, "text/event-stream; charset=utf-8");
}

size_t job_n_prompt_tokens(const struct job *job, size_t *n_cached)
{
    size_t n_prompt = 0, n = 0;
    for (size_t i = 0; i < job->req.n_prompts; i++) {
        n_prompt += job->subs[i].n_prompt_tokens;
        n += job->subs[i].n_cached_tokens;
    }
    if (n_cached)
        *n_cached = n;
    return n_prompt;
}

size_t job_n_generated(const struct job *job)
{
    size_t n_generated = 0;
    for (size_t i = 0; i < job->n_submitted * (size_t)job->req.n; i++)
        n_generated += job->choices[i].n_generated;
    return n_generated;
}

/* ---- submission ---- */

static enum tutti_status submit(struct job *job, size_t i, struct tutti_error *err)
{
    const struct client *client = job->client;
    struct tutti_request request = api_request_make(&job->req, i);
    request.tenant = job->tenant;
    if (i > 0)
        request.max_queue_ms = -1; /* the time limit applies to the first prompt */
    if (client) {
        request.owner = client->id;
        request.weight = client->limits.weight;
        if (!job->req.has_priority || request.priority < client->limits.priority)
            request.priority = client->limits.priority;
    }
    return tutti_engine_submit(job->app->engine, &request, inbox_callback, &job->subs[i],
                               &job->subs[i].engine_id, err);
}

/* The engine copies the grammar and the stop strings for each prompt, so fewer prompts are open at a time
 * if they are large. */
static size_t max_open(const struct job *job)
{
    size_t n_bytes = job->req.n_grammar_bytes + 1;
    for (size_t i = 0; i < job->req.n_stop; i++)
        n_bytes += job->req.stop[i].n_bytes * (1 + sizeof(uint16_t)); /* with their borders: stops.h */
    size_t n = MAX_OPEN_BYTES / n_bytes;
    return n < 1 ? 1 : n > MAX_OPEN ? MAX_OPEN : n;
}

/* Submits as many prompts as the engine takes now. If the queue is full, a job that has started waits until
 * a prompt has ended: its own, or, if it has none, another job's. */
static enum tutti_status submit_some(struct job *job, struct tutti_error *err)
{
    while (job->n_submitted < job->req.n_prompts && job->n_open < max_open(job)) {
        struct submission *sub = &job->subs[job->n_submitted];
        if (!sub->spare && !(sub->spare = calloc(1, sizeof *sub->spare)))
            return error_set(err, TUTTI_E_MEMORY, "out of memory for the request");
        enum tutti_status st = submit(job, job->n_submitted, err);
        if (st == TUTTI_E_BUSY && job->n_submitted > 0)
            return TUTTI_OK;
        if (st != TUTTI_OK)
            return st;
        job->subs[job->n_submitted++].is_open = true;
        job->n_open++;
    }
    return TUTTI_OK;
}

static void submit_more(struct job *job)
{
    struct tutti_error err;
    if (is_listened_to(job) && submit_some(job, &err) != TUTTI_OK)
        job_fail(job, &err);
    bool is_stalled = is_listened_to(job) && job->n_open == 0 && job->n_submitted < job->req.n_prompts;
    job->app->n_stalled += (size_t)is_stalled - (size_t)job->is_stalled;
    job->is_stalled = is_stalled;
}

/* ---- events ---- */

/* All choices were answered: counts whether they met the latency targets. */
static void count_answer(const struct job *job)
{
    const struct server_options *options = job->app->options;
    size_t n = 0;
    for (size_t i = 0; i < job->n_choices; i++)
        n = job->choices[i].n_generated > n ? job->choices[i].n_generated : n;
    double ttft_ms = (double)job->ttft_us / 1e3, total_ms = (double)job->total_us / 1e3;
    double itl_ms = n > 1 ? (total_ms - ttft_ms) / (double)(n - 1) : 0;
    job->app->n_answered++;
    job->app->n_good += (options->ttft_target_ms <= 0 || ttft_ms <= options->ttft_target_ms) &&
                        (options->itl_target_ms <= 0 || itl_ms <= options->itl_target_ms);
}

/* Passes an event to the API. */
static void deliver(struct job *job, size_t index, const struct tutti_event *event)
{
    if (event->finish == TUTTI_FINISH_ERROR) {
        job_fail(job, &event->error);
        return;
    }
    if (event->finish == TUTTI_FINISH_CANCELLED) {
        struct tutti_error err;
        error_set(&err, TUTTI_E_CLOSED, "the server is shutting down");
        job_fail(job, &err);
        return;
    }
    struct reply_choice *choice = &job->choices[index];
    for (size_t i = 0; i < event->n_tokens; i++)
        choice->logprob_sum += (double)event->tokens[i].logprob;
    choice->n_scored += event->n_tokens;
    if (event->has_stop_token && event->finish != TUTTI_FINISH_NONE) {
        choice->has_stop_token = true;
        choice->logprob_sum += (double)event->stop_logprob;
        choice->n_scored++;
    }
    if (event->has_stop_string && event->finish == TUTTI_FINISH_STOP)
        choice->stop_string = &job->req.stop[event->stop_string];
    job->api->event(job, index, choice, event);
    size_t n_bytes = choice_bytes(job, choice), n_before = choice->n_counted;
    choice->n_counted = n_bytes;
    if (n_bytes > n_before)
        job_count(job, n_bytes - n_before);
    if (is_listened_to(job) && job->n_unfinished == 0) {
        count_answer(job);
        job->api->finish(job);
        job->is_over = true;
    }
}

/* A prompt of which no choice has started is charged only for parsing. A beam search is charged for the tokens of all its beams, also
 * if it was cancelled. */
static void job_charge(struct job *job, struct submission *sub, const struct tutti_event *event)
{
    const struct reply_choice
        *choice = &job->choices[sub->index * (size_t)job->req.n + (size_t)event->choice];
    struct client_counts *counts = &job->client->counts;
    bool is_unbegun = sub->n_accounted == 0 && event->finish != TUTTI_FINISH_NONE && event->queue_us == 0 &&
                      event->ttft_us == 0;
    int64_t n_prompt = is_unbegun ? 0 : (int64_t)event->n_prompt_tokens;
    int64_t n_read = is_unbegun ? api_request_read_cost(&job->req, sub->index) : 0; /* parsed in vain */
    int64_t n_generated = (int64_t)choice->n_new;
    counts->n_prompt_tokens += (uint64_t)(n_prompt - sub->n_accounted);
    counts->n_generated_tokens += (uint64_t)n_generated;
    int64_t n_computed = job->req.n_beams > 1 ? (int64_t)event->n_searched_tokens : n_generated;
    client_charge(job->client, n_prompt - sub->n_charged + n_computed + (sub->is_read_charged ? 0 : n_read));
    sub->is_read_charged = is_unbegun;
    sub->n_charged = sub->n_accounted = n_prompt;
}

/* The choice that an event is about. */
static size_t choice_of(const struct job *job, const struct inbox_event *item)
{
    return item->submission->index * (size_t)job->req.n + (size_t)item->event.choice;
}

static void handle_event(struct job *job, const struct inbox_event *item)
{
    const struct tutti_event *event = &item->event;
    struct submission *sub = item->submission;
    size_t index = choice_of(job, item);
    struct reply_choice *choice = &job->choices[index];

    choice->n_new = event->n_generated_tokens - choice->n_generated;
    choice->n_generated = event->n_generated_tokens;
    if (job->client)
        job_charge(job, sub, event);
    sub->n_prompt_tokens = event->n_prompt_tokens;
    sub->n_cached_tokens = event->n_cached_tokens;
    choice->n_accepted_drafts = event->n_accepted_drafts;
    choice->n_rejected_drafts = event->n_rejected_drafts;
    if (event->ttft_us && !job->ttft_us)
        job->ttft_us = event->ttft_us;
    if (event->queue_us && !job->queue_us)
        job->queue_us = event->queue_us;
    job->total_us = event->total_us;
    if (event->finish != TUTTI_FINISH_NONE && choice->finish == TUTTI_FINISH_NONE) {
        choice->finish = event->finish;
        job->n_unfinished--;
    }
    if (event->is_last) {
        sub->is_open = false;
        job->n_open--;
    }
    if (is_listened_to(job))
        deliver(job, index, event);
    if (event->is_last)
        submit_more(job);
}

/* ---- the beginning of a choice ---- */

/* Before the first waiting event is handled: reads its data about the prompt, if nothing has yet, and writes what a stream
 * begins with. False: out of memory. */
static bool read_beginning(struct job *job, struct buf *opening)
{
    const struct inbox_event *item = job->first_event;
    struct submission *sub = item->submission;
    if (job->req.reports_prompt && !sub->is_prompt_read) {
        if (!job->api->read_prompt(job, sub, &item->event))
            return false;
        sub->n_prompt_bytes = sub->prompt_text.capacity + (sub->prompt ? json_tree_bytes(sub->prompt) : 0);
    }
    return !job->req.stream || !job->api->open || job->api->open(job, choice_of(job, item), opening);
}

/* After read_beginning(), on the loop. */
static void begin_choice(struct job *job, bool ok, const struct buf *opening)
{
    const struct inbox_event *item = job->first_event;
    struct submission *sub = item->submission;
    size_t n_new = sub->is_prompt_read ? 0 : sub->n_prompt_bytes;
    sub->is_prompt_read = job->choices[choice_of(job, item)].is_open = true;
    if (!ok) {
        job_fail_memory(job);
        return;
    }
    job_count(job, n_new);
    if (opening->n_bytes > 0 && job->conn) {
        job_begin_stream(job);
        http_stream_write(job->conn, opening->bytes, opening->n_bytes);
    }
}

static void job_read_beginning(struct intake_task *task)
{
    if (!read_beginning(task->user, &task->reply))
        task->status = TUTTI_E_MEMORY;
}

static void beginning_was_read(struct intake_task *task, struct http_conn *conn)
{
    struct job *job = task->user;
    (void)conn;
    job->is_working = false;
    begin_choice(job, task->status == TUTTI_OK, &task->reply);
    handle_events(job);
}

/* Called before an event. True: it is the first one of its choice, for which a worker reads or writes something first. */
static bool start_choice(struct job *job, const struct inbox_event *item)
{
    static const struct intake_route READ = { .read = job_read_beginning, .done = beginning_was_read };
    const struct tutti_event *event = &item->event;
    bool reads = job->req.reports_prompt && !item->submission->is_prompt_read;
    bool opens = job->req.stream && job->api->open && !job->choices[choice_of(job, item)].is_open;
    if ((!reads && !opens) || event->finish == TUTTI_FINISH_ERROR ||
        event->finish == TUTTI_FINISH_CANCELLED || !is_listened_to(job))
        return false;
    size_t cost = job->req.n_repeated_bytes +
                  (job->req.reports_prompt ? token_bytes(job, event->n_prompt_tokens) : 0);
    bool is_large = reads || cost * job->n_choices > LARGE_BYTES; /* the choices may begin at the same time */
    if (is_large && job->app->intake) { /* NULL: a batch file, and there is no other client */
        job->is_working = intake_run(job->app, owner_of(job), cost, &READ, job);
        if (!job->is_working)
            job_fail_memory(job);
        return job->is_working;
    }
    struct buf opening = { 0 };
    bool ok = read_beginning(job, &opening);
    begin_choice(job, ok, &opening);
    buf_clear(&opening);
    return false;
}

static void handle_events(struct job *job)
{
    while (!job->is_working && job->first_event) {
        struct inbox_event *item = job->first_event;
        if (start_choice(job, item))
            return;
        job->first_event = item->next;
        handle_event(job, item);
        free(item);
    }
    if (job->is_working || job->n_open > 0 || (job->is_stalled && is_listened_to(job)))
        return;
    if (is_listened_to(job)) {
        /* The engine ended a request without finishing each choice: a bug, which must not be silent. */
        struct tutti_error err;
        error_set(&err, TUTTI_E_INTERNAL, "the engine ended the request early");
        job_fail(job, &err);
    }
    job_free(job);
}

/* A prompt has ended, so that the queue may have room. */
static void retry_stalled(struct app *app)
{
    for (struct job *job = LIST_FIRST(&app->jobs), *next; job && app->n_stalled > 0; job = next) {
        next = LIST_NEXT(job, link);
        if (job->is_stalled) {
            submit_more(job);
            handle_events(job);
        }
    }
}

void job_take_event(void *user, struct mail *mail)
{
    struct inbox_event *item = (struct inbox_event *)(void *)mail;
    struct job *job = item->submission->job;
    item->next = NULL;
    if (job->first_event)
        job->last_event->next = item;
    else
        job->first_event = item;
    job->last_event = item;
    bool is_last = item->event.is_last;
    handle_events(job);
    if (is_last)
        retry_stalled(user);
}

/* ---- jobs ---- */

static struct job *job_new(struct app *app, const char *name, const struct job_api *api,
                           struct api_request *req, void *user, struct tutti_error *err)
{
    struct job *job = calloc(1, sizeof *job);
    if (!job) {
        error_set(err, TUTTI_E_MEMORY, "out of memory for the request");
        return NULL;
    }
    job->app = app;
    job->api = api;
    job->user = user;
    job->req = *req;
    *req = (struct api_request){ 0 };
    job->splits = job->req.kind == API_CHAT && app->info.reasoning_form &&
                  job->req.reasoning != API_REASONING_IN_CONTENT;
    job->created = time(NULL);
    snprintf(job->id, sizeof job->id, "%s%s", api->id_prefix, name);
    job->n_choices = job->n_unfinished = job->req.n_prompts * (size_t)job->req.n;
    job->subs = calloc(job->req.n_prompts, sizeof *job->subs);
    job->choices = calloc(job->n_choices, sizeof *job->choices);
    if (!job->subs || !job->choices) {
        error_set(err, TUTTI_E_MEMORY, "out of memory for the request");
        job_free(job);
        return NULL;
    }
    for (size_t i = 0; i < job->req.n_prompts; i++)
        job->subs[i] = (struct submission){ .job = job,
                                            .inbox = &app->inbox,
                                            .index = i,
                                            .copies_tokens = job->req.logprobs || job->req.scores ||
                                                             job->splits };
    return job;
}

/* Admits the client's request, and charges an estimate of its prompts. */
static enum tutti_status enter(struct job *job, const struct http_conn *conn, struct tutti_error *err)
{
    struct app *app = job->app;
    struct client *client = app_client(app, conn);
    int64_t n_tokens = 0;
    if (!client)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the request");
    for (size_t i = 0; i < job->req.n_prompts; i++) {
        job->subs[i].n_charged = api_request_estimate(&job->req, i);
        n_tokens += job->subs[i].n_charged;
    }
    enum tutti_status st = client_enter(app->clients, client, (int64_t)job->n_choices, n_tokens,
                                        clock_now_us(), err);
    if (st == TUTTI_OK)
        job->client = client;
    else if (st == TUTTI_E_ARGUMENT && err &&
             job->req.n == 1) /* not n, but the number of prompts is too large */
        snprintf(err->param, sizeof err->param, "%s", job->req.kind == API_EMBEDDING ? "input" : "prompt");
    return st;
}

/* conn NULL: no client limits apply. Drops the job on failure. */
static struct job *job_begin(struct job *job, const struct http_conn *conn, struct tutti_error *err)
{
    struct app *app = job->app;
    job->start_us = conn ? http_request(conn)->start_us : clock_now_us();
    if (conn && !app->options->shares_cache)
        job->tenant = http_request(conn)->tenant;
    enum tutti_status st = TUTTI_OK;
    if (job->req.cache_salt.text && !keys_salt_tenant(&job->tenant, &job->req.cache_salt))
        st = error_out_of_memory("request", err);
    if (st == TUTTI_OK && conn)
        st = enter(job, conn, err);
    if (st == TUTTI_OK && conn && !(job->reply_memory = http_reply_memory(conn)))
        st = error_set(err, TUTTI_E_MEMORY, "out of memory for the request");
    if (st == TUTTI_OK)
        st = count_bytes(job, job->n_choices * sizeof *job->choices + job->req.n_prompts * sizeof *job->subs,
                         err);
    if (st == TUTTI_OK)
        st = submit_some(job, err);
    if (st != TUTTI_OK && err)
        name_field(job, err);
    if (job->n_open == 0) {
        job_free(job);
        return NULL;
    }
    LIST_INSERT_HEAD(&app->jobs, job, link);
    if (st == TUTTI_OK)
        return job;
    job_drop(job); /* it is freed when the prompts have ended that were submitted before one was refused */
    return NULL;
}

struct job *job_open(struct app *app, const struct http_conn *conn, const struct job_api *api,
                     struct api_request *req, void *user, struct tutti_error *err)
{
    if (app_find_model(app, req->model, &req->adapter, err) != TUTTI_OK)
        return NULL;
    struct job *job = job_new(app, http_request(conn)->id + strlen("req_"), api, req, user, err);
    return job ? job_begin(job, conn, err) : NULL;
}

struct job *job_open_offline(struct app *app, const char *name, const struct job_api *api,
                             struct api_request *req, struct job_sink sink, struct tutti_error *err)
{
    enum tutti_status st = app_find_model(app, req->model, &req->adapter, err);
    if (st == TUTTI_OK && req->stream)
        st = error_set_param(err, TUTTI_E_ARGUMENT, "stream", "stream is not allowed in a batch file");
    if (st != TUTTI_OK)
        return NULL;
    struct job *job = job_new(app, name, api, req, NULL, err);
    if (!job)
        return NULL;
    job->sink = sink;
    return job_begin(job, NULL, err);
}

/* ---- parsing the body ---- */

static void read_request(struct intake_task *task)
{
    const struct job_api *api = task->api;
    json_t *body = NULL;
    if (api->read)
        task->status = api->read(&task->req, task->app, &task->body, &task->err);
    else
        task->status = json_read(&body, task->body.text, task->body.n_bytes, &task->err);
    if (task->status == TUTTI_OK && !api->read)
        task->status = api->read_value(&task->req, task->app, body, &task->err);
    if (task->status == TUTTI_OK)
        api_request_trim(&task->req);
}

static void begin_job(struct intake_task *task, struct http_conn *conn)
{
    struct job *job = NULL;
    if (task->status == TUTTI_OK && (task->status = intake_hold(task, &task->err)) == TUTTI_OK) {
        job = job_open(task->app, conn, task->api, &task->req, NULL, &task->err);
    }
    if (!job) {
        task->api->fail(task->app, NULL, conn, &task->err);
        return;
    }
    task->has_begun = true;
    job->memory = intake_take_memory(task);
    job->conn = conn;
    http_set_data(conn, job);
    http_on_abort(conn, job_on_abort, job);
}

void job_start(struct app *app, struct http_conn *conn, const struct job_api *api)
{
    static const struct intake_route ROUTE = { .read = read_request, .done = begin_job };
    intake_start(app, conn, &ROUTE, api);
}

void job_stop_all(struct app *app)
{
    struct job *job;
    LIST_FOREACH (job, &app->jobs, link)
        cancel_all(job);
}

bool job_prompt_text(const struct job *job, size_t index, struct buf *out)
{
    const struct api_prompt *prompt = &job->req.prompts[index / (size_t)job->req.n];
    if (prompt->text)
        return buf_add(out, prompt->text, prompt->n_text_bytes);
    const struct buf *text = &job->subs[index / (size_t)job->req.n].prompt_text;
    return buf_add(out, text->bytes, text->n_bytes);
}

bool job_read_prompt_text(const struct job *job, struct submission *sub)
{
    const struct api_prompt *prompt = &job->req.prompts[sub->index];
    const int32_t *ids = job->req.ids.ids + prompt->first_id;
    struct buf *out = &sub->prompt_text;
    if (prompt->text)
        return true;
    int64_t n = tutti_detokenize(job->app->model, ids, prompt->n_ids, NULL, 0);
    if (n < 0 || !buf_reserve(out, (size_t)n))
        return false;
    tutti_detokenize(job->app->model, ids, prompt->n_ids, out->bytes, (size_t)n);
    out->n_bytes = (size_t)n;
    out->bytes[n] = '\0';
    return true;
}

void job_describe(const struct job *job, char *out, size_t n_bytes)
{
    size_t n_cached, n_prompt = job_n_prompt_tokens(job, &n_cached), n_generated = job_n_generated(job);
    double seconds = job->total_us > job->ttft_us ? (double)(job->total_us - job->ttft_us) / 1e6 : 0;
    double rate = seconds > 0 && n_generated > job->n_choices
                      ? (double)(n_generated - job->n_choices) / seconds
                      : 0;
    snprintf(out, n_bytes, " id=%s prompt=%zu cached=%zu generated=%zu ttft_ms=%.1f tok_s=%.1f", job->id,
             n_prompt, n_cached, n_generated, (double)job->ttft_us / 1e3, rate);
}
