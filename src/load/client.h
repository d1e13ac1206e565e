/* The load generator's client: one run, and the slots (connections) that send its requests one
 * after another. */
#ifndef TUTTI_LOAD_CLIENT_H
#define TUTTI_LOAD_CLIENT_H

#include "base/system/clock.h"
#include "load/answer.h"
#include "load/load.h"

#include <curl/curl.h>
#include <event2/event.h>

struct load_slot {
    struct load_client *client;
    CURL *easy;
    struct answer answer;
    struct buf body;       /* of the request */
    struct buf error_body; /* beginning of an error response's body */
    size_t record;         /* index */
    size_t n_error_bytes;
    long status; /* HTTP; 0: not known yet */
    int n_sends;
    bool is_open; /* its handle is added to the multi handle */
    char curl_text[CURL_ERROR_SIZE];
    struct event *wake; /* closed loop: timer before the user's next request; NULL in the open loop */
    struct load_slot *next_free;
};

/* The URLs of requests. */
struct endpoints {
    char *plain, *chat; /* chat: only of OpenAI's API */
};

struct load_client {
    const struct load_options *options;
    struct load_run *run;
    size_t capacity; /* of the records */
    struct rounds rounds;
    struct arrivals arrivals;
    struct endpoints endpoints;
    struct curl_slist **headers; /* [max(1, n_keys)] */

    CURLM *multi;
    struct event_base *base;
    struct event *curl_timer, *arrival, *closing, *draining, *progress, *signals[2];
    uint64_t start_ns;
    int64_t next_arrival_us;

    struct load_slot **slots;                 /* [max_open]; NULL: not created yet */
    int max_open, n_slots, n_open, n_waiting; /* n_waiting: users waiting before their next request */
    struct load_slot *free_slots;
    size_t next_start; /* record of the next request to send */
    uint64_t n_complete, n_failed, n_pieces;
    size_t ticks_capacity;
    bool arrivals_over, is_stopping;
    enum tutti_status status; /* of an error that ends the run early */
    struct tutti_error *err;
};

static inline int64_t client_now_us(const struct load_client *c)
{
    return (int64_t)((clock_now_ns() - c->start_ns) / 1000);
}

/* Ends the run: out of memory, or a library call failed. */
void client_fail(struct load_client *c, enum tutti_status status, const char *what);

/* ---- endpoints.c ---- */

/* Fills *out for endpoints_clear(). TUTTI_E_ARGUMENT: the URL. */
MUST_CHECK enum tutti_status endpoints_init(struct endpoints *out, const struct load_options *options,
                                            struct tutti_error *err);
void endpoints_clear(struct endpoints *e);

/* Options that all handles have. */
void client_set_common(CURL *easy, const struct load_options *options);

/* Headers with an API key (NULL: none), for curl_slist_free_all(). NULL: out of memory. */
struct curl_slist *client_headers(const char *key);

/* ---- slot.c ---- */
struct load_slot *slot_new(struct load_client *c); /* NULL: out of memory */
void slot_free(struct load_slot *slot);            /* NULL is allowed */

/* Sends the request of a record. False: the run was ended by client_fail(). */
bool slot_start(struct load_slot *slot, size_t record);

/* Whether a failed request was sent on a kept-alive connection that broke before the first byte
 * of the response: the server may have closed it before the request arrived, so this says nothing
 * about the server. slot_resend() sends the request on a new connection. */
bool slot_can_resend(const struct load_slot *slot, CURLcode code);
void slot_resend(struct load_slot *slot);

/* Completes the record and removes the handle from the multi handle. */
void slot_finish(struct load_slot *slot, CURLcode code);
void slot_abort(struct load_slot *slot);

/* Seconds to wait before the next request, depending on the result in slot_finish(). */
double slot_pause_s(const struct load_slot *slot);

#endif
