#include "server/models/model_state.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/system/clock.h"
#include "base/text.h"
#include "server/models/files.h"
#include "server/models/spawner.h"
#include "server/models/upstream.h"

#include <errno.h>
#include <event2/event.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    NAME_BYTES = 1024,        /* of a model's name in a query, which no name of a model reaches */
    SLICE_BYTES = 256 * 1024, /* of a body that is scanned at a time: below a millisecond */
    STEADY_S = 60,            /* a process that has served for this long starts again at once */
    MOST_RETRY_S = 60,
    MOST_TRIES = 3, /* of a request whose process ends before it replies */
    END_MS = 5000,  /* that processes without requests have to end */
};

static void pump(struct model_set *set);

/* ---- processes ---- */

static void send_signal(const struct child *child, int number)
{
    const struct spawner_order order = { .model = child->model->index,
                                         .generation = child->generation,
                                         .signal = number };
    if (!spawner_send(child->model->set->options->spawner, &order) && !child->model->set->is_broken)
        log_error("model %s: its process cannot be signalled", child->model->name);
}

/* It gets no more requests, and ends after those under way. */
static void retire(struct child *child)
{
    struct model *model = child->model;
    if (child == model->current)
        model->current = NULL;
    if (child == model->next)
        model->next = NULL;
    child->state = CHILD_LEAVING;
    if (child->n_requests == 0)
        send_signal(child, SIGTERM);
}

/* NULL: it could not be started. */
static struct child *start(struct model *model)
{
    struct model_set *set = model->set;
    struct child *child = calloc(1, sizeof *child);
    struct spawner_order order = { .model = model->index, .generation = ++set->n_children };
    if (!child)
        return NULL;
    snprintf(order.socket, sizeof order.socket, "%s/%u", set->folder, order.generation);
    if (!spawner_send(set->options->spawner, &order)) {
        free(child);
        return NULL;
    }
    child->model = model;
    child->generation = order.generation;
    child->memory_bytes = model->expected_bytes;
    child->identity = files_identity(model->path);
    memcpy(child->socket, order.socket, sizeof child->socket);
    LIST_INSERT_HEAD(&model->children, child, link);
    model->wants_start = false;
    model->n_loads++;
    log_info("model %s: loading %s", model->name, model->path);
    return child;
}

/* ---- requests ---- */

static void request_free(struct request *r)
{
    TAILQ_REMOVE(r->is_waiting ? &r->model->waiting : &r->set->others, r, link);
    if (r->slice)
        event_free(r->slice);
    http_body_free(r->body);
    free(r);
}

static void request_fail(struct request *r, const struct tutti_error *err)
{
    http_on_abort(r->conn, NULL, NULL);
    route_fail(r->set->app, r->conn, err);
    request_free(r);
}

static void on_abort(void *user)
{
    struct model_set *set = ((struct request *)user)->set;
    request_free(user);
    pump(set);
}

/* It is not with its process any more; the upstream has freed itself. */
static void leave_child(struct request *r)
{
    struct child *child = r->child;
    r->upstream = NULL;
    r->child = NULL;
    if (!child) /* its process has ended before */
        return;
    child->model->last_us = clock_now_us();
    if (--child->n_requests == 0 && child->state == CHILD_LEAVING)
        send_signal(child, SIGTERM);
}

static void on_ended(void *user)
{
    struct request *r = user;
    struct model_set *set = r->set;
    leave_child(r);
    request_free(r);
    pump(set);
}

static void on_begun(void *user)
{
    struct request *r = user;
    http_body_free(r->body);
    r->body = NULL;
}

static void on_upstream_failed(void *user, struct http_conn *conn, const struct tutti_error *err)
{
    route_fail(((struct request *)user)->set->app, conn, err);
}

static void move(struct request *r, bool waits)
{
    TAILQ_REMOVE(r->is_waiting ? &r->model->waiting : &r->set->others, r, link);
    r->is_waiting = waits;
    if (waits)
        TAILQ_INSERT_TAIL(&r->model->waiting, r, link);
    else
        TAILQ_INSERT_TAIL(&r->set->others, r, link);
}

