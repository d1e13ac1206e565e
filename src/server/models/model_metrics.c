/* Metrics of several models: the server's own, and those of each process. */
#include "server/models/metrics_merge.h"
#include "server/models/model_state.h"
#include "server/models/upstream.h"

#include <stdlib.h>

/* Metrics that are being collected: the processes are asked one after the other. */
struct collection {
    struct model_set *set;
    struct http_conn *conn; /* NULL: the client has disconnected */
    struct upstream *upstream;
    struct metrics_merge merge;
    int next; /* model */
    bool ok;
};

static bool add_own(struct model_set *set, struct buf *out)
{
    static const struct {
        const char *name, *help, *type;
    } FIGURES[] = {
        { "model_loaded", "1: the model's process is ready; 0: it is not.", "gauge" },
        { "model_requests_waiting", "Requests that wait until the model is loaded.", "gauge" },
        { "model_loads_total", "Starts of the model's process.", "counter" },
        { "model_unloads_total",
          "Times that the process was ended, to free memory or because it had no requests.", "counter" },
        { "model_deaths_total", "Times that the process ended unexpectedly.", "counter" },
    };
    bool ok = true;
    for (size_t f = 0; ok && f < sizeof FIGURES / sizeof *FIGURES; f++) {
        ok = buf_printf(out, "# HELP tutti_%s %s\n# TYPE tutti_%s %s\n", FIGURES[f].name, FIGURES[f].help,
                        FIGURES[f].name, FIGURES[f].type);
        for (int i = 0; ok && i < set->options->n; i++) {
            const struct model *m = &set->models[i];
            const struct request *r;
            uint64_t n_waiting = 0;
            TAILQ_FOREACH (r, &m->waiting, link)
                n_waiting++;
            const uint64_t values[] = { m->current && m->current->state == CHILD_SERVING, n_waiting,
                                        m->n_loads, m->n_unloads, m->n_deaths };
            ok = buf_printf(out, "tutti_%s{model=\"%s\"} %llu\n", FIGURES[f].name, m->name,
                            (unsigned long long)values[f]);
        }
    }
    return ok;
}

static void collect(struct collection *c);

static void on_metrics(void *user, const struct buf *body, size_t n_total)
{
    struct collection *c = user;
    (void)n_total;
    c->upstream = NULL;
    if (body && body->bytes)
        c->ok = c->ok && metrics_merge_add(&c->merge, body->bytes, c->set->models[c->next - 1].name);
    collect(c);
}

static void on_metrics_abort(void *user)
{
    struct collection *c = user;
    upstream_free(c->upstream);
    metrics_merge_clear(&c->merge);
    free(c);
}

/* Asks the next process, or replies. */
static void collect(struct collection *c)
{
    struct buf text = { 0 };
    struct tutti_error err;
    while (c->next < c->set->options->n) {
        const struct child *child = c->set->models[c->next++].current;
        if (child && child->state == CHILD_SERVING &&
            (c->upstream = upstream_get(c->set->app->base, child->socket, "/metrics", on_metrics, c)))
            return;
    }
    http_on_abort(c->conn, NULL, NULL);
    if (c->ok && metrics_merge_write(&c->merge, &text)) {
        http_reply(c->conn, 200, "text/plain; version=0.0.4; charset=utf-8", text.bytes, text.n_bytes);
    } else {
        error_set(&err, TUTTI_E_MEMORY, "out of memory for the metrics");
        app_reply_error(c->conn, 503, &err);
    }
    buf_clear(&text);
    metrics_merge_clear(&c->merge);
    free(c);
}

void model_set_metrics(struct model_set *set, struct http_conn *conn, struct buf *own)
{
    struct tutti_error err;
    struct collection *c = calloc(1, sizeof *c);
    if (!c) {
        buf_clear(own);
        error_set(&err, TUTTI_E_MEMORY, "out of memory for the metrics");
        app_reply_error(conn, 503, &err);
        return;
    }
    *c = (struct collection){ .set = set, .conn = conn };
    c->ok = add_own(set, own) && metrics_merge_add(&c->merge, own->bytes, NULL);
    buf_clear(own);
    http_on_abort(conn, on_metrics_abort, c);
    collect(c);
}
