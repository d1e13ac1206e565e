/* Routing: which path has which handler, which clients may use it, and what is counted. */
#include "base/system/clock.h"
#include "server/access/access.h"
#include "server/access/guard.h"
#include "server/access/keys.h"
#include "server/access/trace.h"
#include "server/anthropic/anthropic_messages.h"
#include "server/models/model_set.h"
#include "server/openai/openai_reply.h"
#include "server/other_apis/inputs_request.h"
#include "server/slots.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum {
    /* A key protects routes that compute or describe the model, as in vLLM. /health, /ready and /metrics
     * are for monitoring, and the page prompts for a key itself. */
    NEEDS_KEY = 1,
    WORKS = 2,   /* uses the engine, so it is refused while draining */
    STATES = 4,  /* tells the server's state: answered while the model is loaded, and with the metrics */
    FIGURES = 8, /* shows the activity of all clients: only for monitors */
    JOB = NEEDS_KEY | WORKS,
};

static const struct route {
    const char *path, *method; /* "{...}" in a path matches one or more bytes */
    void (*request)(struct app *app, struct http_conn *conn); /* NULL: starts a job */
    /* Of a job. If the engine's queue is full, it is refused before its body is read. */
    const struct job_api *job;
    unsigned flags;
    unsigned api; /* enum server_api: only if that API is on; 0: always */
} ROUTES[] = {
    { "/v1/chat/completions", "POST", NULL, &OPENAI_CHAT.job, JOB, 0 },
    { "/v1/completions", "POST", NULL, &OPENAI_COMPLETIONS.job, JOB, 0 },
    { "/v1/responses", "POST", NULL, &OPENAI_RESPONSES, JOB, 0 },
    { "/v1/messages", "POST", NULL, &ANTHROPIC_MESSAGES, JOB, 0 },
    { "/v1/messages/count_tokens", "POST", count_tokens_request, NULL, NEEDS_KEY | WORKS, 0 },
    { "/v1/embeddings", "POST", NULL, &OPENAI_EMBEDDINGS, JOB, 0 },
    { "/v1/rerank", "POST", NULL, &RERANK, JOB, 0 },
    { "/v2/rerank", "POST", NULL, &RERANK, JOB, 0 }, /* Cohere's */
    { "/rerank", "POST", NULL, &RERANK, JOB, 0 },
    { "/infill", "POST", NULL, &INFILL, JOB, 0 },
    { "/v1/models", "GET", models_request, NULL, NEEDS_KEY, 0 },
    { "/v1/models/{id}", "GET", models_request, NULL, NEEDS_KEY, 0 },
    { "/tokenize", "POST", tokenize_request, NULL, NEEDS_KEY | WORKS, 0 },
    { "/tokenizer_info", "GET", tokenizer_info_request, NULL, NEEDS_KEY, 0 },
    { "/detokenize", "POST", detokenize_request, NULL, NEEDS_KEY | WORKS, 0 },
    { "/health", "GET", health_request, NULL, STATES, 0 },
    { "/ready", "GET", ready_request, NULL, STATES, 0 },
    { "/metrics", "GET", metrics_request, NULL, FIGURES, 0 },
    { "/slots", "GET", slots_request, NULL, FIGURES, 0 },
    { "/generate", "POST", NULL, &TGI, JOB, SERVER_API_TGI },
    { "/generate_stream", "POST", NULL, &TGI, JOB, SERVER_API_TGI },
    { "/info", "GET", tgi_info_request, NULL, NEEDS_KEY, SERVER_API_TGI },
    { "/", "POST", NULL, &TGI, JOB, SERVER_API_TGI },
    { "/models/{name}/generate", "POST", NULL, &LLM_SERVING, JOB, SERVER_API_LLM_SERVING },
    { "/models/{name}/generate_stream", "POST", NULL, &LLM_SERVING, JOB, SERVER_API_LLM_SERVING },
    { "/models/{name}", "POST", NULL, &LLM_SERVING, JOB, SERVER_API_LLM_SERVING },
    { "/serving/get_bs", "GET", llm_serving_count_request, NULL, NEEDS_KEY, SERVER_API_LLM_SERVING },
    { "/serving/get_request_numbers", "GET", llm_serving_count_request, NULL, NEEDS_KEY,
      SERVER_API_LLM_SERVING },
    { "/serving/get_serverd_model_info", "GET", llm_serving_info_request, NULL, NEEDS_KEY,
      SERVER_API_LLM_SERVING },
    { "/llm/generate", "POST", step_request, NULL, NEEDS_KEY,
      SERVER_API_STEP },                      /* refuses new chats itself */
    { "/", "GET", page_request, NULL, 0, 0 }, /* and every other file of the page */
};

