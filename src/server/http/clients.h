/* Clients: who asks, by the name of the key or, where there are no keys, by address; how much each may, and what it has had.
 *
 * Tokens per minute are a bucket that holds a minute's worth and fills evenly. A request needs room for its prompt, whose
 * length is guessed until the engine has told it; its answer is taken out as it comes, which may leave a debt that has to
 * fill up first. So the mean is kept to whatever answers become, and nobody needs to say beforehand how long.
 *
 * Thread of the event loop only. */
#ifndef TUTTI_SERVER_HTTP_CLIENTS_H
#define TUTTI_SERVER_HTTP_CLIENTS_H

#include "base/error.h"

struct http_conn;

/* What one may do. */
struct client_limits {
    double weight;            /* of its share, while others wait too */
    double tokens_per_minute; /* of prompts and answers; 0: no limit */
    int concurrency;          /* answers that run or wait at the same time; 0: no limit */
    int priority;             /* its requests have this one, or a worse one that they ask for */
};

enum client_refusal { CLIENT_TOO_MANY_TOKENS, CLIENT_TOO_MANY_ANSWERS, CLIENT_REFUSALS };

/* Since it was first seen; it is forgotten after many others. */
struct client_counts {
    uint64_t n_prompt_tokens, n_generated_tokens, n_requests, n_refused[CLIENT_REFUSALS];
};

struct client {
    struct client *next;          /* in its bucket */
    struct client *older, *newer; /* among those without answers on the way */
    char name[80];
    uint64_t id; /* from 1 on: the owner of its requests */
    struct client_limits limits;
    int64_t n_running; /* answers that run or wait */
    double level;      /* of the bucket */
    uint64_t level_us; /* then */
    struct client_counts counts;
};

struct clients;

MUST_CHECK enum tutti_status clients_new(struct clients **out, struct tutti_error *err);
void clients_free(struct clients *clients); /* NULL is allowed */

/* The client of this name, with these limits from now on. NULL: out of memory. Valid until the next call for another name, longer
 * while it has answers on the way. */
struct client *clients_get(struct clients *clients, const char *name, const struct client_limits *limits,
                           uint64_t now_us);
/* NULL: nobody of this name was seen, or it is forgotten. */
const struct client *clients_find(const struct clients *clients, const char *name);

/* The names of clients that were seen and are not forgotten, max at most. Returns how many. */
size_t clients_seen(const struct clients *clients, const char **names, size_t max);

/* The sums over all clients that ever were. */
void clients_count(const struct clients *clients, struct client_counts *out);

/* The name of a client without a key: "192.0.2.1", of IPv6 the network of 64 bits, "2001:db8:1:2::/64", for its owner has all
 * of that; anything that is no address is its own name. peer: as http_request_peer() has it. */
void client_name_address(char *name, size_t n_bytes, const char *peer);

/* Takes in a request of n_answers with a prompt of about n_prompt tokens, which is charged. TUTTI_E_BUSY: not now.
 * TUTTI_E_ARGUMENT: it will never be, and names "n". */
MUST_CHECK enum tutti_status client_enter(struct clients *clients, struct client *client, int64_t n_answers,
                                          int64_t n_prompt, uint64_t now_us, struct tutti_error *err);
/* Is it worth the while to read a request? As client_enter() for one of one answer and one token; Retry-After is for about n_prompt
 * tokens. What is refused here counts as a request. */
MUST_CHECK enum tutti_status client_check(struct client *client, int64_t n_prompt, uint64_t now_us,
                                          struct tutti_error *err);
/* Its answers are over. */
void client_leave(struct clients *clients, struct client *client, int64_t n_answers);
/* The engine has used so many tokens more than were charged; less: below 0. */
void client_charge(struct client *client, int64_t n_tokens);
/* The same for the client of that name, if it is known. */
void clients_charge(struct clients *clients, const char *name, int64_t n_tokens);

/* Adds OpenAI's x-ratelimit-* to the reply, where there is such a limit. */
void client_write_headers(struct client *client, struct http_conn *conn, uint64_t now_us);

#endif
