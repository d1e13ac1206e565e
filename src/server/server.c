/* Runs the server: start, signals, draining, end. */
#include "server/server.h"

#include "base/hash.h"
#include "base/log.h"
#include "base/system/clock.h"
#include "base/system/thread.h"
#include "base/utf8.h"
#include "server/access/guard.h"
#include "server/access/keys.h"
#include "server/http/listen.h"
#include "server/http/supervisor.h"
#include "server/http/tls.h"
#include "server/intake.h"
#include "server/job.h"
#include "server/models/model_set.h"
#include "server/other_apis/step_api.h"
#include "server/reload.h"

#include <event2/event.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DRAIN_LOOK_MS = 20 };

struct server {
    struct app app;
    struct listeners *listeners;
    /* The startup responder: runs the loop while the model is loading, so that requests are answered (with
     * 503). While it runs, the loop and everything on it belong to its thread. */
    pthread_t responder;
    struct mailbox responder_inbox; /* of the message that it must stop; closed: it does not run */
    struct mail responder_stop;
    struct supervisor *supervisor;
    struct reload *reload;
    struct event *sigterm, *sigint, *sighup, *delay, *drain;
    uint64_t drain_end_us;
    uint64_t n_steps;  /* of the engine at the last watchdog check */
    bool has_terminal; /* at the start */
    bool is_stopping;  /* every job is cancelled; waiting for their last events */
};

/* ---- shutdown ---- */

/* Those under way end with an error. */
static void stop_requests(struct app *app)
{
    job_stop_all(app);
    if (app->models)
        model_set_stop(app->models);
}

/* Ends the loop once all requests have ended; after drain_timeout_s, cancels running ones. */
static void on_drain(evutil_socket_t fd, short what, void *arg)
{
    struct server *server = arg;
    (void)fd, (void)what;
    bool late = clock_now_us() >= server->drain_end_us;
    bool is_idle = !http_is_busy(server->app.http) && steps_n_awaited(server->app.steps, clock_now_us()) == 0;
    if (LIST_EMPTY(&server->app.jobs) && (late || is_idle)) {
        event_base_loopbreak(server->app.base);
        return;
    }
    if (late && !server->is_stopping) {
        log_warn("requests still run after %d s, cancelling them", server->app.options->drain_timeout_s);
        server->is_stopping = true;
        stop_requests(&server->app);
    }
}

static void begin_drain(struct server *server)
{
    log_info("draining, running requests have %d s to end", server->app.options->drain_timeout_s);
    server->app.is_draining = true;
    server->drain_end_us = clock_now_us() + (uint64_t)server->app.options->drain_timeout_s * 1000000u;
    if (server->app.engine)
        tutti_engine_drain(server->app.engine);
    http_drain(server->app.http);
    struct timeval look = { .tv_usec = DRAIN_LOOK_MS * 1000 };
    event_add(server->drain, &look);
}

static void on_delay_end(evutil_socket_t fd, short what, void *arg)
{
    struct server *server = arg;
    (void)fd, (void)what;
    if (!server->app.is_draining)
        begin_drain(server);
}

static void stop_at_once(struct server *server)
{
    if (!server->app.is_draining)
        begin_drain(server);
    server->drain_end_us = clock_now_us();
    server->is_stopping = true;
    stop_requests(&server->app);
    on_drain(-1, 0, server);
}

static void on_signal(evutil_socket_t number, short what, void *arg)
{
    struct server *server = arg;
    struct timeval delay = { .tv_sec = server->app.options->drain_delay_s };
    (void)what;
    if (server->app.is_leaving) {
        log_info("%s again: stopping at once", strsignal((int)number));
        stop_at_once(server);
        return;
    }
    supervisor_stopping();
    server->app.is_leaving = true;
    http_leave(server->app.http);
    if (delay.tv_sec > 0 && event_add(server->delay, &delay) == 0) {
        log_info("%s: /ready says 503 from now on, requests are accepted for another %d s",
                 strsignal((int)number), (int)delay.tv_sec);
        return;
    }
    log_info("%s", strsignal((int)number));
    begin_drain(server);
}

/* ---- reload and watchdog ---- */

static bool is_serving(const struct app *app)
{
    return app->engine || app->models;
}

static void report_ready(const struct server *server)
{
    const struct app *app = &server->app;
    char status[768];
    if (app->models)
        snprintf(status, sizeof status, "serving several models on %s", listeners_address(server->listeners));
    else
        snprintf(status, sizeof status, "serving %.128s on %s", app->model_id,
                 listeners_address(server->listeners));
    supervisor_ready(status);
}

/* Applies all files or none: a half-applied change would be a third configuration that nobody has
 * written. */
