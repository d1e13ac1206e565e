/* A chat exists until its end was reported, or until it had no call for step_timeout_s:
 * then its request is cancelled, which frees its KV pages. */
#include "server/other_apis/step_api.h"

#include "base/hash.h"
#include "base/json/json_field.h"
#include "base/log.h"
#include "base/system/clock.h"
#include "server/job.h"

#include <event2/event.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_STEPS = 1024,
    MAX_CACHE_ID_BYTES = 256,
    MAX_RENDERED_BYTES = 1024 * 1024,
    /* A client calls again as soon as it has received a reply: at shutdown, the server does not
     * wait for a complete chat without a call for this long. */
    AWAITED_US = 1000 * 1000,
};

struct step_chat {
    struct app *app;
    LIST_ENTRY(step_chat) link; /* in app->steps */
    uint64_t tenant, client_id;
    char cache_id[MAX_CACHE_ID_BYTES + 1]; /* unique within the tenant */
    uint64_t query;                        /* hash of its text */
    struct job *job;                       /* NULL: the answer is complete */
    struct http_conn *waiting;             /* a call that waits for a token; NULL: none */
    struct event *timer;                   /* runs while no call waits */
    uint64_t quiet_us; /* time of the last call or of the end of the answer, whichever is later */
    struct buf text;   /* generated, not sent yet */
    char held[4];
    size_t n_held;
    bool has_news; /* a token was generated since the last reply */
    bool is_ended;
    struct tutti_error err; /* status TUTTI_OK: no error */
};

struct steps {
    LIST_HEAD(, step_chat) chats;
    int n;
};

enum tutti_status steps_new(struct steps **out, struct tutti_error *err)
{
    *out = calloc(1, sizeof **out);
    return *out ? TUTTI_OK : error_set(err, TUTTI_E_MEMORY, "out of memory for the server");
}

int steps_n_awaited(const struct steps *steps, uint64_t now_us)
{
    int n = 0;
    const struct step_chat *step;
    if (!steps)
        return 0;
    LIST_FOREACH (step, &steps->chats, link)
        n += step->job || step->waiting || now_us < step->quiet_us + AWAITED_US;
    return n;
}

static void step_free(struct step_chat *step)
{
    if (!step)
        return;
    if (step->link.le_prev) {
        LIST_REMOVE(step, link);
        step->app->steps->n--;
    }
    if (step->job)
        job_drop(step->job);
    if (step->timer)
        event_free(step->timer);
    buf_clear(&step->text);
    free(step);
}

void steps_free(struct steps *steps)
{
    while (steps && !LIST_EMPTY(&steps->chats)) {
        struct step_chat *step = LIST_FIRST(&steps->chats);
        step->job = NULL; /* jobs are freed before the server ends */
        step_free(step);
    }
    free(steps);
}

static struct step_chat *step_find(const struct steps *steps, uint64_t tenant, const char *cache_id)
{
    struct step_chat *step;
    LIST_FOREACH (step, &steps->chats, link)
        if (step->tenant == tenant && !strcmp(step->cache_id, cache_id))
            return step;
    return NULL;
}

/* ---- replies ---- */

static void on_timeout(evutil_socket_t fd, short what, void *arg)
{
    struct step_chat *step = arg;
    (void)fd, (void)what;
    log_info("step API: no call for %.64s for %d s: cancelled", step->cache_id,
             step->app->options->step_timeout_s);
    step_free(step);
}

static void step_watch(struct step_chat *step)
{
    struct timeval time = { .tv_sec = step->app->options->step_timeout_s };
    evtimer_add(step->timer, &time);
    step->quiet_us = clock_now_us();
}

static void step_on_abort(void *user)
{
    struct step_chat *step = user;
    step->waiting = NULL;
    step_watch(step);
}

static json_t *answer_value(const struct step_chat *step, const char *flag)
{
    return json_pack("{s:s, s:o, s:o*}", "flag", flag, "delta_text",
                     json_text(step->text.bytes, step->text.n_bytes), "held_bytes",
                     strcmp(flag, "hang") ? NULL : json_byte_list(step->held, step->n_held));
}