/* It waits for the next process, or for the tick if this one goes on. */
static void on_lost(void *user, const struct tutti_error *err)
{
    struct request *r = user;
    struct model_set *set = r->set;
    leave_child(r);
    if (set->is_ending || r->n_tries >= MOST_TRIES) {
        request_fail(r, err);
    } else {
        http_on_abort(r->conn, on_abort, r);
        if (TAILQ_EMPTY(&r->model->waiting))
            r->model->waits_since_us = clock_now_us();
        move(r, true);
    }
    pump(set);
}

static void forward(struct request *r)
{
    const struct upstream_handler handler = { on_begun, on_upstream_failed, on_lost, on_ended, r };
    struct child *child = r->model->current;
    struct tutti_error err;
    move(r, false);
    r->n_tries++;
    r->upstream = upstream_forward(r->set->app->base, child->socket, r->conn,
                                   r->body ? &r->body->bytes : NULL, &handler);
    if (!r->upstream) {
        error_set(&err, TUTTI_E_MEMORY, "out of memory for a request to the process of the model");
        request_fail(r, &err);
        return;
    }
    r->child = child;
    child->n_requests++;
}

/* To its process, which serves. */
static void forward_waiting(struct model *model)
{
    struct request *r;
    while (model->current && model->current->state == CHILD_SERVING && (r = TAILQ_FIRST(&model->waiting)))
        forward(r);
}

static void fail_waiting(struct model *model)
{
    struct request *r;
    struct tutti_error err;
    uint64_t now = clock_now_us();
    error_set(&err, TUTTI_E_CLOSED, "the model \"%.128s\" is not available: %.300s", model->name, model->why);
    err.retry_after_ms = model->retry_us > now ? (uint32_t)((model->retry_us - now) / 1000) : 0;
    while ((r = TAILQ_FIRST(&model->waiting)))
        request_fail(r, &err);
}

/* ---- memory ---- */

struct usage {
    uint64_t all, leaving; /* bytes of all processes; of those that end soon */
    bool is_alone;         /* there is none */
};

static struct usage usage_of(const struct model_set *set)
{
    struct usage usage = { .is_alone = true };
    for (int i = 0; i < set->options->n; i++) {
        const struct child *child;
        LIST_FOREACH (child, &set->models[i].children, link) {
            usage.all += child->memory_bytes;
            usage.leaving += child->state == CHILD_LEAVING ? child->memory_bytes : 0;
            usage.is_alone = false;
        }
    }
    return usage;
}

/* The process whose last request is longest ago; one that answers none first. NULL: all are loading. */
static struct child *find_victim(const struct model_set *set, const struct model *other)
{
    struct child *victim = NULL;
    for (int i = 0; i < set->options->n; i++) {
        struct child *child = set->models[i].current;
        if (!child || child->state != CHILD_SERVING || &set->models[i] == other)
            continue;
        bool is_busy = child->n_requests > 0, was_busy = victim && victim->n_requests > 0;
        if (!victim || (was_busy && !is_busy) ||
            (was_busy == is_busy && set->models[i].last_us < victim->model->last_us))
            victim = child;
    }
    return victim;
}

/* True: there is room for the model now. Else processes were told to end, or *never: it has none. */
static bool make_room(struct model_set *set, const struct model *model, bool *never)
{
    uint64_t most = set->options->memory_bytes;
    struct usage usage = usage_of(set);
    *never = most > 0 && model->expected_bytes > most;
    if (most == 0)
        return true;
    while (!*never && usage.all - usage.leaving + model->expected_bytes > most) {
        struct child *victim = find_victim(set, model);
        if (!victim)
            return false; /* others are loading; they may be stopped later */
        log_info("model %s: ends to make room for %s", victim->model->name, model->name);
        victim->model->n_unloads++;
        retire(victim);
        usage = usage_of(set);
    }
    return !*never && usage.all + model->expected_bytes <= most;
}

/* The model that waits for a process for longest; after: for longer than that one. */
static struct model *next_waiting(struct model_set *set, const struct model *after)
{
    struct model *found = NULL;
    for (int i = 0; i < set->options->n; i++) {
        struct model *m = &set->models[i];
        bool waits = !m->current && (!TAILQ_EMPTY(&m->waiting) || m->wants_start);
        bool is_later = !after || m->waits_since_us > after->waits_since_us ||
                        (m->waits_since_us == after->waits_since_us && m > after);
        if (waits && is_later && (!found || m->waits_since_us < found->waits_since_us))
            found = m;
    }
    return found;
}

