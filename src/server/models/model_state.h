/* The state of several models, shared by model_set.c, model_metrics.c and model_slots.c only. */
#ifndef TUTTI_SERVER_MODELS_MODEL_STATE_H
#define TUTTI_SERVER_MODELS_MODEL_STATE_H

#include "server/models/model_set.h"
#include "server/models/name_scan.h"
#include "server/models/spawner.h"

struct model;

/* A process. */
struct child {
    LIST_ENTRY(child) link; /* in model->children */
    struct model *model;
    uint32_t generation;
    enum { CHILD_LOADING, CHILD_SERVING, CHILD_LEAVING } state;
    int n_requests; /* under way */
    uint64_t memory_bytes, ready_us;
    uint64_t identity; /* of the model's files */
    char socket[SPAWNER_PATH_BYTES];
    char why[600]; /* it could not load its model */
};

/* A request that waits for its model or is being answered. */
struct request {
    TAILQ_ENTRY(request) link; /* in model->waiting, or in set->others */
    struct model_set *set;
    struct model *model; /* NULL: its name is being looked for */
    struct http_conn *conn;
    struct http_body *body; /* NULL: none */
    struct name_scan scan;
    struct event *slice;       /* the next part of the scan */
    struct upstream *upstream; /* it is being answered */
    struct child *child;
    bool is_waiting; /* in model->waiting */
    int n_tries;
};
TAILQ_HEAD(requests, request);

struct model {
    struct model_set *set;
    const char *name, *path;
    int index;
    LIST_HEAD(, child) children;
    struct child *current, *next; /* that gets new requests; that will: it is loading changed files */
    struct requests waiting;
    uint64_t waits_since_us; /* of the first that waits */
    uint64_t last_us;        /* the end of its latest request */
    uint64_t expected_bytes; /* of memory: as measured, else from its files */
    uint64_t retry_us;       /* not started again before */
    struct server_traits traits;
    int n_failures;   /* in a row */
    bool wants_start; /* its process died */
    char why[600];    /* of the last failure */
    uint64_t n_loads, n_unloads, n_deaths;
};

struct model_set {
    struct app *app;
    const struct server_models *options;
    struct model *models; /* [options->n] */
    struct event *news, *tick;
    struct requests others; /* that do not wait for a model */
    char folder[64];
    uint32_t n_children; /* started so far */
    bool is_ending;
    bool is_broken; /* the spawner has ended */
};

#endif