enum { N_ROUTES = sizeof ROUTES / sizeof *ROUTES, PAGE_ROUTE = N_ROUTES - 1 };

static const int STATUSES[] = { 200, 204, 304, 400, 401, 403, 404, 405, 408, 409, 413, 415,
                                417, 422, 424, 429, 431, 499, 500, 501, 503, 505, 529 };

_Static_assert(sizeof STATUSES / sizeof *STATUSES == APP_MAX_STATUSES, "a status has a column each");
_Static_assert((int)N_ROUTES < (int)APP_MAX_ROUTES, "one more is for requests without a route");

enum { STATUS_CLIENT_GONE = 499 }; /* as in nginx; in logs and metrics only */

const char *route_name(int route)
{
    if (route < N_ROUTES)
        return ROUTES[route].path;
    return route == N_ROUTES ? "other" : NULL;
}

int route_status(int column)
{
    return column < APP_MAX_STATUSES ? STATUSES[column] : 0;
}

static bool path_is(const char *pattern, const char *path)
{
    const char *open = strchr(pattern, '{');
    if (!open)
        return !strcmp(path, pattern);
    const char *end = strchr(open, '}') + 1;
    size_t n_before = (size_t)(open - pattern), n_after = strlen(end), n_path = strlen(path);
    return n_path > n_before + n_after && !strncmp(path, pattern, n_before) &&
           !strcmp(path + n_path - n_after, end);
}

static bool method_is(const char *wanted, const char *method)
{
    return !strcmp(wanted, method) || (!strcmp(wanted, "GET") && !strcmp(method, "HEAD"));
}

/* Finds the route of a request; if none has its method, one of its path; N_ROUTES: not found.
 * method may be NULL. */
static int route_find(const struct app *app, const char *path, const char *method)
{
    int found = N_ROUTES;
    for (int i = 0; path && i < N_ROUTES; i++) {
        bool is_on = !ROUTES[i].api || (ROUTES[i].api & app->options->apis);
        if (!is_on || !path_is(ROUTES[i].path, path))
            continue;
        if (method && method_is(ROUTES[i].method, method))
            return i;
        found = i;
    }
    return found == N_ROUTES && path && page_has(path) ? PAGE_ROUTE : found;
}

/* ---- clients ---- */

struct client_limits app_default_limits(const struct server_options *options)
{
    return (struct client_limits){ .weight = 1,
                                   .tokens_per_minute = (double)options->tokens_per_minute,
                                   .concurrency = options->max_concurrent };
}

struct client *app_client(struct app *app, const struct http_conn *conn)
{
    struct client_limits defaults = app_default_limits(app->options);
    uint64_t now_us = clock_now_us();
    char address[80];
    if (app->keys)
        return *http_request(conn)->caller
                   ? clients_get(app->clients, http_request(conn)->caller,
                                 keys_limits(app->keys, http_request(conn)->caller), now_us)
                   : NULL;
    client_name_address(address, sizeof address, http_request(conn)->client);
    return clients_get(app->clients, address, &defaults, now_us);
}

static void write_limits(struct app *app, struct http_conn *conn)
{
    const struct http_head *head = &http_request(conn)->head;
    int index = route_find(app, head->path, head->method);
    bool has_limits = !app->models && (app->keys || app->options->tokens_per_minute > 0);
    struct client *client = has_limits && index < N_ROUTES && (ROUTES[index].flags & NEEDS_KEY)
                                ? app_client(app, conn)
                                : NULL;
    if (client)
        client_write_headers(client, conn, clock_now_us());
}

/* ---- replies ---- */

/* Adds Retry-After to a refusal with status 429, 503 or 529. */
static void add_retry_after(struct http_conn *conn, int status, const struct tutti_error *err)
{
    enum { LEAST_MS = 1000, MOST_S = 3600 };
    if (status != 429 && status != 503 && status != 529)
        return;
    uint32_t ms = err->retry_after_ms > 0 ? err->retry_after_ms : LEAST_MS, s = ms / 1000 + (ms % 1000 > 0);
    char text[16];
    snprintf(text, sizeof text, "%u", s < MOST_S ? s : MOST_S);
    http_header(conn, "Retry-After", text);
}

