#include "server/http/clients.h"

#include "base/containers/tree.h"
#include "server/http/by_name.h"
#include "server/http/http.h"

#include <arpa/inet.h>
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_REMEMBERED = 8192 };

struct clients {
    LIST_HEAD(, client) all;
    void *tree;                /* of all of them */
    TAILQ_HEAD(, client) idle; /* without running answers, the oldest first */
    int n_idle;
    uint64_t n_made;
    struct client_counts forgotten; /* totals of forgotten clients */
};

enum tutti_status clients_new(struct clients **out, struct tutti_error *err)
{
    struct clients *clients = calloc(1, sizeof *clients);
    if (!clients)
        return error_set(err, TUTTI_E_MEMORY, "out of memory for the server");
    TAILQ_INIT(&clients->idle);
    *out = clients;
    return TUTTI_OK;
}

void clients_free(struct clients *clients)
{
    if (clients)
        tree_clear(&clients->tree, by_name, free);
    free(clients);
}

/* ---- identity ---- */

static void add_counts(struct client_counts *to, const struct client_counts *from)
{
    to->n_prompt_tokens += from->n_prompt_tokens;
    to->n_generated_tokens += from->n_generated_tokens;
    to->n_requests += from->n_requests;
    for (int i = 0; i < CLIENT_REFUSALS; i++)
        to->n_refused[i] += from->n_refused[i];
}

void clients_count(const struct clients *clients, struct client_counts *out)
{
    const struct client *client;
    *out = clients->forgotten;
    LIST_FOREACH (client, &clients->all, link)
        add_counts(out, &client->counts);
}

static void leave_idle(struct clients *clients, struct client *client)
{
    TAILQ_REMOVE(&clients->idle, client, idle);
    clients->n_idle--;
}

static void enter_idle(struct clients *clients, struct client *client)
{
    TAILQ_INSERT_TAIL(&clients->idle, client, idle);
    clients->n_idle++;
}

static void forget_oldest(struct clients *clients)
{
    struct client *client = TAILQ_FIRST(&clients->idle);
    leave_idle(clients, client);
    LIST_REMOVE(client, link);
    tdelete(client, &clients->tree, by_name);
    add_counts(&clients->forgotten, &client->counts);
    free(client);
}

const struct client *clients_find(const struct clients *clients, const char *name)
{
    return by_name_find(&clients->tree, name);
}

size_t clients_seen(const struct clients *clients, const char **names, size_t max)
{
    const struct client *client;
    size_t n = 0;
    LIST_FOREACH (client, &clients->all, link)
        if (n < max)
            names[n++] = client->name;
    return n;
}

static void refill_tokens(struct client *client, uint64_t now_us)
{
    double room = client->limits.tokens_per_minute;
    double level = client->level + room * (double)(now_us - client->level_us) / 60e6;
    client->level = level < room ? level : room;
    client->level_us = now_us;
}

struct client *clients_get(struct clients *clients, const char *name, const struct client_limits *limits,
                           uint64_t now_us)
{
    struct client *client = by_name_find(&clients->tree, name);
    bool is_new = !client;
    if (is_new) {
        if (clients->n_idle >= N_REMEMBERED)
            forget_oldest(clients);
        client = calloc(1, sizeof *client);
        if (!client)
            return NULL;
        snprintf(client->name, sizeof client->name, "%s", name);
        client->id = ++clients->n_made;
        if (!tsearch(client, &clients->tree, by_name)) {
            free(client);
            return NULL;
        }
        LIST_INSERT_HEAD(&clients->all, client, link);
        enter_idle(clients, client);
    } else if (client->n_running == 0) {
        leave_idle(clients, client);
        enter_idle(clients, client);
    }
    bool is_unlimited = client->limits.tokens_per_minute <= 0;
    if (!is_new && !is_unlimited)
        refill_tokens(client, now_us); /* with the old limit */
    client->limits = *limits;
    if (is_unlimited)
        client->level = limits->tokens_per_minute;
    client->level_us = now_us;
    if (client->level > limits->tokens_per_minute)
        client->level = limits->tokens_per_minute;
    return client;
}

void client_name_address(char *name, size_t n_bytes, const char *peer)
{
    char host[INET6_ADDRSTRLEN] = "", network[INET6_ADDRSTRLEN];
    struct in6_addr address;
    bool is_v6 = *peer == '[';
    snprintf(host, sizeof host, "%.*s", (int)strcspn(peer + is_v6, is_v6 ? "]" : ":"), peer + is_v6);
    if (!is_v6 || inet_pton(AF_INET6, host, &address) != 1) {
        snprintf(name, n_bytes, "%s", host);
    } else if (IN6_IS_ADDR_V4MAPPED(&address)) {
        snprintf(name, n_bytes, "%s", inet_ntop(AF_INET, address.s6_addr + 12, network, sizeof network));
    } else {
        memset(address.s6_addr + 8, 0, 8);
        snprintf(name, n_bytes, "%s/64", inet_ntop(AF_INET6, &address, network, sizeof network));
    }
}

