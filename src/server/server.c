/* From options to a running loop, and back: start, signals, draining, end. */
#include "server/server.h"

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "server/job.h"
#include "server/keys.h"
#include "server/listen.h"

#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { DRAIN_LOOK_MS = 20 };

struct server {
    struct app app;
    struct listeners *listeners;
    struct event *sigterm, *sigint, *drain;
    uint64_t drain_end_us;
    bool is_stopping; /* every job is cancelled, only their last events are awaited */
};

void server_options_init(struct server_options *options)
{
    *options = (struct server_options){
        .host = "127.0.0.1",
        .port = 8080,
        .max_body_bytes = LIMIT_BODY_BYTES,
        .max_output_bytes = 1024 * 1024,
        .header_timeout_s = 30,
        .idle_timeout_s = 120,
        .drain_timeout_s = 30,
        .access_log = true,
    };
}

static enum tutti_status check_options(const struct server_options *options, struct tutti_error *err)
{
    if (!options->unix_path && (!options->host || !*options->host))
        return error_set(err, TUTTI_E_ARGUMENT, "host is empty");
    if (options->port < 0 || options->port > 65535)
        return error_set(err, TUTTI_E_ARGUMENT, "port must lie between 0 and 65535, found %d", options->port);
    if (options->max_body_bytes < 1 || options->max_body_bytes > (size_t)1 << 30)
        return error_set(err, TUTTI_E_ARGUMENT, "the body limit must lie between 1 and 2^30 bytes, found %zu",
                         options->max_body_bytes);
    if (options->max_output_bytes < 1)
        return error_set(err, TUTTI_E_ARGUMENT, "the output limit must not be 0");
    const struct {
        const char *name;
        int value;
    } seconds[] = { { "header", options->header_timeout_s },
                    { "idle", options->idle_timeout_s },
                    { "drain", options->drain_timeout_s } };
    for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++)
        if (seconds[i].value < 1 || seconds[i].value > 86400)
            return error_set(err, TUTTI_E_ARGUMENT,
                             "the %s timeout must lie between 1 and 86400 seconds, found %d", seconds[i].name,
                             seconds[i].value);
    for (const char *p = options->cors_origin; p && *p; p++)
        if ((unsigned char)*p <= ' ' || (unsigned char)*p >= 0x7f)
            return error_set(err, TUTTI_E_ARGUMENT, "the CORS origin holds a blank or control character");
    return TUTTI_OK;
}

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* Ends the loop once nobody waits for anything; after the time given, cancels what runs. */
static void on_drain(evutil_socket_t fd, short what, void *arg)
{
    struct server *server = arg;
    (void)fd, (void)what;
    bool late = clock_now_us() >= server->drain_end_us;
    if (!server->app.jobs && (late || !http_is_busy(server->app.http))) {
        event_base_loopbreak(server->app.base);
        return;
    }
    if (late && !server->is_stopping) {
        log_warn("requests still run after %d s, cancelling them", server->app.options->drain_timeout_s);
        server->is_stopping = true;
        job_stop_all(&server->app);
    }
}

static void on_signal(evutil_socket_t number, short what, void *arg)
{
    struct server *server = arg;
    (void)what;
    if (server->app.is_draining) {
        log_info("%s again: stopping at once", strsignal((int)number));
        server->drain_end_us = clock_now_us();
        server->is_stopping = true;
        job_stop_all(&server->app);
        on_drain(-1, 0, server);
        return;
    }
    log_info("%s: draining, running requests have %d s to end", strsignal((int)number),
             server->app.options->drain_timeout_s);
    server->app.is_draining = true;
    server->drain_end_us = clock_now_us() + (uint64_t)server->app.options->drain_timeout_s * 1000000u;
    tutti_engine_drain(server->app.engine);
    http_drain(server->app.http);
    struct timeval look = { .tv_usec = DRAIN_LOOK_MS * 1000 };
    event_add(server->drain, &look);
}

/* ---- start ------------------------------------------------------------------------------------------------------- */

/* FNV-1a: tells one configuration from another, no more. */
static void make_fingerprint(struct app *app)
{
    uint32_t hash = 2166136261u;
    const char *const parts[] = { TUTTI_VERSION, app->info.name, app->info.weight_type, app->info.kv_type };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (const char *p = parts[i]; p && *p; p++)
            hash = (hash ^ (unsigned char)*p) * 16777619u;
    snprintf(app->fingerprint, sizeof app->fingerprint, "fp_%08x", (unsigned)hash);
}

static enum tutti_status open_all(struct server *server, struct tutti_error *err)
{
    struct app *app = &server->app;
    const struct server_options *options = app->options;
    const struct http_options http_options = {
        .max_body_bytes = options->max_body_bytes,
        .max_output_bytes = options->max_output_bytes,
        .header_timeout_s = options->header_timeout_s,
        .idle_timeout_s = options->idle_timeout_s,
        .user = app,
        .head = route_head,
        .request = route_request,
        .reply = route_reply,
        .done = route_done,
    };
    enum tutti_status st = TUTTI_OK;
    if (options->api_key_file)
        st = keys_open(&app->keys, options->api_key_file, err);
    if (st != TUTTI_OK)
        return st;
    app->base = event_base_new();
    if (!app->base)
        return error_set(err, TUTTI_E_MEMORY, "the system has no event descriptor left");
    server->sigterm = evsignal_new(app->base, SIGTERM, on_signal, server);
    server->sigint = evsignal_new(app->base, SIGINT, on_signal, server);
    server->drain = event_new(app->base, -1, EV_PERSIST, on_drain, server);
    if (!server->sigterm || !server->sigint || !server->drain || event_add(server->sigterm, NULL) ||
        event_add(server->sigint, NULL))
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the server");
    st = inbox_new(&app->inbox, app->base, job_read_letter, app, err);
    if (st == TUTTI_OK)
        st = http_new(&app->http, app->base, &http_options, err);
    if (st == TUTTI_OK)
        st = listeners_open(&server->listeners, app->base, app->http, options, err);
    return st;
}

static void close_all(struct server *server)
{
    listeners_close(server->listeners);
    http_free(server->app.http);
    inbox_free(server->app.inbox);
    if (server->sigterm)
        event_free(server->sigterm);
    if (server->sigint)
        event_free(server->sigint);
    if (server->drain)
        event_free(server->drain);
    if (server->app.base)
        event_base_free(server->app.base);
    keys_close(server->app.keys);
}

enum tutti_status server_run(tutti_engine *engine, tutti_model *model, const struct server_options *options,
                             struct tutti_error *err)
{
    struct server server = { .app = { .engine = engine, .model = model, .options = options } };
    enum tutti_status st = check_options(options, err);
    if (st != TUTTI_OK)
        return st;
    tutti_model_info(model, &server.app.info);
    server.app.model_id = options->model_id ? options->model_id : server.app.info.name;
    server.app.start_time = time(NULL);
    make_fingerprint(&server.app);
    raise_open_files();
    signal(SIGPIPE, SIG_IGN); /* a client that is gone is an error of write() */
    st = open_all(&server, err);
    if (st == TUTTI_OK) {
        printf("listening on %s\n", listeners_address(server.listeners));
        fflush(stdout);
        if (event_base_dispatch(server.app.base) < 0)
            st = error_set(err, TUTTI_E_IO, "the event loop failed");
        tutti_engine_drain(engine);
        log_info("stopped");
    }
    close_all(&server);
    return st;
}
