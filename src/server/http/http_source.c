#include "server/http/http_source.h"

#include "server/http/by_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_RANKS = 32 };

struct http_sources {
    void *tree;                              /* of the addresses */
    LIST_HEAD(, http_source) ranks[N_RANKS]; /* [r]: addresses with 2^r to 2^(r+1)-1 connections */
};

enum tutti_status http_sources_new(struct http_sources **out, struct tutti_error *err)
{
    *out = calloc(1, sizeof **out);
    return *out ? TUTTI_OK : error_set(err, TUTTI_E_MEMORY, "out of memory for the HTTP server");
}

void http_sources_free(struct http_sources *sources)
{
    free(sources);
}

static void enter_rank(struct http_source *source)
{
    LIST_INSERT_HEAD(&source->sources->ranks[31 - __builtin_clz(source->n_open)], source, rank_link);
}

const struct http_source *http_sources_find(const struct http_sources *sources, const char *name)
{
    return by_name_find(&sources->tree, name);
}

bool http_seat_enter(struct http_sources *sources, struct http_seat *seat, const char *name, void *user)
{
    struct http_source *source = by_name_find(&sources->tree, name);
    if (source) {
        LIST_REMOVE(source, rank_link);
    } else {
        source = calloc(1, sizeof *source);
        if (!source)
            return false;
        source->sources = sources;
        snprintf(source->name, sizeof source->name, "%s", name);
        TAILQ_INIT(&source->idle);
        if (!tsearch(source, &sources->tree, by_name)) {
            free(source);
            return false;
        }
    }
    source->n_open++;
    enter_rank(source);
    *seat = (struct http_seat){ .source = source, .user = user };
    http_seat_rest(seat, false);
    return true;
}

void http_seat_leave(struct http_seat *seat)
{
    struct http_source *source = seat->source;
    http_seat_work(seat);
    LIST_REMOVE(source, rank_link);
    if (--source->n_open > 0) {
        enter_rank(source);
        return;
    }
    tdelete(source, &source->sources->tree, by_name);
    free(source);
}

void http_seat_rest(struct http_seat *seat, bool first)
{
    struct http_source *source = seat->source;
    http_seat_work(seat);
    seat->is_idle = true;
    if (first)
        TAILQ_INSERT_HEAD(&source->idle, seat, link);
    else
        TAILQ_INSERT_TAIL(&source->idle, seat, link);
}

void http_seat_work(struct http_seat *seat)
{
    if (seat->is_idle)
        TAILQ_REMOVE(&seat->source->idle, seat, link);
    seat->is_idle = false;
}

void *http_source_victim(const struct http_source *source)
{
    return TAILQ_EMPTY(&source->idle) ? NULL : TAILQ_FIRST(&source->idle)->user;
}

void *http_sources_victim(const struct http_sources *sources)
{
    const struct http_source *source;
    for (int r = N_RANKS - 1; r >= 0; r--)
        LIST_FOREACH (source, &sources->ranks[r], rank_link)
            if (!TAILQ_EMPTY(&source->idle))
                return http_source_victim(source);
    return NULL;
}