static void on_keys_read(void *user, enum tutti_status st, struct key_files *files,
                         const struct tutti_error *why)
{
    struct server *server = user;
    struct app *app = &server->app;
    struct tutti_error err = *why;
    if (st == TUTTI_OK && app->tls)
        st = tls_reload(app->tls, &err);
    if (st == TUTTI_OK) {
        keys_close(app->keys);
        keys_close(app->metrics_keys);
        app->keys = files->keys;
        app->metrics_keys = files->metrics_keys;
        app->n_reloads++;
        log_info("%s: keys and certificates were read again", strsignal(SIGHUP));
    } else {
        key_files_close(files);
        app->n_failed_reloads++;
        log_error("%s: nothing was changed: %s", strsignal(SIGHUP), err.text);
    }
    if (app->models)
        model_set_reload_keys(app->models);
    if (app->is_leaving)
        supervisor_stopping();
    else if (is_serving(app))
        report_ready(server);
}

/* SIGHUP has two meanings: "reload the files", and the end of the terminal. */
static void on_hangup(evutil_socket_t number, short what, void *arg)
{
    struct server *server = arg;
    if (server->has_terminal && !isatty(STDIN_FILENO)) {
        if (is_serving(&server->app))
            on_signal(number, what, arg);
        else
            kill(getpid(), SIGTERM); /* before the model is loaded there is nothing to drain */
        return;
    }
    if (is_serving(&server->app))
        supervisor_reloading();
    if (server->app.models)
        model_set_reload(server->app.models);
    reload_start(server->reload);
}

/* For the watchdog. The loop is alive because it calls this; the engine is if it has made a step or
 * has nothing to do. Processes of several models report their own ends. */
static bool is_alive(void *user)
{
    struct server *server = user;
    struct tutti_stats stats;
    if (server->app.models)
        return true;
    tutti_engine_stats(server->app.engine, &stats);
    bool alive = stats.n_running + stats.n_waiting == 0 || stats.n_steps != server->n_steps;
    server->n_steps = stats.n_steps;
    return alive;
}

/* ---- startup ---- */

void app_make_fingerprint(struct app *app)
{
    uint64_t hash = 0;
    const char *const parts[] = { tutti_version(), app->info.name, app->info.weight_type, app->info.kv_type };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        hash = hash64_string(hash, parts[i] ? parts[i] : "");
    snprintf(app->fingerprint, sizeof app->fingerprint, "fp_%08x", (uint32_t)hash);
}

bool app_token_bytes(const struct app *app, int32_t id, struct buf *out)
{
    enum { USUAL_BYTES = 64 };
    buf_truncate(out, 0);
    if (!buf_reserve(out, USUAL_BYTES))
        return false;
    int64_t n = tutti_token_bytes(app->model, id, out->bytes, USUAL_BYTES);
    if (n > USUAL_BYTES) {
        if (!buf_reserve(out, (size_t)n))
            return false;
        n = tutti_token_bytes(app->model, id, out->bytes, (size_t)n);
    }
    if (n < 0)
        return !app->info.has_tokenizer;
    out->n_bytes = (size_t)n;
    out->bytes[n] = '\0';
    return true;
}

static enum tutti_status open_files(struct app *app, struct tutti_error *err)
{
    const struct server_options *options = app->options;
    const struct tls_files files = { options->tls_cert_file, options->tls_key_file,
                                     options->tls_client_ca_file };
    struct key_files keys;
    enum tutti_status st = key_files_read(&keys, options, err);
    app->keys = keys.keys;
    app->metrics_keys = keys.metrics_keys;
    if (st == TUTTI_OK && files.cert)
        st = tls_new(&app->tls, &files, err);
    return st;
}

static enum tutti_status open_signals(struct server *server, struct tutti_error *err)
{
    struct event_base *base = server->app.base;
    server->sigterm = evsignal_new(base, SIGTERM, on_signal, server);
    server->sigint = evsignal_new(base, SIGINT, on_signal, server);
    server->delay = evtimer_new(base, on_delay_end, server);
    server->drain = event_new(base, -1, EV_PERSIST, on_drain, server);
    if (!server->sigterm || !server->sigint || !server->delay || !server->drain ||
        event_add(server->sigterm, NULL) || event_add(server->sigint, NULL))
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the server");
    return supervisor_new(&server->supervisor, base, is_alive, server, err);
}

/* The largest body for a context: the text of all its tokens with escapes, or their ids; and
 * schemas, tools and other fields. */
static size_t body_bytes_for(int n_tokens)
{
    enum { LEAST_BYTES = 4 * 1024 * 1024, BYTES_PER_TOKEN = 32 };
    return LEAST_BYTES + BYTES_PER_TOKEN * (size_t)n_tokens;
}

