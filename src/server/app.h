/* State that all routes share: engine, options, counters. One instance, owned by the server. */
#ifndef TUTTI_SERVER_APP_H
#define TUTTI_SERVER_APP_H

#include "server/http/clients.h"
#include "server/http/http.h"
#include "server/inbox.h"
#include "server/json.h"
#include "server/server.h"

#include <sys/queue.h>
#include <time.h>

struct job;
struct keys;
struct guard;
struct tls;
struct steps;
struct intake;
struct model_set;

enum { APP_MAX_ROUTES = 40, APP_MAX_STATUSES = 23 };

/* Requests by route and status code, for /metrics. */
struct app_counts {
    uint64_t n[APP_MAX_ROUTES][APP_MAX_STATUSES];
};

struct app {
    tutti_engine *engine;     /* NULL: the model is still loading, or there are several */
    struct model_set *models; /* NULL: there is one */
    tutti_model *model;
    struct tutti_model_info info;
    const struct server_options *options;
    const char *model_id;
    struct event_base *base;
    struct http *http;
    struct mailbox inbox; /* events of the engine */
    struct intake *intake;
    struct keys *keys;         /* NULL: no API key is needed */
    struct keys *metrics_keys; /* NULL: none */
    struct guard *guard;
    struct clients *clients;
    struct tls *tls;       /* NULL: plain HTTP */
    LIST_HEAD(, job) jobs; /* running jobs */
    size_t n_stalled;      /* of them, those that wait for room in the queue for their next prompt */
    struct steps *steps;   /* NULL: that API is off */
    struct app_counts counts;
    uint64_t n_reloads, n_failed_reloads;
    uint64_t n_answered, n_good; /* requests answered completely; of those, within the latency targets */
    struct tutti_device device;  /* for /v1/models; read at device_us */
    uint64_t device_us;          /* 0: not yet */
    time_t start_time;
    char fingerprint[32]; /* of program, model and weight type */
    bool is_leaving;      /* /ready fails, so that load balancers stop sending; requests are still served */
    bool is_draining;     /* new requests are refused */
};

/* The client that sent the request on conn, with its current limits. NULL: the listener needs no
 * client, or out of memory. Valid as long as clients_get() says. */
struct client *app_client(struct app *app, const struct http_conn *conn);
/* Limits of a client without an entry of its own. */
struct client_limits app_default_limits(const struct server_options *options);
/* Replies with an error, whose value is released. If the reply is a stream that has begun, the value is
 * its last event, between prefix and end: clients look for an error there, as the status was sent. */
void app_fail(struct http_conn *conn, int status, const char *prefix, json_t *value, const char *end,
              const struct tutti_error *err);
/* Replies with an error in OpenAI's format, or Anthropic's to a request of that API. */
void app_reply_error(struct http_conn *conn, int status, const struct tutti_error *err);
/* Replies with a JSON value and releases it. */
void app_reply_json(struct http_conn *conn, int status, json_t *value);
/* The same with another Content-Type, between prefix and end. */
void app_reply_value(struct http_conn *conn, int status, const char *type, const char *prefix, json_t *value,
                     const char *end);
/* model: "ID", or "ID:NAME" for one of its adapters; NULL or "" means ID. *adapter (adapter may be
 * NULL): the adapter's name, or NULL; borrowed from the model. TUTTI_E_NOT_FOUND: this server does
 * not serve that model. */
MUST_CHECK enum tutti_status app_find_model(struct app *app, const char *model, const char **adapter,
                                            struct tutti_error *err);
/* The same, and replies with the error. False: the model is not served, and the request was
 * answered. */
bool app_check_model(struct app *app, struct http_conn *conn, const char *model, const char **adapter);

/* Sets out to the bytes of a token inside a text; empty where there are none. False: out of memory. */
MUST_CHECK bool app_token_bytes(const struct app *app, int32_t id, struct buf *out);

/* The usual pooling of embeddings: --embedding-pooling, else what the model's files say.
 * TUTTI_EMBEDDING_NONE: neither says it. */
enum tutti_embedding app_embedding(const struct app *app);

void app_make_fingerprint(struct app *app);                         /* from app->info */
int app_max_context(const struct app *app);                         /* tokens of one sequence */
json_t *app_abilities(unsigned abilities);                          /* enum server_ability, by name */
json_t *app_model_name(const struct app *app, const char *adapter); /* "ID", or "ID:NAME" with an adapter */
/* The device of a model, for /v1/models. type: "cpu", "cuda" or "cuda+cpu"; NULL or "": not known, and the
 * value is NULL. */
json_t *app_device(const char *type, const struct tutti_device *device);

/* Writes an API's error reply; job may be NULL. */
typedef void fail_fn(struct app *app, struct job *job, struct http_conn *conn, const struct tutti_error *err);

/* The routes. */
void health_request(struct app *app, struct http_conn *conn);
void ready_request(struct app *app, struct http_conn *conn);
void models_request(struct app *app, struct http_conn *conn);
void tokenizer_info_request(struct app *app, struct http_conn *conn);
void tokenize_request(struct app *app, struct http_conn *conn);
void detokenize_request(struct app *app, struct http_conn *conn);
void metrics_request(struct app *app, struct http_conn *conn);
void page_request(struct app *app, struct http_conn *conn);
bool page_has(const char *path);
void tgi_info_request(struct app *app, struct http_conn *conn);
void llm_serving_count_request(struct app *app, struct http_conn *conn);
void llm_serving_info_request(struct app *app, struct http_conn *conn);
void step_request(struct app *app, struct http_conn *conn);

/* route.c: callbacks for struct http_options; user: struct app. */
void route_head(void *app, struct http_conn *conn);
void route_request(void *app, struct http_conn *conn);
void route_reply(void *app, struct http_conn *conn, int status);
void route_done(void *app, struct http_conn *conn, int status, bool is_complete);
/* Replies to a request that has no job yet with an error, in the format of its route. */
void route_fail(void *app, struct http_conn *conn, const struct tutti_error *err);
/* For metrics: names of the rows and columns of app_counts; NULL or 0 after the last. */
const char *route_name(int route);
int route_status(int column);

#endif