/* Starts what waits, in the order of waiting. */
static void pump(struct model_set *set)
{
    uint64_t now = clock_now_us();
    bool never = false;
    for (struct model *m = next_waiting(set, NULL); m && !set->is_ending; m = next_waiting(set, m)) {
        if (now < m->retry_us) {
            fail_waiting(m);
            continue;
        }
        if (!make_room(set, m, &never) && !never)
            return; /* later requests must not take the room that it waits for */
        if (never)
            snprintf(m->why, sizeof m->why, "it needs %llu bytes of memory, --models-memory is %llu",
                     (unsigned long long)m->expected_bytes, (unsigned long long)set->options->memory_bytes);
        else if (!(m->current = start(m)))
            snprintf(m->why, sizeof m->why, "its process cannot be started");
        if (!m->current) {
            m->wants_start = false;
            fail_waiting(m);
        }
    }
}

/* ---- news of the processes ---- */

static struct child *find_child(struct model_set *set, const struct spawner_event *event)
{
    if (event->model < 0 || event->model >= set->options->n)
        return NULL;
    struct child *child = LIST_FIRST(&set->models[event->model].children);
    while (child && child->generation != event->generation)
        child = LIST_NEXT(child, link);
    return child;
}

static void take_ready(struct child *child, const struct spawner_event *event)
{
    struct model *model = child->model;
    child->memory_bytes = model->expected_bytes = event->memory_bytes;
    model->traits = event->traits;
    child->ready_us = clock_now_us();
    if (child->state == CHILD_LEAVING)
        return;
    child->state = CHILD_SERVING;
    log_info("model %s: ready", model->name);
    if (child == model->next) {
        struct child *old = model->current;
        model->next = NULL;
        model->current = child;
        if (old)
            retire(old);
    }
    model->last_us = child->ready_us;
    forward_waiting(model);
}