void app_fail(struct http_conn *conn, int status, const char *prefix, json_t *value, const char *end,
              const struct tutti_error *err)
{
    struct buf text = { 0 };
    bool has_begun = http_stream_has_begun(conn);
    bool ok = buf_add_string(&text, has_begun ? prefix : "") && json_write(&text, value) &&
              buf_add_string(&text, has_begun ? end : "");
    json_decref(value);
    if (has_begun) {
        if (ok)
            http_stream_write(conn, text.bytes, text.n_bytes);
        http_stream_end(conn);
    } else {
        add_retry_after(conn, status, err);
        http_reply(conn, status, ok ? "application/json" : NULL, text.bytes, ok ? text.n_bytes : 0);
    }
    buf_clear(&text);
}

void app_reply_error(struct http_conn *conn, int status, const struct tutti_error *err)
{
    app_fail(conn, status, "", http_error_value(conn, status, err), "", err);
}

void app_reply_value(struct http_conn *conn, int status, const char *type, const char *prefix, json_t *value,
                     const char *end)
{
    struct buf body = { 0 };
    struct tutti_error err;
    if (buf_add_string(&body, prefix) && json_write(&body, value) && buf_add_string(&body, end)) {
        http_reply(conn, status, type, body.bytes, body.n_bytes);
    } else {
        error_set(&err, TUTTI_E_MEMORY, "out of memory for the reply");
        app_reply_error(conn, 503, &err);
    }
    buf_clear(&body);
    json_decref(value);
}

void app_reply_json(struct http_conn *conn, int status, json_t *value)
{
    app_reply_value(conn, status, "application/json", "", value, "");
}

/* The model name that clients of Text Generation Inference send in chats by default; its servers
 * have one model, and ignore the name. */
static bool is_tgi_model(const struct app *app, const char *model)
{
    return (app->options->apis & SERVER_API_TGI) && (!strcmp(model, "tgi") || !strcmp(model, "dummy"));
}

enum tutti_status app_find_model(struct app *app, const char *model, const char **adapter,
                                 struct tutti_error *err)
{
    size_t n_id = strlen(app->model_id);
    const char *unused;
    adapter = adapter ? adapter : &unused;
    *adapter = NULL;
    if (!model || !*model || !strcmp(model, app->model_id) || is_tgi_model(app, model))
        return TUTTI_OK;
    bool has_adapter = strncmp(model, app->model_id, n_id) == 0 && model[n_id] == ':';
    for (int i = 0; has_adapter && (*adapter = tutti_model_adapter_name(app->model, i)); i++)
        if (!strcmp(*adapter, model + n_id + 1))
            return TUTTI_OK;
    int n_adapters = tutti_model_n_adapters(app->model);
    return error_set_param(
        err, TUTTI_E_NOT_FOUND, "model", "The model \"%.128s\" does not exist; this server has \"%s\"%s",
        model, app->model_id, n_adapters > 0 ? " and its adapters, as GET /v1/models lists them" : "");
}

bool app_check_model(struct app *app, struct http_conn *conn, const char *model, const char **adapter)
{
    struct tutti_error err;
    if (app_find_model(app, model, adapter, &err) == TUTTI_OK)
        return true;
    app_reply_error(conn, 404, &err);
    return false;
}

/* ---- checks before the body is read ---- */

static void reply_preflight(struct app *app, struct http_conn *conn, const struct route *route)
{
    const struct http_head *head = &http_request(conn)->head;
    const char *headers = http_head_find(head, "Access-Control-Request-Headers");
    char methods[64];
    snprintf(methods, sizeof methods, "%s, OPTIONS", route ? route->method : "GET, POST");
    http_header(conn, "Allow", methods);
    if (app->options->cors_origin) {
        http_header(conn, "Access-Control-Allow-Methods", methods);
        http_header(conn, "Access-Control-Allow-Headers", headers ? headers : "authorization, content-type");
        http_header(conn, "Access-Control-Max-Age", "600");
    }
    http_reply(conn, 204, NULL, NULL, 0);
}

