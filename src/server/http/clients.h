/* Clients: identified by the name of their key or, without keys, by their address; their limits and
 * their usage.
 *
 * Tokens per minute are a token bucket that holds a minute's worth and fills evenly. A request
 * needs room for its prompt, whose length is estimated until the engine reports it. Generated
 * tokens are taken out as they come, which may leave a debt that must fill up first. So the mean
 * rate holds for answers of any length, and clients need not announce max_tokens.
 *
 * Thread of the event loop only. */
#ifndef TUTTI_SERVER_HTTP_CLIENTS_H
#define TUTTI_SERVER_HTTP_CLIENTS_H

#include "base/error.h"

#include <sys/queue.h>

struct http_conn;

/* Limits of a client. */
struct client_limits {
    double weight;            /* of its share while other clients wait */
    double tokens_per_minute; /* of prompts and answers; 0: no limit */
    int concurrency;          /* answers that run or wait at the same time; 0: no limit */
    int priority;             /* default and best priority of its requests */
};

enum client_refusal { CLIENT_TOO_MANY_TOKENS, CLIENT_TOO_MANY_ANSWERS, CLIENT_REFUSALS };

/* Counted since the client was first seen. Idle clients are forgotten after many others. */
struct client_counts {
    uint64_t n_prompt_tokens, n_generated_tokens, n_requests, n_refused[CLIENT_REFUSALS];
};

struct client {
    char name[80];            /* the first member: by_name.h */
    LIST_ENTRY(client) link;  /* in the list of all clients */
    TAILQ_ENTRY(client) idle; /* in the list of clients without running answers */
    uint64_t id;              /* from 1 on: the owner of its requests */
    struct client_limits limits;
    int64_t n_running; /* answers that run or wait */
    double level;      /* of the bucket */
    uint64_t level_us; /* time of that level */
    struct client_counts counts;
};

struct clients;

MUST_CHECK enum tutti_status clients_new(struct clients **out, struct tutti_error *err);
void clients_free(struct clients *clients); /* NULL is allowed */

/* Finds or creates the client of this name and sets its limits. NULL: out of memory. Valid until
 * the next call for another name, or as long as it has running answers. */
struct client *clients_get(struct clients *clients, const char *name, const struct client_limits *limits,
                           uint64_t now_us);
/* NULL: no client of this name was seen, or it was forgotten. */
const struct client *clients_find(const struct clients *clients, const char *name);

/* The names of known clients, max at most. Returns their number. */
size_t clients_seen(const struct clients *clients, const char **names, size_t max);

/* Totals over all clients ever seen. */
void clients_count(const struct clients *clients, struct client_counts *out);

/* The name of a client without a key: "192.0.2.1"; of IPv6 its /64 network, "2001:db8:1:2::/64",
 * because one owner usually has all of it. If peer is not an address, the name is peer. peer: as
 * in struct http_request. */
void client_name_address(char *name, size_t n_bytes, const char *peer);

/* Admits and charges a request of n_answers with a prompt of about n_prompt tokens. TUTTI_E_BUSY:
 * not now. TUTTI_E_ARGUMENT: never, because of "n". */
MUST_CHECK enum tutti_status client_enter(struct clients *clients, struct client *client, int64_t n_answers,
                                          int64_t n_prompt, uint64_t now_us, struct tutti_error *err);
/* Checks, before a request is parsed, whether client_enter() would admit one of n_answers and one token.
 * Retry-After is for about n_prompt tokens. A refusal counts as a request. */
MUST_CHECK enum tutti_status client_check(struct client *client, int64_t n_answers, int64_t n_prompt,
                                          uint64_t now_us, struct tutti_error *err);
/* n_answers of its answers have ended. */
void client_leave(struct clients *clients, struct client *client, int64_t n_answers);
/* Charges n_tokens more than before; below 0: refunds. */
void client_charge(struct client *client, int64_t n_tokens);
/* The same for the client of that name, if it is known. */
void clients_charge(struct clients *clients, const char *name, int64_t n_tokens);

/* Adds OpenAI's x-ratelimit-* headers to the reply, if the client has such a limit. */
void client_write_headers(struct client *client, struct http_conn *conn, uint64_t now_us);

#endif