/* Replies to the waiting call, if there is something to report. May free the chat. */
static void answer(struct step_chat *step)
{
    bool is_over = step->is_ended || step->err.status != TUTTI_OK;
    bool hangs = step->has_news && step->n_held > 0;
    if (!step->waiting || !(is_over || step->text.n_bytes > 0 || hangs))
        return;
    struct http_conn *conn = step->waiting;
    step->waiting = NULL;
    http_on_abort(conn, NULL, NULL);
    if (step->err.status != TUTTI_OK)
        app_reply_error(conn, json_error_status(step->err.status), &step->err);
    else
        app_reply_json(conn, 200,
                       answer_value(step, step->is_ended           ? "end"
                                          : step->text.n_bytes > 0 ? "sending"
                                                                   : "hang"));
    if (is_over) {
        step_free(step);
        return;
    }
    buf_truncate(&step->text, 0);
    step->has_news = false;
    step_watch(step);
}

static void wait_for_answer(struct step_chat *step, struct http_conn *conn)
{
    evtimer_del(step->timer);
    step->waiting = conn;
    http_on_abort(conn, step_on_abort, step);
    answer(step);
}

/* ---- events ---- */

static void step_take_event(struct job *job, size_t index, struct reply_choice *choice,
                            const struct tutti_event *event)
{
    struct step_chat *step = job->user;
    (void)index, (void)choice;
    if (!buf_add(&step->text, event->text, event->n_text_bytes)) {
        job_fail_memory(job);
        return;
    }
    memcpy(step->held, event->held, sizeof step->held);
    step->n_held = event->n_held;
    step->has_news = true;
    if (event->finish == TUTTI_FINISH_NONE)
        answer(step);
}

static void step_finish(struct job *job)
{
    struct step_chat *step = job->user;
    step->job = NULL;
    step->is_ended = true;
    step->quiet_us = clock_now_us();
    answer(step);
}

static void step_fail(struct app *app, struct job *job, struct http_conn *conn, const struct tutti_error *err)
{
    (void)app, (void)conn;
    struct step_chat *step = job->user;
    step->job = NULL;
    step->err = *err;
    step->quiet_us = clock_now_us();
    answer(step);
}

static const struct job_api STEP_API = { .id_prefix = "step-",
                                         .event = step_take_event,
                                         .finish = step_finish,
                                         .fail = step_fail,
                                         .is_detached = true };

/* ---- requests ---- */

static enum tutti_status read_id(const json_t *root, char *out, struct tutti_error *err)
{
    const json_t *id = json_field(root, "cache_id");
    if (json_is_integer(id)) {
        snprintf(out, MAX_CACHE_ID_BYTES + 1, "%lld", (long long)json_integer_value(id));
        return TUTTI_OK;
    }
    size_t n = json_string_length(id);
    if (!json_is_string(id))
        return json_wrong_type("cache_id", "a string", id, err);
    if (n < 1 || n > MAX_CACHE_ID_BYTES || strlen(json_string_value(id)) != n)
        return error_set_param(err, TUTTI_E_ARGUMENT, "cache_id",
                               "cache_id must have 1 to %d bytes without a zero byte, found %zu",
                               MAX_CACHE_ID_BYTES, n);
    memcpy(out, json_string_value(id), n + 1);
    return TUTTI_OK;
}

static int history_add(json_t *messages, const char *role, const json_t *content)
{
    json_t *message = json_pack("{s:s, s:O}", "role", role, "content", content);
    return json_array_append_new(messages, message);
}

/* Converts history and query to a list "messages" of OpenAI's API, which is parsed afterwards. */
static enum tutti_status make_messages(json_t *root, struct tutti_error *err)
{
    const json_t *query = json_field(root, "query"), *history = json_field(root, "history"), *entry;
    json_t *messages = json_array();
    size_t i;
    int failed = json_object_set_new(root, "messages", messages);
    if (!json_is_string(query))
        return json_wrong_type("query", "a string", query, err);
    if (history && !json_is_array(history))
        return json_wrong_type("history", "a list", history, err);
    json_array_foreach(history, i, entry)
    {
        bool is_pair = json_is_array(entry) && json_array_size(entry) == 2 &&
                       json_is_string(json_array_get(entry, 0)) && json_is_string(json_array_get(entry, 1));
        if (json_is_object(entry))
            failed |= json_array_append(messages, (json_t *)(uintptr_t)entry);
        else if (is_pair)
            failed |= history_add(messages, "user", json_array_get(entry, 0)) |
                      history_add(messages, "assistant", json_array_get(entry, 1));
        else
            return error_set_param(err, TUTTI_E_ARGUMENT, "history",
                                   "history[%zu] must be [question, answer] or {\"role\", \"content\"}", i);
    }
    failed |= history_add(messages, "user", query);
    return failed ? error_set(err, TUTTI_E_MEMORY, "out of memory for the messages") : TUTTI_OK;
}