static void describe_end(const struct child *child, int status, char *out, size_t size)
{
    if (child->why[0])
        snprintf(out, size, "%s", child->why);
    else if (WIFSIGNALED(status))
        snprintf(out, size, "its process ended by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(out, size, "its process ended with status %d", WEXITSTATUS(status));
}

/* A process that nobody has stopped ended. */
static void take_death(struct child *child, int status)
{
    struct model *model = child->model;
    uint64_t now = clock_now_us();
    bool was_steady = child->ready_us > 0 && now - child->ready_us > STEADY_S * UINT64_C(1000000);
    uint64_t delay_s = 1;
    char why[600];
    describe_end(child, status, why, sizeof why);
    log_error("model %s: %s", model->name, why);
    if (child == model->next) {
        log_error("model %s: nothing was changed", model->name);
        return;
    }
    memcpy(model->why, why, sizeof why);
    model->n_failures = was_steady ? 0 : model->n_failures + 1;
    for (int i = 1; i < model->n_failures && delay_s < MOST_RETRY_S; i++)
        delay_s *= 2;
    bool was_serving = child->state == CHILD_SERVING;
    model->n_deaths += was_serving;
    model->wants_start = was_serving;
    model->waits_since_us = now;
    /* The first death of a process that served: at once. */
    if (!was_serving || model->n_failures > 1)
        model->retry_us = now + (delay_s < MOST_RETRY_S ? delay_s : MOST_RETRY_S) * 1000000;
    if (!was_serving)
        fail_waiting(model);
}

static void take_end(struct model_set *set, struct child *child, int status)
{
    struct model *model = child->model;
    struct request *r;
    if (child->state != CHILD_LEAVING && !set->is_ending)
        take_death(child, status);
    if (child == model->current)
        model->current = NULL;
    if (child == model->next)
        model->next = NULL;
    TAILQ_FOREACH (r, &set->others, link)
        if (r->child == child)
            r->child = NULL;
    (void)unlink(child->socket);
    LIST_REMOVE(child, link);
    free(child);
}

static void take_news(struct model_set *set, const struct spawner_event *event)
{
    struct child *child = find_child(set, event);
    if (!child)
        return;
    if (event->news == CHILD_READY)
        take_ready(child, event);
    else if (event->news == CHILD_FAILED)
        snprintf(child->why, sizeof child->why, "%s", event->text);
    else
        take_end(set, child, event->status);
}

static void on_news(evutil_socket_t fd, short what, void *arg)
{
    struct model_set *set = arg;
    struct spawner_event event;
    int n;
    (void)fd, (void)what;
    while ((n = spawner_read(set->options->spawner, &event)) > 0)
        take_news(set, &event);
    if (n < 0) {
        set->is_broken = true;
        event_del(set->news);
        (void)kill(getpid(), SIGTERM);
    }
    pump(set);
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct model_set *set = arg;
    uint64_t now = clock_now_us(), idle_us = (uint64_t)set->options->idle_s * 1000000;
    (void)fd, (void)what;
    for (int i = 0; i < set->options->n; i++) {
        struct model *m = &set->models[i];
        struct child *child = m->current;
        forward_waiting(m); /* what was lost by a process that goes on */
        if (idle_us > 0 && child && child->state == CHILD_SERVING && child->n_requests == 0 && !m->next &&
            now - m->last_us > idle_us) {
            log_info("model %s: ends after %d s without requests", m->name, set->options->idle_s);
            m->n_unloads++;
            retire(child);
        }
    }
    pump(set);
}

/* ---- finding the model of a request ---- */

static struct model *find_model(struct model_set *set, const char *name, size_t n_name)
{
    const char *colon = memchr(name, ':', n_name); /* MODEL:ADAPTER */
    size_t n = colon ? (size_t)(colon - name) : n_name;
    for (int i = 0; i < set->options->n; i++)
        if (strlen(set->models[i].name) == n && !memcmp(set->models[i].name, name, n))
            return &set->models[i];
    return NULL;
}

static void set_unknown(struct tutti_error *err, const char *name, size_t n_name)
{
    error_set_param(err, TUTTI_E_NOT_FOUND, "model",
                    "The model \"%.*s\" does not exist; GET /v1/models lists those of this server",
                    (int)(n_name < 128 ? n_name : 128), name);
}

static void to_model(struct request *r, const char *name, size_t n_name)
{
    struct model_set *set = r->set;
    struct tutti_error err;
    struct model *model = n_name > 0 ? find_model(set, name, n_name) : &set->models[0];
    if (!model && (set->app->options->apis & SERVER_API_TGI) &&
        ((n_name == 3 && !memcmp(name, "tgi", 3)) || (n_name == 5 && !memcmp(name, "dummy", 5))))
        model = &set->models[0];
    if (!model) {
        set_unknown(&err, name, n_name);
        request_fail(r, &err);
        return;
    }
    r->model = model;
    if (model->current && model->current->state == CHILD_SERVING) {
        forward(r);
        return;
    }
    if (TAILQ_EMPTY(&model->waiting) && !model->wants_start)
        model->waits_since_us = clock_now_us();
    move(r, true);
    pump(set);
}

/* A name with escapes is a JSON text. */
static void to_escaped(struct request *r, const char *text, size_t n_bytes)
{
    json_t *name = json_loadb(text, n_bytes, JSON_DECODE_ANY, NULL);
    if (name)
        to_model(r, json_string_value(name), json_string_length(name));
    else
        to_model(r, text, n_bytes);
    json_decref(name);
}

static void on_slice(evutil_socket_t fd, short what, void *arg)
{
    struct request *r = arg;
    struct name_scan *scan = &r->scan;
    const struct buf *bytes = &r->body->bytes;
    (void)fd, (void)what;
    if (!name_scan(scan, bytes->bytes, bytes->n_bytes, SLICE_BYTES)) {
        const struct timeval now = { 0 };
        event_add(r->slice, &now); /* after what is ready elsewhere */
        return;
    }
    const char *name = bytes->bytes + scan->begin;
    size_t n = scan->end > 0 ? scan->end - scan->begin : 0;
    if (n > 0 && memchr(name, '\\', n))
        to_escaped(r, name - 1, n + 2);
    else
        to_model(r, name, n);
}

void model_set_forward(struct model_set *set, struct http_conn *conn)
{
    /* The name is in the path, and may have a slash. */
    static const char PLACE[] = "/models/", WHOLE[] = "/generate", STREAM[] = "/generate_stream";
    const struct http_head *head = &http_request(conn)->head;
    const char *path = head->path;
    struct tutti_error err;
    struct request *r = calloc(1, sizeof *r);
    if (!r) {
        error_set(&err, TUTTI_E_MEMORY, "out of memory for the request");
        route_fail(set->app, conn, &err);
        return;
    }
    *r = (struct request){ .set = set, .conn = conn, .body = http_take_body(conn) };
    TAILQ_INSERT_TAIL(&set->others, r, link);
    http_on_abort(conn, on_abort, r);
    if (!strncmp(path, PLACE, sizeof PLACE - 1)) {
        path += sizeof PLACE - 1;
        size_t n_end = text_ends_with(path, WHOLE)    ? sizeof WHOLE - 1
                       : text_ends_with(path, STREAM) ? sizeof STREAM - 1
                                                      : 0;
        to_model(r, path, strlen(path) - n_end);
    } else if (!r->body || r->body->bytes.n_bytes == 0) {
        char name[NAME_BYTES];
        to_model(r, name, name_of_query(head->query, name, sizeof name));
    } else if (!(r->slice = event_new(set->app->base, -1, 0, on_slice, r))) {
        error_set(&err, TUTTI_E_MEMORY, "out of memory for the request");
        request_fail(r, &err);
    } else {
        on_slice(-1, 0, r);
    }
}

/* ---- the list ---- */

static const char *state_of(const struct model *model)
{
    if (!model->current)
        return TAILQ_EMPTY(&model->waiting) ? "unloaded" : "waiting";
    return model->current->state == CHILD_SERVING ? "loaded" : "loading";
}

json_t *model_set_states(const struct model_set *set)
{
    json_t *states = json_object();
    for (int i = 0; i < set->options->n; i++)
        json_object_set_new(states, set->models[i].name, json_string(state_of(&set->models[i])));
    return states;
}

/* NULL: not known. */
static json_t *tokens_value(int n_tokens)
{
    return n_tokens > 0 ? json_integer(n_tokens) : NULL;
}

/* From type on the fields are those of Anthropic's API. */
static json_t *model_value(const struct model *model)
{
    const time_t start_time = model->set->app->start_time;
    char created_at[32];
    struct tm time;
    strftime(created_at, sizeof created_at, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&start_time, &time));
    const struct server_traits *traits = &model->traits;
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:o*, s:o*, s:o*, s:s, s:s, s:s, s:s, s:o*, s:o*}", "id",
                     model->name, "object", "model", "created", (json_int_t)start_time, "owned_by", "tutti",
                     "status", state_of(model), "max_model_len", tokens_value(traits->max_context),
                     "capabilities", traits->abilities ? app_abilities(traits->abilities) : NULL, "device",
                     app_device(traits->device_type, &traits->device), "type", "model", "display_name",
                     model->name, "created_at", created_at, "lifecycle", "active", "max_input_tokens",
                     tokens_value(traits->max_context), "max_tokens", tokens_value(traits->max_context));
}

