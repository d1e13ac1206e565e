#include "server/intake.h"

#include "base/system/clock.h"
#include "server/job.h"

#include <event2/event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    INTAKE_THREADS = 2,
    SMALL_BYTES = 128 * 1024, /* of memory: smaller requests are limited by their number */
    LEAST_COST = 1024,        /* bytes: cost of a request on a worker in addition to its body */
    DROPPED_PER_READ = 64,    /* bytes of memory freed in the time that parsing a byte of a body takes */
    BYTES_PER_TOKEN = 256,    /* parsed bytes that cost as much as a token of the limits */
};

struct intake {
    struct workers *workers;
    _Atomic(struct intake_task *) top; /* the task completed last */
    atomic_bool is_closing;
    int wake_fd;
    struct event *wake;
    struct intake_counts counts; /* the part that the loop counts */
};

int64_t intake_cost(uint64_t n_bytes)
{
    return (int64_t)(n_bytes / BYTES_PER_TOKEN);
}

static void task_free(struct intake_task *task)
{
    http_body_free(task->memory);
    api_request_clear(&task->req);
    buf_clear(&task->reply);
    free(task->head);
    free(task);
}

/* ---- intake threads ---- */

static void task_push(struct intake *intake, struct intake_task *task)
{
    struct intake_task *top = atomic_load_explicit(&intake->top, memory_order_relaxed);
    do
        task->next = top;
    while (!atomic_compare_exchange_weak_explicit(&intake->top, &top, task, memory_order_release,
                                                  memory_order_relaxed));
    uint64_t one = 1;
    if (!top && write(intake->wake_fd, &one, sizeof one) < 0)
        return; /* fails only if the counter is full: then the loop is awake */
}

static void work(void *user, struct work_item *item)
{
    struct intake *intake = user;
    struct intake_task *task = (struct intake_task *)(void *)((char *)item -
                                                              offsetof(struct intake_task, item));
    if (!task->route) {
        task_free(task);
        return;
    }
    if (!atomic_load(&task->is_unwanted) && !atomic_load(&intake->is_closing))
        task->route->read(task);
    if (task->status != TUTTI_OK)
        api_request_clear(&task->req); /* on the worker, because a large tree takes long to free */
    task_push(intake, task);
}

/* ---- server thread ---- */

static void intake_on_abort(void *user)
{
    struct intake_task *task = user;
    task->conn = NULL;
    atomic_store(&task->is_unwanted, true);
}

/* Charges the client for a task; a job counts its own tokens. */
static void task_charge(struct intake *intake, const struct intake_task *task)
{
    struct app *app = task->app;
    int64_t n_tokens = intake_cost(task->body.n_bytes + task->reply.n_bytes);
    intake->counts.n_read++;
    intake->counts.n_bytes += task->body.n_bytes;
    intake->counts.n_refused += task->status != TUTTI_OK;
    if (task->has_begun || n_tokens == 0 || !task->owner)
        return;
    clients_charge(app->clients, task->client, n_tokens);
    tutti_engine_charge(app->engine, task->owner, n_tokens);
}

static void intake_finish(struct intake *intake, struct intake_task *task)
{
    struct http_conn *conn = task->conn;
    if (task->user) {
        task->route->done(task, NULL);
        task_free(task);
        return;
    }
    task->body.text = "";
    if (task->memory) {
        buf_clear(&task->memory->bytes);
        http_body_charge(task->memory, 0, clock_now_us());
    }
    if (conn) {
        http_on_abort(conn, NULL, NULL);
        task->route->done(task, conn);
    }
    task_charge(intake, task);
    intake_drop(task->app, task->owner, &task->req);
    task_free(task);
}

void intake_drop(struct app *app, uint64_t owner, struct api_request *req)
{
    struct intake_task *task = NULL;
    if (app->intake && req->n_bytes > SMALL_BYTES)
        task = calloc(1, sizeof *task);
    if (task) {
        task->item.cost = req->n_bytes / DROPPED_PER_READ + LEAST_COST;
        task->req = *req;
        *req = (struct api_request){ 0 };
        if (!workers_add(app->intake->workers, owner, &task->item))
            task_free(task);
        return;
    }
    api_request_clear(req);
}

enum tutti_status intake_hold(struct intake_task *task, struct tutti_error *err)
{
    size_t n_bytes = task->req.n_bytes;
    if (n_bytes <= SMALL_BYTES || !task->memory) {
        http_body_free(intake_take_memory(task));
        return TUTTI_OK;
    }
    http_body_charge(task->memory, n_bytes, clock_now_us());
    if (http_body_fits(task->memory))
        return TUTTI_OK;
    return error_set(
        err, TUTTI_E_BUSY,
        "the request takes %zu KiB of memory, more than is left for your requests (a larger --max-body "
        "leaves more); try again later",
        n_bytes / 1024);
}

