/* Running and waiting requests of several models: those that wait for a model, and those of each process. */
#include "server/models/model_state.h"
#include "server/models/upstream.h"
#include "server/slots.h"

#include <stdlib.h>

/* A list that is being collected: the processes are asked one after the other. */
struct slots_collection {
    struct model_set *set;
    struct http_conn *conn;
    struct upstream *upstream;
    json_t *list;
    size_t n_all;
    int next; /* model */
};

static void add_entry(struct slots_collection *c, json_t *entry)
{
    c->n_all++;
    if (json_array_size(c->list) < SLOTS_MAX)
        json_array_append(c->list, entry);
}

static void add_waiting(struct slots_collection *c)
{
    for (int i = 0; i < c->set->options->n; i++) {
        const struct model *m = &c->set->models[i];
        const struct request *r;
        TAILQ_FOREACH (r, &m->waiting, link) {
            json_t *entry = slots_waiting(r->conn, m->name);
            add_entry(c, entry);
            json_decref(entry);
        }
    }
}

static void collect_slots(struct slots_collection *c);

static void on_slots(void *user, const struct buf *body)
{
    struct slots_collection *c = user;
    json_t *list = NULL, *entry;
    size_t i;
    c->upstream = NULL;
    if (body && body->bytes && json_read(&list, body->bytes, body->n_bytes, NULL) == TUTTI_OK) {
        json_array_foreach(list, i, entry) add_entry(c, entry);
    }
    json_decref(list);
    collect_slots(c);
}

static void free_slots(struct slots_collection *c)
{
    json_decref(c->list);
    free(c);
}

static void on_slots_abort(void *user)
{
    struct slots_collection *c = user;
    upstream_free(c->upstream);
    free_slots(c);
}

/* Asks the next process, or replies. */
static void collect_slots(struct slots_collection *c)
{
    while (c->next < c->set->options->n) {
        const struct child *child = c->set->models[c->next++].current;
        if (child && child->state == CHILD_SERVING &&
            (c->upstream = upstream_get(c->set->app->base, child->socket, "/slots", on_slots, c)))
            return;
    }
    http_on_abort(c->conn, NULL, NULL);
    slots_reply(c->conn, json_incref(c->list), c->n_all);
    free_slots(c);
}

void model_set_slots(struct model_set *set, struct http_conn *conn)
{
    struct tutti_error err;
    struct slots_collection *c = calloc(1, sizeof *c);
    if (!c) {
        error_set(&err, TUTTI_E_MEMORY, "out of memory for the list of requests");
        app_reply_error(conn, 503, &err);
        return;
    }
    *c = (struct slots_collection){ .set = set, .conn = conn, .list = json_array() };
    add_waiting(c);
    http_on_abort(conn, on_slots_abort, c);
    collect_slots(c);
}