void model_set_list(struct model_set *set, struct http_conn *conn, const char *name)
{
    struct tutti_error err;
    if (name) {
        const struct model *model = find_model(set, name, strlen(name));
        if (model && !strcmp(model->name, name)) { /* it has no adapters: --lora is for one model */
            app_reply_json(conn, 200, model_value(model));
        } else {
            set_unknown(&err, name, strlen(name));
            app_reply_error(conn, 404, &err);
        }
        return;
    }
    json_t *list = json_array();
    for (int i = 0; i < set->options->n; i++)
        json_array_append_new(list, model_value(&set->models[i]));
    app_reply_json(conn, 200,
                   json_pack("{s:s, s:s, s:s, s:b, s:o}", "object", "list", "first_id", set->models[0].name,
                             "last_id", set->models[set->options->n - 1].name, "has_more", 0, "data", list));
}

/* ---- start, reload, end ---- */

enum tutti_status model_set_new(struct model_set **out, struct app *app, const struct server_models *options,
                                struct tutti_error *err)
{
    const struct timeval second = { .tv_sec = 1 };
    const char *place = getenv("XDG_RUNTIME_DIR");
    struct model_set *set = calloc(1, sizeof *set);
    if (!set || !(set->models = calloc((size_t)options->n, sizeof *set->models))) {
        free(set);
        return error_set(err, TUTTI_E_MEMORY, "out of memory for %d models", options->n);
    }
    *out = set;
    set->app = app;
    set->options = options;
    TAILQ_INIT(&set->others);
    for (int i = 0; i < options->n; i++) {
        struct model *m = &set->models[i];
        *m = (struct model){ .set = set,
                             .name = options->list[i].name,
                             .path = options->list[i].path,
                             .traits = options->list[i].traits,
                             .index = i };
        m->expected_bytes = files_weight_bytes(m->path) + options->kv_bytes;
        TAILQ_INIT(&m->waiting);
    }
    place = place && strlen(place) < sizeof set->folder - 16 ? place : "/tmp";
    snprintf(set->folder, sizeof set->folder, "%s/tutti-XXXXXX", place);
    if (!mkdtemp(set->folder)) {
        error_set(err, TUTTI_E_IO, "%s: cannot make a folder for sockets: %s", place, strerror(errno));
        set->folder[0] = '\0';
        return TUTTI_E_IO;
    }
    set->news = event_new(app->base, spawner_fd(options->spawner), EV_READ | EV_PERSIST, on_news, set);
    set->tick = event_new(app->base, -1, EV_PERSIST, on_tick, set);
    if (!set->news || !set->tick || event_add(set->news, NULL) || event_add(set->tick, &second))
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the models' processes");
    return TUTTI_OK;
}

