#include "server/http/http_source.h"

#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { N_BUCKETS = 4096, N_RANKS = 32 };

LIST_HEAD(source_list, http_source);

struct http_sources {
    struct source_list buckets[N_BUCKETS];
    struct source_list ranks[N_RANKS]; /* [r]: addresses with 2^r to 2^(r+1)-1 connections */
    uint64_t seed;                     /* secret, so that no one can choose addresses that share a bucket */
};

enum tutti_status http_sources_new(struct http_sources **out, struct tutti_error *err)
{
    struct http_sources *sources = calloc(1, sizeof *sources);
    if (!sources)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the HTTP server");
    if (getrandom(&sources->seed, sizeof sources->seed, 0) != sizeof sources->seed) {
        free(sources);
        return error_set(err, TUTTI_E_IO, "the system provides no random numbers");
    }
    *out = sources;
    return TUTTI_OK;
}

void http_sources_free(struct http_sources *sources)
{
    free(sources);
}

static size_t address_bucket(const struct http_sources *sources, const char *name)
{
    return hash64_string(sources->seed, name) % N_BUCKETS;
}

static void enter_rank(struct http_source *source)
{
    LIST_INSERT_HEAD(&source->sources->ranks[31 - __builtin_clz(source->n_open)], source, rank_link);
}

static struct http_source *source_find(const struct http_sources *sources, const char *name)
{
    struct http_source *source;
    LIST_FOREACH (source, &sources->buckets[address_bucket(sources, name)], link)
        if (!strcmp(source->name, name))
            return source;
    return NULL;
}

const struct http_source *http_sources_find(const struct http_sources *sources, const char *name)
{
    return source_find(sources, name);
}

bool http_seat_enter(struct http_sources *sources, struct http_seat *seat, const char *name, void *user)
{
    struct http_source *source = source_find(sources, name);
    if (source) {
        LIST_REMOVE(source, rank_link);
    } else {
        source = calloc(1, sizeof *source);
        if (!source)
            return false;
        source->sources = sources;
        snprintf(source->name, sizeof source->name, "%s", name);
        TAILQ_INIT(&source->idle);
        LIST_INSERT_HEAD(&sources->buckets[address_bucket(sources, source->name)], source, link);
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
    LIST_REMOVE(source, link);
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
