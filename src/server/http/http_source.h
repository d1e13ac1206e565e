/* Where connections come from: how many each address has open, and which of them may be closed to make room.
 *
 * Thread of the event loop only. */
#ifndef TUTTI_SERVER_HTTP_HTTP_SOURCE_H
#define TUTTI_SERVER_HTTP_HTTP_SOURCE_H

#include "base/error.h"

struct http_sources;

enum { HTTP_SOURCE_NAME_BYTES = 80 };

/* One connection's place among those of its address. Zero-initialise. */
struct http_seat {
    struct http_source *source;
    struct http_seat *older, *newer; /* among those that may be closed */
    void *user;
    bool is_idle; /* it is among them */
};

/* One address. It exists while it has a connection. */
struct http_source {
    struct http_sources *sources;
    struct http_source *next, **link;           /* in its bucket */
    struct http_source *rank_next, **rank_link; /* among those with about as many connections */
    struct http_seat *oldest, *newest; /* connections that may be closed, by their last complete request */
    uint32_t n_open;
    char name[HTTP_SOURCE_NAME_BYTES];
};

MUST_CHECK enum tutti_status http_sources_new(struct http_sources **out, struct tutti_error *err);
void http_sources_free(struct http_sources *sources); /* no connection is left; NULL is allowed */

/* The address of that name. NULL: it has no connection. */
const struct http_source *http_sources_find(const struct http_sources *sources, const char *name);
/* Adds a connection of the address. False: out of memory. */
MUST_CHECK bool http_seat_enter(struct http_sources *sources, struct http_seat *seat, const char *name,
                                void *user);
void http_seat_leave(struct http_seat *seat);

/* The connection may be closed from now on, after all others of its address that may; first: before them. */
void http_seat_rest(struct http_seat *seat, bool first);
/* The connection has work: it must not be closed to make room. */
void http_seat_work(struct http_seat *seat);

/* The connection to close so that this address may open another one: the user of the one that has completed no request for
 * longest. NULL: all of them have work. */
void *http_source_victim(const struct http_source *source);
/* The same for all addresses: of one of those with most connections. */
void *http_sources_victim(const struct http_sources *sources);

#endif
