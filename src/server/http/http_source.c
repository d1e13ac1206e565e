#include "server/http/http_source.h"

#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { N_BUCKETS = 4096, N_RANKS = 32 };

struct http_sources {
    struct http_source *buckets[N_BUCKETS];
    struct http_source *ranks[N_RANKS]; /* [r]: addresses with 2^r to 2^(r+1)-1 connections */
    uint64_t seed;                      /* secret, so that no one can choose addresses that share a bucket */
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

static void leave_rank(struct http_source *source)
{
    *source->rank_link = source->rank_next;
    if (source->rank_next)
        source->rank_next->rank_link = source->rank_link;
}

static void enter_rank(struct http_source *source)
{
    struct http_source **rank = &source->sources->ranks[31 - __builtin_clz(source->n_open)];
    source->rank_next = *rank;
    source->rank_link = rank;
    if (source->rank_next)
        source->rank_next->rank_link = &source->rank_next;
    *rank = source;
}

static struct http_source *source_find(const struct http_sources *sources, const char *name)
{
    struct http_source *source = sources->buckets[address_bucket(sources, name)];
    while (source && strcmp(source->name, name))
        source = source->next;
    return source;
}

const struct http_source *http_sources_find(const struct http_sources *sources, const char *name)
{
    return source_find(sources, name);
}

bool http_seat_enter(struct http_sources *sources, struct http_seat *seat, const char *name, void *user)
{
    struct http_source *source = source_find(sources, name);
    if (source) {
        leave_rank(source);
    } else {
        source = calloc(1, sizeof *source);
        if (!source)
            return false;
        source->sources = sources;
        snprintf(source->name, sizeof source->name, "%s", name);
        source->link = &sources->buckets[address_bucket(sources, source->name)];
        source->next = *source->link;
        if (source->next)
            source->next->link = &source->next;
        *source->link = source;
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
    leave_rank(source);
    if (--source->n_open > 0) {
        enter_rank(source);
        return;
    }
    *source->link = source->next;
    if (source->next)
        source->next->link = source->link;
    free(source);
}

void http_seat_rest(struct http_seat *seat, bool first)
{
    struct http_source *source = seat->source;
    http_seat_work(seat);
    seat->is_idle = true;
    seat->older = first ? NULL : source->newest;
    seat->newer = first ? source->oldest : NULL;
    *(seat->older ? &seat->older->newer : &source->oldest) = seat;
    *(seat->newer ? &seat->newer->older : &source->newest) = seat;
}

void http_seat_work(struct http_seat *seat)
{
    struct http_source *source = seat->source;
    if (!seat->is_idle)
        return;
    seat->is_idle = false;
    *(seat->older ? &seat->older->newer : &source->oldest) = seat->newer;
    *(seat->newer ? &seat->newer->older : &source->newest) = seat->older;
    seat->older = seat->newer = NULL;
}

void *http_source_victim(const struct http_source *source)
{
    return source->oldest ? source->oldest->user : NULL;
}

void *http_sources_victim(const struct http_sources *sources)
{
    for (int r = N_RANKS - 1; r >= 0; r--)
        for (const struct http_source *source = sources->ranks[r]; source; source = source->rank_next)
            if (source->oldest)
                return source->oldest->user;
    return NULL;
}
