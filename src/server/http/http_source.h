/* Addresses of clients: how many connections each has open, and which idle connection to close for
 * a new one.
 *
 * Thread of the event loop only. */
#ifndef TUTTI_SERVER_HTTP_HTTP_SOURCE_H
#define TUTTI_SERVER_HTTP_HTTP_SOURCE_H

#include "base/error.h"

#include <sys/queue.h>

struct http_sources;

enum { HTTP_SOURCE_NAME_BYTES = 80 };

/* A connection's entry in the lists of its address. Zero-initialise. */
struct http_seat {
    struct http_source *source;
    TAILQ_ENTRY(http_seat) link; /* in the list of idle connections */
    void *user;
    bool is_idle; /* in that list */
};

/* An address with at least one connection. */
struct http_source {
    char name[HTTP_SOURCE_NAME_BYTES]; /* the first member: by_name.h */
    struct http_sources *sources;
    LIST_ENTRY(http_source) rank_link; /* in the list of addresses with about as many connections */
    TAILQ_HEAD(, http_seat) idle;      /* connections, ordered by their last complete request */
    uint32_t n_open;
};

MUST_CHECK enum tutti_status http_sources_new(struct http_sources **out, struct tutti_error *err);
void http_sources_free(struct http_sources *sources); /* after all connections; NULL is allowed */

/* Finds an address by name. NULL: it has no connection. */
const struct http_source *http_sources_find(const struct http_sources *sources, const char *name);
/* Adds a connection of the address. False: out of memory. */
MUST_CHECK bool http_seat_enter(struct http_sources *sources, struct http_seat *seat, const char *name,
                                void *user);
void http_seat_leave(struct http_seat *seat);

/* Marks the connection as idle. Idle connections of an address are closed in the order in which they
 * became idle; first: this one is closed before all others. */
void http_seat_rest(struct http_seat *seat, bool first);
/* Marks the connection as busy: it must not be closed for a new one. */
void http_seat_work(struct http_seat *seat);

/* The connection to close so that this address may open another one: the user of the idle one whose
 * last complete request is oldest. NULL: all are busy. */
void *http_source_victim(const struct http_source *source);
/* The same over all addresses: from one of those with most connections. */
void *http_sources_victim(const struct http_sources *sources);

#endif