static bool has_key(const struct app *app, struct http_conn *conn)
{
    const struct http_head *head = &http_request(conn)->head;
    const char *name = keys_find(app->keys, http_head_find(head, "Authorization"));
    if (!name)
        name = keys_find_key(app->keys, http_head_find(head, "x-api-key")); /* Anthropic's clients */
    if (name)
        http_set_caller(conn, name, keys_tenant(app->keys, name));
    return name != NULL;
}

/* Refuses requests that would wait too long or exceed a limit, before the body is read: parsing and
 * tokenizing it in vain would slow running requests down. A route without a job has no answer that could
 * wait or run: only the client's bucket limits it, to which its body is charged. */
static enum tutti_status check_room(struct app *app, struct http_conn *conn, bool is_job,
                                    struct tutti_error *err)
{
    enum { BYTES_PER_TOKEN = 4 }; /* of the body; only for Retry-After */
    struct client *client = app_client(app, conn);
    int64_t n_tokens = is_job ? (int64_t)(http_request(conn)->head.n_body_bytes / BYTES_PER_TOKEN) + 1 : 1;
    if (!client)
        return TUTTI_OK;
    enum tutti_status st = client_check(client, is_job, n_tokens, clock_now_us(), err);
    return st == TUTTI_OK && is_job ? tutti_engine_check_queue(app->engine, client->id, client->limits.weight,
                                                               client->limits.priority, err)
                                    : st;
}

/* True: the route ignores the body, which would only take up memory and a connection. */
static bool has_needless_body(const struct http_head *head)
{
    bool is_post = !strcmp(head->method, "POST");
    return !is_post && (head->chunked || head->n_body_bytes > 0);
}

/* Metrics and the list of requests show the activity of every client, so with API keys only monitors may
 * read them. NULL: this client may; else the reason. */
static const char *refuse_metrics(const struct app *app, const struct http_conn *conn)
{
    const char *authorization = http_head_find(&http_request(conn)->head, "Authorization");
    if (app->options->is_behind)
        return NULL;
    if (app->metrics_keys)
        return keys_find(app->metrics_keys, authorization) ? NULL : "metrics need a key of --metrics-key";
    if (app->keys && http_request(conn)->service != HTTP_SERVICE_METRICS)
        return "with API keys, metrics need a key of their own: start the server with --metrics-key FILE, or "
               "with --metrics-listen ADDRESS";
    return NULL;
}

/* True: the listener that accepted this connection serves the route. */
static bool serves_route(const struct app *app, const struct http_conn *conn, const struct route *route)
{
    bool is_figures = route->flags & FIGURES;
    return http_request(conn)->service == HTTP_SERVICE_METRICS ? is_figures || (route->flags & STATES)
                                                               : !is_figures || !app->options->metrics_listen;
}

void route_head(void *user, struct http_conn *conn)
{
    struct app *app = user;
    const struct http_head *head = &http_request(conn)->head;
    struct tutti_error err;
    int index = route_find(app, head->path, head->method);
    const struct route *route = index < N_ROUTES ? &ROUTES[index] : NULL;
    const char *refusal = NULL;
    if (route && !serves_route(app, conn, route))
        route = NULL;
    if (has_needless_body(head) || (route && !(route->flags & NEEDS_KEY)))
        http_close_after_body(conn);
    if (guard_check(app->guard, conn, app->keys != NULL, &err) != TUTTI_OK) {
        app_reply_error(conn, 403, &err);
    } else if (route && has_needless_body(head)) {
        error_set(&err, TUTTI_E_ARGUMENT, "%s %.200s takes no body", head->method, head->path);
        app_reply_error(conn, 400, &err);
    } else if (!strcmp(head->method, "OPTIONS") && (route || !strcmp(head->path, "*"))) {
        reply_preflight(app, conn, route);
    } else if (!route) {
        error_set(&err, TUTTI_E_NOT_FOUND, "there is nothing at %.200s", head->path);
        app_reply_error(conn, 404, &err);
    } else if (!method_is(route->method, head->method)) {
        error_set(&err, TUTTI_E_ARGUMENT, "%.200s takes %s, not %.32s", head->path, route->method,
                  head->method);
        http_header(conn, "Allow", !strcmp(route->method, "GET") ? "GET, HEAD, OPTIONS" : "POST, OPTIONS");
        app_reply_error(conn, 405, &err);
    } else if (!strcmp(route->method, "POST") && guard_check_body(head, &err) != TUTTI_OK) {
        if (http_head_find(head, "Content-Encoding"))
            http_header(conn, "Accept-Encoding", "identity");
        app_reply_error(conn, 415, &err);
    } else if (!app->engine && !app->models && !(route->flags & STATES)) {
        error_set(&err, TUTTI_E_CLOSED, "the model is still being loaded");
        app_reply_error(conn, 503, &err);
    } else if ((route->flags & FIGURES) && (refusal = refuse_metrics(app, conn))) {
        error_set(&err, TUTTI_E_ARGUMENT, "%s", refusal);
        http_header(conn, "WWW-Authenticate", "Bearer");
        app_reply_error(conn, 401, &err);
    } else if ((route->flags & NEEDS_KEY) && app->keys && !has_key(app, conn)) {
        error_set(&err, TUTTI_E_ARGUMENT,
                  http_head_find(head, "Authorization") || http_head_find(head, "x-api-key")
                      ? "Incorrect API key provided"
                      : "You did not provide an API key: expected the header Authorization: Bearer KEY, or "
                        "x-api-key: KEY");
        http_header(conn, "WWW-Authenticate", "Bearer");
        app_reply_error(conn, 401, &err);
    } else if ((route->flags & WORKS) && app->is_draining) {
        error_set(&err, TUTTI_E_CLOSED, "the server is shutting down");
        app_reply_error(conn, 503, &err);
    } else if ((route->flags & WORKS) && !app->models &&
               check_room(app, conn, route->job != NULL, &err) != TUTTI_OK) {
        route_fail(app, conn, &err);
    }
}

