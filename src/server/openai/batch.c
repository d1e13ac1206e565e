#include "server/openai/batch.h"

#include "base/files/prompt_lines.h"
#include "base/json/json_field.h"
#include "server/openai/openai_reply.h"

#include <event2/event.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_JOBS = 512 }; /* at the same time; more than an engine runs, so that it never waits for input */

struct batch_run {
    struct server_batch *batch;
    struct app app;
    struct server_options options;
    struct prompt_lines lines;
    size_t n_jobs;            /* running */
    struct item *waiting;     /* parsed, but the engine's queue was full */
    bool is_read, has_failed; /* has_failed: a response could not be written */
};

/* A running request. */
struct item {
    struct batch_run *run;
    size_t number; /* of its line, from 1 */
    json_t *line;  /* NULL: it was not JSON */
    const struct job_api *api;
};

/* ---- answers ---- */

static void write_answer(struct batch_run *run, const struct item *item, int status, const char *body,
                         size_t n_bytes)
{
    struct server_batch *batch = run->batch;
    json_t *id = json_object_get(item->line, "custom_id");
    struct buf line = { 0 };
    bool ok = buf_printf(&line, "{\"id\":\"batch_req_%zu\",\"custom_id\":", item->number) &&
              (id ? json_write(&line, id) : buf_add_string(&line, "null")) &&
              buf_printf(&line,
                         ",\"response\":{\"status_code\":%d,\"request_id\":\"req_%zu\",\"body\":", status,
                         item->number) &&
              buf_add(&line, body, n_bytes) && buf_add_string(&line, "},\"error\":null}\n");
    ok = ok && batch->write(batch->user, line.bytes, line.n_bytes);
    run->has_failed = run->has_failed || !ok;
    buf_clear(&line);
    *(status == 200 ? &batch->n_ok : &batch->n_failed) += 1;
}

static void write_error(struct batch_run *run, const struct item *item, const struct tutti_error *err)
{
    struct buf body = { 0 };
    int status = json_error_status(err->status);
    if (json_error_body(&body, status, err))
        write_answer(run, item, status, body.bytes, body.n_bytes);
    else
        run->has_failed = true;
    buf_clear(&body);
}

static void item_free(struct item *item)
{
    if (!item)
        return;
    json_decref(item->line);
    free(item);
}

static void take_reply(void *user, int status, const char *body, size_t n_bytes)
{
    struct item *item = user;
    item->run->n_jobs--;
    write_answer(item->run, item, status, body, n_bytes);
    item_free(item);
}

/* ---- requests ---- */

static enum tutti_status find_api(struct item *item, struct tutti_error *err)
{
    const struct {
        const char *url;
        const struct job_api *api;
    } APIS[] = { { "/v1/chat/completions", &OPENAI_CHAT.job },
                 { "/v1/completions", &OPENAI_COMPLETIONS.job },
                 { "/v1/embeddings", &OPENAI_EMBEDDINGS },
                 { "/v1/responses", &OPENAI_RESPONSES },
                 { "/v1/rerank", &RERANK } };
    const char *url = json_string_value(json_object_get(item->line, "url"));
    const char *method = json_string_value(json_object_get(item->line, "method"));
    if (!json_is_string(json_object_get(item->line, "custom_id")))
        return json_wrong_type("custom_id", "a string", json_object_get(item->line, "custom_id"), err);
    if (!method || strcmp(method, "POST"))
        return error_set_param(err, TUTTI_E_ARGUMENT, "method", "method must be \"POST\"");
    for (size_t i = 0; url && i < sizeof APIS / sizeof *APIS; i++)
        if (!strcmp(url, APIS[i].url))
            item->api = APIS[i].api;
    if (!item->api)
        return error_set_param(err, TUTTI_E_ARGUMENT, "url",
                               "url must be /v1/chat/completions, /v1/completions, /v1/embeddings, "
                               "/v1/responses or /v1/rerank");
    return json_require(json_object_get(item->line, "body"), JSON_KIND_OBJECT, "body", err);
}

