/* What the routes share: the engine, the options, the figures. One instance, a part of the server. */
#ifndef TUTTI_SERVER_APP_H
#define TUTTI_SERVER_APP_H

#include "server/http/clients.h"
#include "server/http/http.h"
#include "server/http/inbox.h"
#include "server/json.h"
#include "server/server.h"

#include <time.h>

struct job;
struct keys;
struct guard;
struct tls;
struct steps;
struct intake;

enum { APP_MAX_ROUTES = 40, APP_MAX_STATUSES = 22 };

/* Requests by route and status, for /metrics. */
struct app_counts {
    uint64_t n[APP_MAX_ROUTES][APP_MAX_STATUSES];
};

struct app {
    tutti_engine *engine; /* NULL: the model is still being loaded */
    tutti_model *model;
    struct tutti_model_info info;
    const struct server_options *options;
    const char *model_id;
    struct event_base *base;
    struct http *http;
    struct inbox *inbox;
    struct intake *intake;
    struct keys *keys;         /* NULL: open to all */
    struct keys *metrics_keys; /* NULL: none */
    struct guard *guard;
    struct clients *clients;
    struct tls *tls;     /* NULL: plain HTTP */
    struct job *jobs;    /* those that the engine works on */
    struct steps *steps; /* NULL: its API is off */
    struct app_counts counts;
    uint64_t n_reloads, n_failed_reloads;
    uint64_t n_answered, n_good; /* requests answered to the end; those within the targets */
    time_t start_time;
    char fingerprint[32]; /* of program, model and weight type */
    bool is_leaving;      /* balancers are to send requests elsewhere; those that come are answered */
    bool is_draining;     /* new requests are refused */
};

/* Who asks on conn, with the limits that hold now; NULL: nobody has to be known there, or there is no memory. As clients_get()
 * has it. */
struct client *app_client(struct app *app, const struct http_conn *conn);
/* What a client that has no entry of its own may do. */
struct client_limits app_default_limits(const struct server_options *options);
/* Adds to a refusal with 429 or 503 when to come again. */
void app_header_retry(struct http_conn *conn, int status, const struct tutti_error *err);
/* Replies with an error in OpenAI's shape; code NULL: the usual one. */
void app_reply_error(struct http_conn *conn, int status, const char *code, const struct tutti_error *err);
/* Replies with a JSON value and drops it. */
void app_reply_json(struct http_conn *conn, int status, json_t *value);
/* model: "ID", or "ID:NAME" for one of its adapters; NULL or "" is ID. *adapter (which may be NULL): the adapter's name, or
 * NULL; borrowed from the model. TUTTI_E_NOT_FOUND: the model is not served here. */
MUST_CHECK enum tutti_status app_find_model(struct app *app, const char *model, const char **adapter,
                                            struct tutti_error *err);
/* The same; false: it is not served, and the client has been told so. */
bool app_check_model(struct app *app, struct http_conn *conn, const char *model, const char **adapter);

void app_make_fingerprint(struct app *app); /* of app->info */
int app_max_context(struct app *app);       /* tokens of one sequence */

/* The last words of an API on a request that failed; job may be NULL. */
typedef void fail_fn(struct app *app, struct job *job, struct http_conn *conn, const struct tutti_error *err);
fail_fn openai_fail, tgi_fail, llm_serving_fail;

/* The routes. */
void chat_request(struct app *app, struct http_conn *conn);
void responses_request(struct app *app, struct http_conn *conn);
void completion_request(struct app *app, struct http_conn *conn);
void embedding_request(struct app *app, struct http_conn *conn);
void models_request(struct app *app, struct http_conn *conn);
void tokenizer_info_request(struct app *app, struct http_conn *conn);
void tokenize_request(struct app *app, struct http_conn *conn);
void detokenize_request(struct app *app, struct http_conn *conn);
void metrics_request(struct app *app, struct http_conn *conn);
void page_request(struct app *app, struct http_conn *conn);
bool page_has(const char *path);
void tgi_request(struct app *app, struct http_conn *conn);
void tgi_stream_request(struct app *app, struct http_conn *conn);
void tgi_compat_request(struct app *app, struct http_conn *conn);
void tgi_info_request(struct app *app, struct http_conn *conn);
void llm_serving_request(struct app *app, struct http_conn *conn);
void llm_serving_whole_request(struct app *app, struct http_conn *conn);
void llm_serving_stream_request(struct app *app, struct http_conn *conn);
void llm_serving_batch_request(struct app *app, struct http_conn *conn);
void llm_serving_queue_request(struct app *app, struct http_conn *conn);
void llm_serving_info_request(struct app *app, struct http_conn *conn);
void step_request(struct app *app, struct http_conn *conn);

/* route.c: callbacks of struct http_options; user: struct app. */
void route_head(void *app, struct http_conn *conn);
void route_request(void *app, struct http_conn *conn);
void route_reply(void *app, struct http_conn *conn, int status);
void route_done(void *app, struct http_conn *conn, int status, bool is_complete);
/* For metrics: names of the rows and columns of app_counts; NULL, 0 beyond the end. */
const char *route_name(int route);
int route_status(int column);

#endif