/* With several models the server itself replies. */
static bool is_of_server(const struct route *route)
{
    return (route->flags & (STATES | FIGURES)) || route->request == models_request ||
           route->request == page_request;
}

void route_request(void *user, struct http_conn *conn)
{
    struct app *app = user;
    const struct http_head *head = &http_request(conn)->head;
    const struct route *route = &ROUTES[route_find(app, head->path, head->method)];
    if (app->models && !is_of_server(route))
        model_set_forward(app->models, conn);
    else if (route->job)
        job_start(app, conn, route->job);
    else
        route->request(app, conn);
}

void route_fail(void *user, struct http_conn *conn, const struct tutti_error *err)
{
    struct app *app = user;
    const struct http_head *head = &http_request(conn)->head;
    int index = route_find(app, head->path, head->method);
    const struct job_api *job = index < N_ROUTES ? ROUTES[index].job : NULL;
    if (job)
        job->fail(app, NULL, conn, err);
    else
        app_reply_error(conn, json_error_status(err->status), err);
}

/* ---- headers, log and counts of every reply ---- */

void route_reply(void *user, struct http_conn *conn, int status)
{
    struct app *app = user;
    (void)status;
    struct trace trace;
    char traceparent[TRACE_TEXT_BYTES];
    http_header(conn, "X-Content-Type-Options", "nosniff");
    if (trace_find(&trace, conn)) {
        trace_write(&trace, traceparent);
        http_header(conn, "traceparent", traceparent);
    }
    write_limits(app, conn);
    if (!app->options->cors_origin)
        return;
    http_header(conn, "Access-Control-Allow-Origin", app->options->cors_origin);
    http_header(conn, "Access-Control-Expose-Headers",
                "x-request-id, request-id, retry-after, traceparent, x-ratelimit-limit-tokens, "
                "x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens");
    if (strcmp(app->options->cors_origin, "*"))
        http_header(conn, "Vary", "Origin");
}

/* Routes with the same path are counted together. */
static int series_of(int route)
{
    for (int i = 0; i < route && route < N_ROUTES; i++)
        if (!strcmp(ROUTES[i].path, ROUTES[route].path))
            return i;
    return route;
}

void route_done(void *user, struct http_conn *conn, int status, bool is_complete)
{
    struct app *app = user;
    const struct http_head *head = &http_request(conn)->head;
    if (!is_complete)
        status = STATUS_CLIENT_GONE;
    int column = 0;
    while (column < APP_MAX_STATUSES - 1 && STATUSES[column] != status)
        column++;
    assert(STATUSES[column] == status);
    app->counts.n[series_of(route_find(app, head->path, head->method))][column]++;
    if (!app->options->no_access_log)
        access_log(conn, status, is_complete);
}