struct http_body *intake_take_memory(struct intake_task *task)
{
    struct http_body *memory = task->memory;
    task->memory = NULL;
    return memory;
}

static void intake_on_wake(evutil_socket_t fd, short what, void *arg)
{
    struct intake *intake = arg;
    uint64_t count;
    (void)what;
    if (read(fd, &count, sizeof count) < 0)
        return;
    struct intake_task *newest = atomic_exchange_explicit(&intake->top, NULL, memory_order_acquire),
                       *oldest = NULL;
    while (newest) {
        struct intake_task *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest) {
        struct intake_task *task = oldest;
        oldest = task->next;
        intake_finish(intake, task);
    }
}

/* Copies path and agent, because the connection may be gone while the body is parsed. */
static bool copy_head(struct intake_task *task, const struct http_head *head)
{
    const char *agent = http_head_find(head, "User-Agent");
    size_t n_path = strlen(head->path) + 1, n_agent = agent ? strlen(agent) + 1 : 1;
    task->head = malloc(n_path + n_agent);
    if (!task->head)
        return false;
    memcpy(task->head, head->path, n_path);
    memcpy(task->head + n_path, agent ? agent : "", n_agent);
    task->body.path = task->head;
    task->body.agent = task->head + n_path;
    return true;
}

void intake_start(struct app *app, struct http_conn *conn, const struct intake_route *route,
                  const struct job_api *api)
{
    struct tutti_error err;
    const struct client *client = app_client(app, conn);
    struct intake_task *task = calloc(1, sizeof *task);
    if (task && copy_head(task, http_request_head(conn))) {
        task->app = app;
        task->conn = conn;
        task->owner = client ? client->id : 0;
        snprintf(task->client, sizeof task->client, "%s", client ? client->name : "");
        task->route = route;
        task->api = api;
        task->body.text = http_request_body(conn, &task->body.n_bytes);
        task->item.cost = task->body.n_bytes + LEAST_COST;
        task->memory = http_take_body(conn);
        http_on_abort(conn, intake_on_abort, task);
        if (workers_add(app->intake->workers, task->owner, &task->item))
            return;
        http_on_abort(conn, NULL, NULL);
    }
    if (task)
        task_free(task);
    error_set(&err, TUTTI_E_MEMORY, "out of memory for the request");
    if (api)
        api->fail(app, NULL, conn, &err);
    else
        app_reply_error(conn, 503, NULL, &err);
}

bool intake_run(struct app *app, uint64_t owner, uint64_t n_bytes, const struct intake_route *route,
                void *user)
{
    struct intake_task *task = calloc(1, sizeof *task);
    if (!task)
        return false;
    task->item.cost = n_bytes + LEAST_COST;
    task->app = app;
    task->route = route;
    task->user = user;
    if (workers_add(app->intake->workers, owner, &task->item))
        return true;
    task_free(task);
    return false;
}

void intake_counts(struct intake *intake, struct intake_counts *out)
{
    struct workers_counts workers;
    workers_counts(intake->workers, &workers);
    *out = intake->counts;
    out->n_waiting = workers.n_waiting;
    out->n_running = workers.n_running;
}

/* ---- creating and freeing ---- */

enum tutti_status intake_new(struct intake **out, struct event_base *base, struct tutti_error *err)
{
    struct intake *intake = calloc(1, sizeof *intake);
    if (!intake)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the server");
    intake->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    intake->wake = intake->wake_fd < 0
                       ? NULL
                       : event_new(base, intake->wake_fd, EV_READ | EV_PERSIST, intake_on_wake, intake);
    enum tutti_status st = TUTTI_OK;
    if (!intake->wake || event_add(intake->wake, NULL))
        st = error_set(err, TUTTI_E_MEMORY, "out of event descriptors");
    const struct workers_options options = {
        .name = "tutti-intake", .n_threads = INTAKE_THREADS, .work = work, .user = intake
    };
    if (st == TUTTI_OK)
        st = workers_new(&intake->workers, &options, err);
    if (st != TUTTI_OK) {
        intake_free(intake);
        return st;
    }
    *out = intake;
    return TUTTI_OK;
}

void intake_free(struct intake *intake)
{
    if (!intake)
        return;
    atomic_store(&intake->is_closing, true);
    workers_free(intake->workers);
    struct intake_task *next;
    for (struct intake_task *task = atomic_load(&intake->top); task; task = next) {
        next = task->next;
        task_free(task);
    }
    if (intake->wake)
        event_free(intake->wake);
    if (intake->wake_fd >= 0)
        close(intake->wake_fd);
    free(intake);
}