/* The next request of the file. NULL: end of file, or out of memory. An invalid line gets its
 * response here. */
static struct item *next_item(struct batch_run *run)
{
    struct tutti_error err;
    while (!run->is_read && prompt_lines_next(&run->lines)) {
        struct item *item = calloc(1, sizeof *item);
        if (!item) {
            run->has_failed = true;
            return NULL;
        }
        item->run = run;
        item->number = run->lines.number;
        enum tutti_status st = json_read(&item->line, run->lines.line, run->lines.n_line_bytes, &err);
        if (st == TUTTI_OK && !json_is_object(item->line)) {
            char name[32];
            snprintf(name, sizeof name, "line %zu", item->number);
            st = json_wrong_part("", name, "a JSON object", item->line, &err);
        }
        if (st == TUTTI_OK)
            st = find_api(item, &err);
        if (st == TUTTI_OK)
            return item;
        write_error(run, item, &err);
        item_free(item);
    }
    run->is_read = true;
    return NULL;
}

/* False: the engine's queue is full. */
static bool batch_start(struct batch_run *run, struct item *item)
{
    struct api_request req = { 0 };
    struct tutti_error err = { 0 };
    char name[32];
    json_t *body = json_incref(json_object_get(item->line, "body"));
    snprintf(name, sizeof name, "%zu", item->number);
    struct job *job = NULL;
    struct job_sink sink = { take_reply, item };
    run->n_jobs++; /* before the first event */
    if (item->api->read_value(&req, &run->app, body, &err) == TUTTI_OK)
        job = job_open_offline(&run->app, name, item->api, &req, sink, &err);
    api_request_clear(&req); /* empty if the job has taken it */
    if (job)
        return true;
    run->n_jobs--;
    if (err.status == TUTTI_E_BUSY && run->n_jobs > 0)
        return false;
    write_error(run, item, &err);
    item_free(item);
    return true;
}

static void start_some(struct batch_run *run)
{
    while (run->n_jobs < MAX_JOBS && !run->has_failed) {
        struct item *item = run->waiting ? run->waiting : next_item(run);
        run->waiting = NULL;
        if (!item)
            return;
        if (!batch_start(run, item)) {
            run->waiting = item;
            return;
        }
    }
}

/* ---- the run ---- */

static enum tutti_status work(struct batch_run *run, struct tutti_error *err)
{
    for (;;) {
        start_some(run);
        if (run->has_failed)
            job_stop_all(&run->app);
        if (LIST_EMPTY(&run->app.jobs) && (run->has_failed || (run->is_read && !run->waiting)))
            break;
        if (!LIST_EMPTY(&run->app.jobs) && event_base_loop(run->app.base, EVLOOP_ONCE) < 0)
            return error_set(err, TUTTI_E_IO, "the event loop failed");
    }
    item_free(run->waiting);
    if (run->has_failed)
        return error_set(err, TUTTI_E_IO, "a response cannot be written");
    return TUTTI_OK;
}

enum tutti_status server_batch_run(struct server_batch *batch, tutti_engine *engine, tutti_model *model,
                                   struct tutti_error *err)
{
    struct batch_run run = { .batch = batch };
    struct app *app = &run.app;
    batch->n_ok = batch->n_failed = 0;
    run.options.embedding = batch->embedding;
    run.lines = (struct prompt_lines){ .bytes = batch->lines, .n_bytes = batch->n_bytes };
    app->options = &run.options;
    app->engine = engine;
    app->model = model;
    tutti_model_info(model, &app->info);
    app->model_id = batch->model_id ? batch->model_id : app->info.name;
    app->start_time = time(NULL);
    app_make_fingerprint(app);
    app->base = event_base_new();
    if (!app->base)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the event loop");
    enum tutti_status st = mailbox_open(&app->inbox, app->base, job_take_event, app, err);
    if (st == TUTTI_OK)
        st = work(&run, err);
    mailbox_close(&app->inbox);
    event_base_free(app->base);
    return st;
}
