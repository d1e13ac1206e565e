#include "server/intake.h"

#include "base/system/clock.h"
#include "server/job.h"

#include <stdlib.h>
#include <string.h>

enum {
    INTAKE_THREADS = 2,
    SMALL_BYTES = 128 * 1024, /* of memory: smaller requests are limited by their number */
    LEAST_COST = 1024,        /* bytes: cost of a request on a worker in addition to its body */
    DROPPED_PER_READ = 64,    /* bytes of memory freed in the time that parsing a byte of a body takes */
    /* Parsed bytes that cost as much as a token of the client's limits: a small part of what the engine
     * takes for as much text. */
    BYTES_PER_TOKEN = 256,
};

struct intake {
    struct workers *workers;
    struct mailbox completed;
    atomic_bool is_closing;
    struct intake_counts counts; /* the part that the loop counts */
};

static void task_free(struct intake_task *task)
{
    if (task->release)
        task->release(task->user);
    http_body_free(task->memory);
    api_request_clear(&task->req);
    buf_clear(&task->reply);
    free(task->head);
    free(task);
}

/* ---- intake threads ---- */

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
    mailbox_send(&intake->completed, &task->mail);
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
    int64_t n_tokens = (int64_t)((task->body.n_bytes + task->reply.n_bytes) / BYTES_PER_TOKEN);
    intake->counts.n_read++;
    intake->counts.n_bytes += task->body.n_bytes;
    intake->counts.n_refused += task->status != TUTTI_OK;
    if (task->has_begun || n_tokens == 0 || !task->owner)
        return;
    clients_charge(app->clients, task->client, n_tokens);
    tutti_engine_charge(app->engine, task->owner, n_tokens);
}

static void release_task(void *task)
{
    task_free(task);
}

static void intake_finish(void *user, struct mail *mail)
{
    struct intake *intake = user;
    struct intake_task *task = (struct intake_task *)(void *)mail;
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
    http_body_free(intake_take_memory(task));
    intake_release(task->app, task->owner, task->req.n_bytes, release_task, task);
}

void intake_release(struct app *app, uint64_t owner, size_t n_bytes, void (*release)(void *user), void *user)
{
    struct intake_task *task = NULL;
    if (app->intake && n_bytes > SMALL_BYTES)
        task = calloc(1, sizeof *task);
    if (!task) {
        release(user);
        return;
    }
    task->item.cost = n_bytes / DROPPED_PER_READ + LEAST_COST;
    task->release = release;
    task->user = user;
    if (!workers_add(app->intake->workers, owner, &task->item))
        task_free(task);
}

enum tutti_status intake_hold(struct intake_task *task, struct tutti_error *err)
{
    size_t n_bytes = task->req.n_bytes, most;
    if (n_bytes <= SMALL_BYTES || !task->memory) {
        http_body_free(intake_take_memory(task));
        return TUTTI_OK;
    }
    http_body_charge(task->memory, n_bytes, clock_now_us());
    if (http_body_fits(task->memory))
        return TUTTI_OK;
    if (http_body_is_too_large(task->memory, &most))
        return error_set(
            err, TUTTI_E_LIMIT,
            "the request takes %zu KiB of memory, and those of one client may take %zu KiB: send fewer or "
            "shorter values, or serve with a larger --max-body",
            n_bytes / 1024, most / 1024);
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
    if (task && copy_head(task, &http_request(conn)->head)) {
        task->app = app;
        task->conn = conn;
        task->owner = client ? client->id : 0;
        snprintf(task->client, sizeof task->client, "%s", client ? client->name : "");
        task->route = route;
        task->api = api;
        task->memory = http_take_body(conn);
        const struct buf *bytes = task->memory ? &task->memory->bytes : NULL;
        task->body.text = bytes && bytes->bytes ? bytes->bytes : "";
        task->body.n_bytes = bytes ? bytes->n_bytes : 0;
        task->item.cost = task->body.n_bytes + LEAST_COST;
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
        app_reply_error(conn, 503, &err);
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
    enum tutti_status st = mailbox_open(&intake->completed, base, intake_finish, intake, err);
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
    for (struct mail *mail = mailbox_take(&intake->completed), *next; mail; mail = next) {
        next = mail->next;
        task_free((struct intake_task *)(void *)mail);
    }
    mailbox_close(&intake->completed);
    free(intake);
}