static void signal_all(struct model_set *set, int number)
{
    for (int i = 0; i < set->options->n; i++) {
        const struct child *child;
        LIST_FOREACH (child, &set->models[i].children, link)
            send_signal(child, number);
    }
}

void model_set_reload(struct model_set *set)
{
    for (int i = 0; i < set->options->n; i++) {
        struct model *m = &set->models[i];
        if (!m->current || m->current->state != CHILD_SERVING || m->next ||
            files_identity(m->path) == m->current->identity)
            continue;
        uint64_t most = set->options->memory_bytes;
        m->expected_bytes = files_weight_bytes(m->path) + set->options->kv_bytes;
        if (most > 0 && usage_of(set).all + m->expected_bytes > most) {
            log_info("model %s: its files have changed, and there is no room for both: it ends first",
                     m->name);
            m->wants_start = true;
            m->waits_since_us = clock_now_us();
            retire(m->current);
        } else {
            log_info("model %s: its files have changed", m->name);
            m->next = start(m);
        }
    }
    pump(set);
}

void model_set_reload_keys(struct model_set *set)
{
    signal_all(set, SIGHUP);
}

enum tutti_status model_set_check(const struct model_set *set, struct tutti_error *err)
{
    return set->is_broken ? error_set(err, TUTTI_E_IO, "the process that starts models has ended") : TUTTI_OK;
}

void model_set_stop(struct model_set *set)
{
    set->is_ending = true;
    signal_all(set, SIGTERM);
    signal_all(set, SIGTERM); /* a second one: at once */
}

static bool has_children(const struct model_set *set)
{
    return !usage_of(set).is_alone;
}

/* Ends the processes, by force those that take too long. */
static void end_children(struct model_set *set)
{
    struct pollfd fd = { .fd = spawner_fd(set->options->spawner), .events = POLLIN };
    struct spawner_event event;
    uint64_t begin = clock_now_us();
    bool is_forced = false;
    signal_all(set, SIGTERM);
    while (has_children(set)) {
        (void)poll(&fd, 1, 100);
        int n;
        while ((n = spawner_read(set->options->spawner, &event)) > 0)
            take_news(set, &event);
        if (n < 0)
            return;
        if (!is_forced && clock_now_us() - begin > END_MS * 1000) {
            is_forced = true;
            signal_all(set, SIGKILL);
        }
    }
}

void model_set_free(struct model_set *set)
{
    struct request *r;
    if (!set)
        return;
    set->is_ending = true;
    for (int i = 0; i < set->options->n; i++)
        while ((r = TAILQ_FIRST(&set->models[i].waiting)))
            request_free(r);
    while ((r = TAILQ_FIRST(&set->others))) {
        upstream_free(r->upstream);
        request_free(r);
    }
    end_children(set);
    if (set->news)
        event_free(set->news);
    if (set->tick)
        event_free(set->tick);
    if (set->folder[0])
        (void)rmdir(set->folder);
    for (int i = 0; i < set->options->n; i++)
        while (!LIST_EMPTY(&set->models[i].children)) {
            struct child *child = LIST_FIRST(&set->models[i].children);
            LIST_REMOVE(child, link);
            free(child);
        }
    free(set->models);
    free(set);
}