/* max_length includes the prompt, as in transformers, so the prompt's tokens must be counted. */
static enum tutti_status read_max_length(struct api_request *req, const struct app *app,
                                         struct tutti_error *err)
{
    const json_t *value = json_field(req->root, "max_length");
    json_int_t max = json_integer_value(value);
    size_t n_bytes = 0;
    if (!value)
        return TUTTI_OK;
    if (!json_is_integer(value))
        return json_wrong_type("max_length", "an integer", value, err);
    enum tutti_status st = json_check_range(json_number_value(value), 1, INT_MAX, "max_length", err);
    if (st != TUTTI_OK)
        return st;
    for (size_t i = 0; i < req->n_messages; i++)
        n_bytes += req->messages[i].n_bytes;
    if (!app->info.has_chat || n_bytes > MAX_RENDERED_BYTES) {
        req->max_tokens = (int)max; /* the engine refuses the prompt, or there is no tokenizer */
        return TUTTI_OK;
    }
    struct ids ids = { 0 };
    st = api_render_messages(req, app->model, &ids, err);
    if (st == TUTTI_OK && (size_t)max <= ids.n) {
        st = error_set_param(err, TUTTI_E_LIMIT, "max_length",
                             "max_length is %lld, but the prompt has %zu tokens already", (long long)max,
                             ids.n);
        if (err)
            err->context_tokens = (uint32_t)max;
    }
    if (st == TUTTI_OK)
        req->max_tokens = (int)((size_t)max - ids.n);
    ids_clear(&ids);
    return st;
}

/* Takes ownership of root. */
static enum tutti_status read_chat(struct api_request *req, struct app *app, json_t *root,
                                   struct tutti_error *err)
{
    *req = (struct api_request){
        .kind = API_STEP, .root = root, .n = 1, .n_prompts = 1, .reports_held = true
    };
    tutti_sampling_init(&req->sampling, app->model);
    const json_t *sample = json_field(root, "do_sample"), *name = json_field(root, "model_name");
    size_t n_id = strlen(app->model_id);
    if (sample && !json_is_boolean(sample))
        return json_wrong_type("do_sample", "true or false", sample, err);
    if (name && !json_is_string(name))
        return json_wrong_type("model_name", "a string", name, err);
    /* Only an adapter's name has an effect: clients of this API know one server, and name the model
     * as they like. */
    if (name && !strncmp(json_string_value(name), app->model_id, n_id) &&
        json_string_value(name)[n_id] == ':')
        req->model = json_string_value(name);
    enum tutti_status st = make_messages(root, err);
    if (st == TUTTI_OK)
        st = api_read_messages(req, err);
    if (st == TUTTI_OK)
        st = api_read_fields(req, err);
    if (st != TUTTI_OK)
        return st;
    if (json_is_false(sample))
        req->sampling.temperature = 0;
    return read_max_length(req, app, err);
}

/* Checks that there is room for a chat. A client may have at most as many as there are free places
 * for others, because a chat keeps its place until its end was reported, or for --step-timeout. */
static enum tutti_status check_place(const struct app *app, uint64_t client_id, struct tutti_error *err)
{
    const struct step_chat *step;
    int n_own = 0;
    if (app->is_draining)
        return error_set(err, TUTTI_E_CLOSED, "the server is shutting down");
    LIST_FOREACH (step, &app->steps->chats, link)
        n_own += step->client_id == client_id;
    if (n_own < MAX_STEPS - app->steps->n)
        return TUTTI_OK;
    return error_set(err, TUTTI_E_BUSY,
                     "%d of your chats are open, of %d that the server allows for all clients; poll "
                     "them to their end, or try again later",
                     n_own, MAX_STEPS);
}

/* The hash of the query, which follows the id in task->reply. False: the call has none. */
static bool has_query(const struct intake_task *task, uint64_t *hash)
{
    size_t n_id = strlen(task->reply.bytes) + 1;
    if (task->reply.n_bytes != n_id + sizeof *hash)
        return false;
    memcpy(hash, task->reply.bytes + n_id, sizeof *hash);
    return true;
}

