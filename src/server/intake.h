/* Requests between the last byte of their body and the engine: bodies are parsed and read, texts and ids converted, large replies
 * written and large requests freed on worker threads, so that no stream waits for another client's request.
 *
 * Clients share the workers fairly (base/system/workers.h), counted in bytes: however much one of them sends, it occupies one
 * worker, and another client's request is next. What a client costs here counts against its limits and its share of the
 * engine, also where its request is refused.
 *
 * A task is the loop's, then a worker's between intake_start() and done(), then the loop's again. */
#ifndef TUTTI_SERVER_INTAKE_H
#define TUTTI_SERVER_INTAKE_H

#include "base/system/workers.h"
#include "server/app.h"
#include "server/requests/openai_request.h"

#include <stdatomic.h>

struct intake;
struct intake_task;
struct job_api;

/* What a route does with a body. */
struct intake_route {
    /* On a worker: reads task->body into the task. It may use what of the app does not change while the server runs: model, info,
     * options. */
    void (*read)(struct intake_task *task);
    /* On the loop, unless the client is gone: replies, or begins a job. The body is freed. */
    void (*done)(struct intake_task *task, struct http_conn *conn);
};

/* A request's body as APIs read it. All of it is borrowed from the task. */
struct intake_body {
    const char *text; /* never NULL */
    size_t n_bytes;
    const char *path, *agent; /* of the request; agent: its User-Agent, "" where there is none */
};

struct intake_task {
    struct work_item item;
    struct intake_task *next; /* among those that are done */
    struct app *app;
    struct http_conn *conn;           /* loop; NULL: the client is gone */
    atomic_bool is_unwanted;          /* the client is gone: nothing needs to be read */
    struct http_body *memory;         /* of the body: counts against the client's memory */
    uint64_t owner;                   /* the client's id */
    char client[80];                  /* its name */
    const struct intake_route *route; /* NULL: req is cleared, nothing else */
    const struct job_api *api;        /* of routes that make jobs */
    struct intake_body body;
    char *head; /* path and agent */

    /* What read() leaves: */
    enum tutti_status status;
    struct tutti_error err;
    struct api_request req; /* cleared with the task, unless done() has emptied it */
    struct buf reply;       /* a whole reply */

    bool has_begun; /* what done() leaves: a job, which is charged for by itself */
    void *user;     /* of intake_run() */
};

MUST_CHECK enum tutti_status intake_new(struct intake **out, struct event_base *base,
                                        struct tutti_error *err);
/* Waits for the workers; sends no replies. NULL is allowed. */
void intake_free(struct intake *intake);

/* Takes the body off the connection, whose request is answered later. api may be NULL. */
void intake_start(struct app *app, struct http_conn *conn, const struct intake_route *route,
                  const struct job_api *api);

/* In done(): what was read stays as long as its job, and takes from the client's memory. TUTTI_E_BUSY: more than the client may
 * hold. */
MUST_CHECK enum tutti_status intake_hold(struct intake_task *task, struct tutti_error *err);
/* That memory, for http_body_free(); NULL: it is too little to be counted. */
struct http_body *intake_take_memory(struct intake_task *task);

/* Loop: clears a request that was read. A large one is cleared on a worker, since that takes as long as some decode steps.
 * owner: the client's id. The worker does so before it reads what this client sends next, so the request no longer counts
 * against the client's memory. app->intake may be NULL. */
void intake_drop(struct app *app, uint64_t owner, struct api_request *req);

/* Loop: other work for a client, such as a large reply: route->read() on a worker, then route->done() on the loop with conn
 * NULL. Both find user in the task; only reply, status and err of the rest are used. n_bytes: what the work costs, in bytes of
 * a body. False: out of memory. */
MUST_CHECK bool intake_run(struct app *app, uint64_t owner, uint64_t n_bytes,
                           const struct intake_route *route, void *user);

/* What reading has cost a client, in tokens of its limits: a small part of what the engine takes for as much text. */
int64_t intake_cost(uint64_t n_bytes);

struct intake_counts {
    uint64_t n_waiting, n_running; /* requests */
    uint64_t n_read, n_bytes;      /* since the start: requests, and bytes of their bodies */
    uint64_t n_refused;            /* of those: could not be read */
};
void intake_counts(struct intake *intake, struct intake_counts *out);

#endif