/* ---- limits ---- */

static enum tutti_status refuse_tokens(struct client *client, double need, struct tutti_error *err)
{
    double per_minute = client->limits.tokens_per_minute;
    double wait_ms = (need - client->level) / per_minute * 60e3;
    client->counts.n_refused[CLIENT_TOO_MANY_TOKENS]++;
    error_set(
        err, TUTTI_E_BUSY,
        "the limit of %.0f tokens per minute is reached: about %.0f are needed, %.0f are left; try again "
        "later",
        per_minute, need, client->level > 0 ? client->level : 0);
    if (err)
        err->retry_after_ms = wait_ms < UINT32_MAX ? (uint32_t)wait_ms + 1 : UINT32_MAX;
    return TUTTI_E_BUSY;
}

static enum tutti_status check_answers(struct client *client, int64_t n_answers, struct tutti_error *err)
{
    const struct client_limits *limits = &client->limits;
    if (limits->concurrency == 0 || client->n_running + n_answers <= limits->concurrency)
        return TUTTI_OK;
    client->counts.n_refused[CLIENT_TOO_MANY_ANSWERS]++;
    return error_set(err, TUTTI_E_BUSY,
                     "%lld answers are running or waiting for you, at most %d at the same time are allowed; "
                     "try again later",
                     (long long)client->n_running, limits->concurrency);
}

enum tutti_status client_check(struct client *client, int64_t n_answers, int64_t n_prompt, uint64_t now_us,
                               struct tutti_error *err)
{
    double per_minute = client->limits.tokens_per_minute;
    enum tutti_status st = check_answers(client, n_answers, err);
    if (st == TUTTI_OK && per_minute > 0) {
        refill_tokens(client, now_us);
        if (client->level < fmin(1, per_minute))
            st = refuse_tokens(client, fmin((double)n_prompt, per_minute), err);
    }
    client->counts.n_requests += st != TUTTI_OK;
    return st;
}

enum tutti_status client_enter(struct clients *clients, struct client *client, int64_t n_answers,
                               int64_t n_prompt, uint64_t now_us, struct tutti_error *err)
{
    const struct client_limits *limits = &client->limits;
    client->counts.n_requests++;
    if (limits->concurrency > 0 && n_answers > limits->concurrency)
        return error_set_param(
            err, TUTTI_E_ARGUMENT, "n",
            "the request has %lld choices, at most %d answers at the same time are allowed",
            (long long)n_answers, limits->concurrency);
    enum tutti_status st = check_answers(client, n_answers, err);
    if (st != TUTTI_OK)
        return st;
    if (limits->tokens_per_minute > 0) {
        refill_tokens(client, now_us);
        double need = fmin((double)n_prompt,
                           limits->tokens_per_minute); /* a longer prompt needs a full bucket */
        if (client->level < need)
            return refuse_tokens(client, need, err);
    }
    client_charge(client, n_prompt);
    if (client->n_running == 0)
        leave_idle(clients, client);
    client->n_running += n_answers;
    return TUTTI_OK;
}

void client_leave(struct clients *clients, struct client *client, int64_t n_answers)
{
    client->n_running -= n_answers;
    assert(client->n_running >= 0);
    if (client->n_running > 0)
        return;
    enter_idle(clients, client);
    if (clients->n_idle > N_REMEMBERED)
        forget_oldest(clients);
}

void client_charge(struct client *client, int64_t n_tokens)
{
    if (client->limits.tokens_per_minute > 0)
        client->level -= (double)n_tokens;
}

void clients_charge(struct clients *clients, const char *name, int64_t n_tokens)
{
    struct client *client = by_name_find(&clients->tree, name);
    if (client)
        client_charge(client, n_tokens);
}

/* Formats a duration as OpenAI does: "6m0s", "1.5s", "20ms". */
static void write_duration(char *text, size_t n_bytes, double seconds)
{
    double minutes = floor(seconds / 60);
    if (minutes >= 1)
        snprintf(text, n_bytes, "%.0fm%.0fs", minutes, floor(seconds - minutes * 60));
    else if (seconds >= 1)
        snprintf(text, n_bytes, "%.3gs", seconds);
    else
        snprintf(text, n_bytes, "%.0fms", ceil(seconds * 1e3));
}

void client_write_headers(struct client *client, struct http_conn *conn, uint64_t now_us)
{
    double per_minute = client->limits.tokens_per_minute;
    char text[40];
    if (per_minute <= 0)
        return;
    refill_tokens(client, now_us);
    snprintf(text, sizeof text, "%.0f", per_minute);
    http_header(conn, "x-ratelimit-limit-tokens", text);
    snprintf(text, sizeof text, "%.0f", client->level > 0 ? floor(client->level) : 0);
    http_header(conn, "x-ratelimit-remaining-tokens", text);
    write_duration(text, sizeof text, (per_minute - client->level) / per_minute * 60);
    http_header(conn, "x-ratelimit-reset-tokens", text);
}