static struct http_options http_options(struct app *app)
{
    enum { PER_ADDRESS = 512 }; /* loopback: a reverse proxy on this machine connects for all its clients */
    int per_address = app->options->max_connections_per_address;
    return (struct http_options){
        .max_connections = (uint32_t)app->options->max_connections,
        .max_per_address = (uint32_t)(per_address < 0 ? PER_ADDRESS : per_address),
        .max_per_loopback = (uint32_t)(per_address < 0 ? 0 : per_address),
        .max_body_bytes = app->options->max_body_bytes > 0 ? app->options->max_body_bytes : body_bytes_for(0),
        .max_output_bytes = app->options->max_output_bytes,
        .header_timeout_s = app->options->header_timeout_s,
        .idle_timeout_s = app->options->idle_timeout_s,
        .tls = app->tls,
        .is_behind = app->options->is_behind,
        .user = app,
        .head = route_head,
        .request = route_request,
        .reply = route_reply,
        .fail = route_fail,
        .done = route_done,
    };
}

static void warn_of_strangers(const struct server *server)
{
    const struct server_options *options = server->app.options;
    if (options->metrics_listen)
        log_info("metrics: %s", listeners_metrics_address(server->listeners));
    if (listeners_are_reachable(server->listeners, HTTP_SERVICE_METRICS) && !options->metrics_key_file &&
        !options->tls_client_ca_file)
        log_warn("%s: any client that can connect may read the metrics; --metrics-key FILE requires a key",
                 listeners_metrics_address(server->listeners));
    if (options->api_key_file)
        return;
    if (listeners_are_reachable(server->listeners, HTTP_SERVICE_API) && !options->tls_client_ca_file)
        log_warn("%s: any client that can connect may use the model; --api-key-file FILE requires a key, "
                 "--host 127.0.0.1 keeps other machines out",
                 listeners_address(server->listeners));
    if (options->cors_origin && !strcmp(options->cors_origin, "*"))
        log_warn("--cors-origin *: every page that a user of this machine opens may use the model; name the "
                 "origin of the page that may");
}

static void on_responder_stop(void *user, struct mail *mail)
{
    (void)mail;
    event_base_loopbreak(((struct server *)user)->app.base);
}

static void *responder_main(void *arg)
{
    struct server *server = arg;
    if (event_base_dispatch(server->app.base) < 0)
        log_error("the event loop failed while the model was loaded");
    return NULL;
}

static enum tutti_status start_responder(struct server *server, struct tutti_error *err)
{
    struct mailbox *inbox = &server->responder_inbox;
    enum tutti_status st = mailbox_open(inbox, server->app.base, on_responder_stop, server, err);
    int failed = st == TUTTI_OK ? thread_start(&server->responder, responder_main, server) : 0;
    if (!failed)
        return st;
    mailbox_close(inbox);
    return error_set(err, TUTTI_E_MEMORY, "cannot start the server's thread: %s", strerror(failed));
}

static void stop_responder(struct server *server)
{
    if (!server->responder_inbox.wake)
        return;
    mailbox_send(&server->responder_inbox, &server->responder_stop);
    pthread_join(server->responder, NULL);
    mailbox_close(&server->responder_inbox);
}

static enum tutti_status open_all(struct server *server, struct tutti_error *err)
{
    struct app *app = &server->app;
    const struct server_options *options = app->options;
    app->base = event_base_new();
    if (!app->base)
        return error_set(err, TUTTI_E_MEMORY, "out of event descriptors");
    /* Before the model is loaded: SIGHUP must not end the process then. */
    server->sighup = evsignal_new(app->base, SIGHUP, on_hangup, server);
    if (!server->sighup || event_add(server->sighup, NULL))
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the server");
    enum tutti_status st = reload_new(&server->reload, app->base, options, on_keys_read, server, err);
    if (st == TUTTI_OK)
        st = open_files(app, err);
    if (st == TUTTI_OK)
        st = mailbox_open(&app->inbox, app->base, job_take_event, app, err);
    if (st == TUTTI_OK)
        st = intake_new(&app->intake, app->base, err);
    if (st == TUTTI_OK)
        st = clients_new(&app->clients, err);
    if (st == TUTTI_OK && (options->apis & SERVER_API_STEP))
        st = steps_new(&app->steps, err);
    if (st == TUTTI_OK) {
        const struct http_options http = http_options(app);
        st = http_new(&app->http, app->base, &http, err);
    }
    if (st == TUTTI_OK)
        st = listeners_open(&server->listeners, app->base, app->http, options, err);
    if (st == TUTTI_OK)
        st = guard_new(&app->guard, options, listeners_are_reachable(server->listeners, HTTP_SERVICE_API),
                       err);
    if (st != TUTTI_OK)
        return st;
    warn_of_strangers(server);
    if (listeners_are_inherited(server->listeners))
        return st;
    st = start_responder(server, err);
    if (st == TUTTI_OK)
        log_info("%s: 503 until the model is loaded", listeners_address(server->listeners));
    return st;
}

