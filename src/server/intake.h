/* Work on requests outside the event loop: worker threads parse bodies, convert text and ids, write
 * large replies and free large requests, so that no stream waits for another client's request.
 *
 * Clients share the workers fairly (base/system/workers.h), measured in bytes: a client occupies at
 * most one worker while another client waits, however much it sends. The cost of parsing counts
 * against the client's limits and its share of the engine, even if its request is refused.
 *
 * The loop owns a task until intake_start(), a worker owns it until done(), then the loop again. */
#ifndef TUTTI_SERVER_INTAKE_H
#define TUTTI_SERVER_INTAKE_H

#include "base/system/workers.h"
#include "server/app.h"
#include "server/requests/openai_request.h"

#include <stdatomic.h>

struct intake;
struct intake_task;
struct job_api;

/* How a route handles a body. */
struct intake_route {
    /* On a worker: parses task->body into the task. It may use only the constant parts of app:
     * model, info, options. */
    void (*read)(struct intake_task *task);
    /* On the loop, unless the client has disconnected: replies, or starts a job. The body is freed. */
    void (*done)(struct intake_task *task, struct http_conn *conn);
};

/* A request's body, as APIs read it. Borrowed from the task. */
struct intake_body {
    const char *text; /* never NULL */
    size_t n_bytes;
    const char *path, *agent; /* of the request; agent: its User-Agent, "" if it has none */
};

struct intake_task {
    struct mail mail; /* to the loop, when it is completed */
    struct work_item item;
    struct app *app;
    struct http_conn *conn;           /* loop; NULL: the client has disconnected */
    atomic_bool is_unwanted;          /* the client has disconnected: skip the work */
    struct http_body *memory;         /* of the body: counts against the client's memory */
    uint64_t owner;                   /* the client's id */
    char client[80];                  /* its name */
    const struct intake_route *route; /* NULL: only clear req */
    const struct job_api *api;        /* for routes that start jobs */
    struct intake_body body;
    char *head; /* path and agent */

    /* Results of read(): */
    enum tutti_status status;
    struct tutti_error err;
    struct api_request req; /* cleared with the task, unless done() has taken it */
    struct buf reply;       /* a complete reply */

    bool has_begun;              /* done() has started a job, which is charged separately */
    void *user;                  /* of intake_run() and intake_release() */
    void (*release)(void *user); /* NULL: nothing more to release */
};

MUST_CHECK enum tutti_status intake_new(struct intake **out, struct event_base *base,
                                        struct tutti_error *err);
/* Waits for the workers; sends no replies. NULL is allowed. */
void intake_free(struct intake *intake);

/* Takes the body off the connection; the request is answered later. api may be NULL. */
void intake_start(struct app *app, struct http_conn *conn, const struct intake_route *route,
                  const struct job_api *api);

/* In done(): charges the request's memory to its client until the job ends. TUTTI_E_BUSY: more than
 * the client may hold. */
MUST_CHECK enum tutti_status intake_hold(struct intake_task *task, struct tutti_error *err);
/* That charge, for http_body_free(); NULL: too small to count. */
struct http_body *intake_take_memory(struct intake_task *task);

/* Loop: calls release() for something of n_bytes, such as a parsed request. Large ones are released on a
 * worker, because that takes as long as some decode steps. owner: the client's id. The worker does so
 * before it parses the client's next request, so they no longer count against the client's memory.
 * app->intake may be NULL. */
void intake_release(struct app *app, uint64_t owner, size_t n_bytes, void (*release)(void *user), void *user);

/* Loop: other work for a client, such as a large reply: route->read() on a worker, then
 * route->done() on the loop with conn NULL. Both get user in the task; of the other results only
 * reply, status and err are used. n_bytes: cost of the work, in bytes of a body. False: out of
 * memory. */
MUST_CHECK bool intake_run(struct app *app, uint64_t owner, uint64_t n_bytes,
                           const struct intake_route *route, void *user);

struct intake_counts {
    uint64_t n_waiting, n_running; /* requests */
    uint64_t n_read, n_bytes;      /* since the start: requests parsed, and bytes of their bodies */
    uint64_t n_refused;            /* of those, invalid */
};
void intake_counts(struct intake *intake, struct intake_counts *out);

#endif
