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

static double age_of(const json_t *entry)
{
    return json_number_value(json_object_get(entry, "age_s"));
}

/* Merges two lists, the oldest requests first, and keeps the oldest. Takes ownership of both. */
static json_t *merge_slots(json_t *a, json_t *b)
{
    json_t *out = json_array();
    size_t i = 0, k = 0;
    while (i + k < SLOTS_MAX && i + k < json_array_size(a) + json_array_size(b)) {
        bool is_first = k == json_array_size(b) ||
                        (i < json_array_size(a) &&
                         age_of(json_array_get(a, i)) >= age_of(json_array_get(b, k)));
        json_array_append(out, is_first ? json_array_get(a, i++) : json_array_get(b, k++));
    }
    json_decref(a);
    json_decref(b);
    return out;
}

static void add_waiting(struct slots_collection *c)
{
    for (int i = 0; i < c->set->options->n; i++) {
        const struct model *m = &c->set->models[i];
        const struct request *r;
        json_t *list = json_array();
        TAILQ_FOREACH (r, &m->waiting, link) {
            c->n_all++;
            if (json_array_size(list) < SLOTS_MAX)
                json_array_append_new(list, slots_waiting(r->conn, m->name));
        }
        c->list = merge_slots(c->list, list);
    }
}

static void collect_slots(struct slots_collection *c);

static void on_slots(void *user, const struct buf *body, size_t n_total)
{
    struct slots_collection *c = user;
    json_t *list = NULL;
    c->upstream = NULL;
    c->n_all += n_total;
    if (body && body->bytes && json_read(&list, body->bytes, body->n_bytes, NULL) == TUTTI_OK)
        c->list = merge_slots(c->list, list);
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