/* Ignores signals that would end the process but have no meaning here. A disconnected client
 * (SIGPIPE) and exceeding the file size limit (SIGXFSZ) are errors of write(); the others come from
 * scripts written for another program. A handler that is already set, such as a profiler's, stays. */
static void ignore_signals(void)
{
    static const int SIGNALS[] = {
        SIGPIPE, SIGXFSZ, SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGIO,
#ifdef SIGPWR
        SIGPWR,
#endif
    };
    struct sigaction now;
    for (size_t i = 0; i < sizeof SIGNALS / sizeof *SIGNALS; i++)
        if (sigaction(SIGNALS[i], NULL, &now) == 0 && now.sa_handler == SIG_DFL)
            signal(SIGNALS[i], SIG_IGN);
}

/* Replies have the name, and JSON cannot have other text. */
static enum tutti_status check_name(const char *name, struct tutti_error *err)
{
    if (utf8_is_printable(name, strlen(name)))
        return TUTTI_OK;
    return error_set(err, TUTTI_E_ARGUMENT,
                     "the model's name is not text of printable characters in UTF-8, which replies have; "
                     "give it another one with --name ID");
}

enum tutti_status server_open(struct server **out, const struct server_options *options,
                              struct tutti_error *err)
{
    if (options->model_id && check_name(options->model_id, err) != TUTTI_OK)
        return TUTTI_E_ARGUMENT;
    struct server *server = calloc(1, sizeof *server);
    if (!server)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the server");
    server->app.options = options;
    server->app.start_time = time(NULL);
    raise_open_files();
    ignore_signals();
    server->has_terminal = isatty(STDIN_FILENO);
    enum tutti_status st = open_all(server, err);
    if (st != TUTTI_OK) {
        server_close(server);
        return st;
    }
    *out = server;
    return TUTTI_OK;
}

void server_close(struct server *server)
{
    if (!server)
        return;
    struct event *const events[] = { server->sigterm, server->sigint, server->sighup, server->delay,
                                     server->drain };
    stop_responder(server);
    listeners_close(server->listeners);
    /* Before the connections, and before the memory of bodies that it reads. */
    intake_free(server->app.intake);
    model_set_free(server->app.models);
    http_free(server->app.http);
    steps_free(server->app.steps);
    mailbox_close(&server->app.inbox);
    clients_free(server->app.clients);
    guard_free(server->app.guard);
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i])
            event_free(events[i]);
    supervisor_free(server->supervisor);
    reload_free(server->reload);
    if (server->app.base)
        event_base_free(server->app.base);
    tls_free(server->app.tls);
    keys_close(server->app.keys);
    keys_close(server->app.metrics_keys);
    free(server);
}

static enum tutti_status run_loop(struct server *server, struct tutti_error *err)
{
    enum tutti_status st = open_signals(server, err);
    if (st != TUTTI_OK)
        return st;
    printf("listening on %s\n", listeners_address(server->listeners));
    fflush(stdout);
    report_ready(server);
    if (server->app.options->ready)
        server->app.options->ready(server->app.options->ready_user);
    if (event_base_dispatch(server->app.base) < 0)
        st = error_set(err, TUTTI_E_IO, "the event loop failed");
    return st;
}

enum tutti_status server_run(struct server *server, tutti_engine *engine, tutti_model *model,
                             struct tutti_error *err)
{
    struct app *app = &server->app;
    stop_responder(server);
    app->engine = engine;
    app->model = model;
    tutti_model_info(model, &app->info);
    app->model_id = app->options->model_id ? app->options->model_id : app->info.name;
    app_make_fingerprint(app);
    if (app->options->max_body_bytes == 0)
        http_set_max_body(app->http, body_bytes_for(app_max_context(app)));
    enum tutti_status st = check_name(app->model_id, err);
    if (st == TUTTI_OK)
        st = run_loop(server, err);
    tutti_engine_drain(engine);
    log_info("stopped");
    return st;
}

enum tutti_status server_run_models(struct server *server, const struct server_models *models,
                                    struct tutti_error *err)
{
    enum { LARGEST_CONTEXT = 1 << 20 }; /* the processes check bodies by their models' contexts */
    struct app *app = &server->app;
    stop_responder(server);
    if (app->options->max_body_bytes == 0)
        http_set_max_body(app->http, body_bytes_for(LARGEST_CONTEXT));
    enum tutti_status st = model_set_new(&app->models, app, models, err);
    if (st == TUTTI_OK)
        st = run_loop(server, err);
    if (st == TUTTI_OK)
        st = model_set_check(app->models, err);
    log_info("stopped");
    return st;
}
