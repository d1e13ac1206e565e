/* Load on an HTTP server of a language model: sends requests, reads the streams, keeps a record of each.
 *
 * Open loop (rate above 0): requests arrive at times that were drawn beforehand, whatever the server does, as those of
 * people who do not know of each other. All times count from the arrival, also where the request left late (too many were
 * open): a server that stalls cannot hide it by slowing its clients down ("coordinated omission").
 * Closed loop: as many users as concurrency says, each of whom asks again when the last answer ended.
 *
 * One thread. Times are microseconds since the start of the run. */
#ifndef TUTTI_LOAD_LOAD_H
#define TUTTI_LOAD_LOAD_H

#include "load/arrivals.h"
#include "load/samples.h"
#include "load/work.h"

enum {
    LOAD_MAX_OPEN = 20000, /* requests at the same time; one address has some 28,000 ports for them */
    LOAD_MAX_REQUESTS = 10000000,
    LOAD_TICK_US = 100000, /* of the course over time */
};

enum load_outcome {
    LOAD_COMPLETE,
    LOAD_NO_CONNECTION, /* refused, unreachable, unknown, or TLS failed */
    LOAD_TOO_MANY,      /* HTTP 429 */
    LOAD_UNAVAILABLE,   /* HTTP 503 */
    LOAD_REJECTED,      /* HTTP 4xx otherwise */
    LOAD_SERVER_ERROR,  /* HTTP 5xx otherwise, or an error told within the stream */
    LOAD_TIMEOUT,
    LOAD_CUT,        /* the connection or the stream ended before the answer did */
    LOAD_BAD_ANSWER, /* no HTTP, another status, or a stream that is none */
    LOAD_UNFINISHED, /* ended by the user, or by the limit on waiting behind the last arrival */
    LOAD_OUTCOMES,
    LOAD_PENDING, /* of a record whose request runs */
};

struct load_record {
    int64_t scheduled_us, started_us; /* started_us: -1: never */
    int64_t first_us, last_us;        /* of the pieces of text; -1: there was none */
    int64_t ended_us;
    uint32_t prompt; /* index into the work */
    uint32_t n_pieces;
    uint32_t longest_gap_us; /* between two pieces; 0: there are not two */
    uint32_t prompt_tokens, cached_tokens, output_tokens;
    uint16_t status;                   /* HTTP; 0: none */
    uint8_t outcome;                   /* enum load_outcome */
    bool has_usage, has_prompt_tokens; /* the server told output_tokens, prompt_tokens */
};

struct load_progress {
    double elapsed_s;
    uint64_t n_arrived, n_running, n_complete, n_failed, n_pieces;
};

struct load_options {
    const char *url;         /* http://HOST:PORT, with a path before that of the interface if any */
    const char *const *keys; /* sent as bearer tokens, in turns; NULL: none */
    size_t n_keys;
    const char *ca_file; /* certificates to trust; NULL: the system's */
    const struct work *work;
    struct work_style style;

    double rate; /* arrivals a second; 0: closed loop */
    enum arrival_process process;
    int concurrency;     /* users of the closed loop; the most that are open at once in the open loop */
    double duration_s;   /* new requests arrive for so long; 0: no limit */
    uint64_t n_requests; /* 0: no limit; one of the two is needed */
    double timeout_s;    /* of one request */
    double drain_s;      /* time for running requests behind the last arrival */
    uint64_t seed;
    bool in_order; /* prompts in the order of the file */
    bool no_reuse; /* a connection for each request */

    /* Called a few times a second. May be NULL. */
    void (*progress)(void *user, const struct load_progress *now);
    void *user;
};

struct load_run {
    struct load_record *records; /* in the order of their arrivals */
    size_t n_records;
    struct samples gaps; /* between two pieces of one answer, of all answers */
    uint32_t *ticks;     /* pieces of text that came in each LOAD_TICK_US of the run */
    size_t n_ticks;
    double total_s;    /* from the start to the end of the last answer */
    double busy;       /* part of that which this process computed, of one core */
    uint64_t n_resent; /* requests sent again because the server had closed the kept connection meanwhile */
    uint64_t n_retry_after,
        retry_after_s; /* refusals that said when to come again, and the sum of what they said */
    bool was_interrupted;
    char first_words[LOAD_OUTCOMES][256]; /* what was said at the first of each kind; "": nothing */
    int64_t started_unix_s;
};

/* "timeout"; never NULL. */
const char *load_outcome_name(enum load_outcome outcome);
const char *load_api_name(enum load_api api);

/* Runs until all requests ended, the limit on waiting is over, or a SIGINT or SIGTERM came. Failures of requests are
 * records, not errors. Fills *out for load_run_clear().
 * TUTTI_E_ARGUMENT: the URL. TUTTI_E_LIMIT: the system allows fewer open files. TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status load_run(struct load_run *out, const struct load_options *options,
                                      struct tutti_error *err);
void load_run_clear(struct load_run *run);

/* The name of the first model that a server with OpenAI's interface lists, added to *out; nothing where it has no such
 * list. TUTTI_E_IO: there is no server at the URL; the text says why. */
MUST_CHECK enum tutti_status load_find_model(struct buf *out, const struct load_options *options,
                                             struct tutti_error *err);

#endif