/* Creates a chat; NULL: refused. */
static struct step_chat *step_begin(struct intake_task *task, struct http_conn *conn, const char *cache_id,
                                    struct tutti_error *err)
{
    struct app *app = task->app;
    const struct client *client = app_client(app, conn);
    uint64_t client_id = client ? client->id : 0;
    enum tutti_status st = TUTTI_OK;
    if (task->req.kind != API_STEP)
        st = error_set_param(err, TUTTI_E_NOT_FOUND, "cache_id",
                             "there is no chat %.128s: it has ended, or had no call for %d s; a new one "
                             "needs a query",
                             cache_id, app->options->step_timeout_s);
    if (st == TUTTI_OK)
        st = check_place(app, client_id, err);
    if (st == TUTTI_OK && (st = task->err.status) != TUTTI_OK)
        *err = task->err;
    if (st == TUTTI_OK)
        st = intake_hold(task, err);
    if (st != TUTTI_OK)
        return NULL;
    struct step_chat *step = calloc(1, sizeof *step);
    if (step) {
        step->app = app;
        step->tenant = http_request(conn)->tenant;
        step->client_id = client_id;
        (void)has_query(task, &step->query); /* it has one: task->req was read */
        step->timer = evtimer_new(app->base, on_timeout, step);
        snprintf(step->cache_id, sizeof step->cache_id, "%s", cache_id);
    }
    if (!step || !step->timer) {
        error_set(err, TUTTI_E_MEMORY, "out of memory for the request");
        step_free(step);
        return NULL;
    }
    step->job = job_open(app, conn, &STEP_API, &task->req, step, err);
    if (!step->job) {
        step_free(step);
        return NULL;
    }
    task->has_begun = true;
    step->job->memory = intake_take_memory(task);
    LIST_INSERT_HEAD(&app->steps->chats, step, link);
    app->steps->n++;
    return step;
}

/* Parses the id, and a hash of the query, into task->reply; the query, which a new chat needs, into task->req, and
 * its error into task->err. */
static void read_step(struct intake_task *task)
{
    char cache_id[MAX_CACHE_ID_BYTES + 1];
    json_t *root = NULL;
    enum tutti_status st = json_read_object(&root, task->body.text, task->body.n_bytes, &task->err);
    if (st == TUTTI_OK)
        st = read_id(root, cache_id, &task->err);
    if (st == TUTTI_OK && !buf_add_string(&task->reply, cache_id))
        st = error_set(&task->err, TUTTI_E_MEMORY, "out of memory for the request");
    const json_t *query = json_field(root, "query");
    const uint64_t hash = hash64(0, json_string_value(query), json_string_length(query));
    if (st == TUTTI_OK && query &&
        !(buf_add(&task->reply, "", 1) && buf_add(&task->reply, &hash, sizeof hash)))
        st = error_set(&task->err, TUTTI_E_MEMORY, "out of memory for the request");
    task->status = st;
    if (st != TUTTI_OK || !query) {
        json_decref(root);
        return;
    }
    if (read_chat(&task->req, task->app, root, &task->err) == TUTTI_OK) {
        api_request_trim(&task->req);
    } else {
        api_request_clear(&task->req);
        task->req.kind = API_STEP;
    }
}

static void go_on(struct intake_task *task, struct http_conn *conn)
{
    struct tutti_error err = task->err;
    const char *cache_id = task->reply.bytes;
    struct step_chat *step = NULL;
    uint64_t query;
    if (task->status == TUTTI_OK) {
        step = step_find(task->app->steps, http_request(conn)->tenant, cache_id);
        step = step ? step : step_begin(task, conn, cache_id, &err);
    }
    if (!step) {
        app_reply_error(conn, json_error_status(err.status), &err);
        return;
    }
    if (has_query(task, &query) && query != step->query) {
        error_set_param(
            &err, TUTTI_E_ARGUMENT, "query",
            "the chat %.128s is open with another query: call with the cache_id only until the flag is "
            "\"end\", or begin a chat with a cache_id of its own",
            cache_id);
        app_reply_error(conn, 409, &err);
        return;
    }
    if (step->waiting) {
        error_set_param(&err, TUTTI_E_ARGUMENT, "cache_id", "another call waits for the answer of %.128s",
                        cache_id);
        app_reply_error(conn, 409, &err);
        return;
    }
    wait_for_answer(step, conn);
}

void step_request(struct app *app, struct http_conn *conn)
{
    static const struct intake_route ROUTE = { .read = read_step, .done = go_on };
    intake_start(app, conn, &ROUTE, NULL);
}
