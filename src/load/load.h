/* Load generator for LLM HTTP servers: sends requests, reads the streams, and keeps a record of
 * each request.
 *
 * Open loop (rate above 0): requests arrive at times drawn in advance, independent of the server,
 * like those of independent users. All times count from the arrival, even if the request was sent
 * late because too many were open: a server that stalls cannot hide it by slowing its clients
 * down ("coordinated omission"). Closed loop: `concurrency` users, each of which sends its next
 * request when its last answer has ended.
 *
 * One thread. Times are microseconds since the start of the run. */
#ifndef TUTTI_LOAD_LOAD_H
#define TUTTI_LOAD_LOAD_H

#include "load/arrivals.h"
#include "load/samples.h"
#include "load/work.h"

enum {
    LOAD_MAX_OPEN = 20000, /* concurrent requests; one address has about 28,000 ports */
    LOAD_MAX_REQUESTS = 10000000,
    LOAD_TICK_US = 100000, /* resolution of the time series */
};

enum load_outcome {
    LOAD_COMPLETE,
    LOAD_NO_CONNECTION, /* refused, unreachable, unknown, or TLS failed */
    LOAD_TOO_MANY,      /* HTTP 429 */
    LOAD_UNAVAILABLE,   /* HTTP 503 */
    LOAD_REJECTED,      /* HTTP 4xx otherwise */
    LOAD_SERVER_ERROR,  /* HTTP 5xx otherwise, or an error in the stream */
    LOAD_TIMEOUT,
    LOAD_CUT,        /* the connection or the stream ended before the answer did */
    LOAD_BAD_ANSWER, /* not HTTP, another status, or an invalid stream */
    LOAD_UNFINISHED, /* ended by the user, or by drain_s after the last arrival */
    LOAD_OUTCOMES,
    LOAD_PENDING, /* of a record whose request is running */
};

struct load_record {
    int64_t scheduled_us, started_us; /* started_us: -1: never */
    int64_t first_us, last_us;        /* of the pieces of text; -1: none */
    int64_t ended_us;
    uint32_t prompt; /* index into the work */
    uint32_t n_pieces;
    uint32_t longest_gap_us; /* between two pieces; 0: fewer than two */
    uint32_t prompt_tokens, cached_tokens, output_tokens;
    uint16_t status;                   /* HTTP; 0: none */
    uint8_t outcome;                   /* enum load_outcome */
    bool has_usage, has_prompt_tokens; /* the server sent output_tokens, prompt_tokens */
};

struct load_progress {
    double elapsed_s;
    uint64_t n_arrived, n_running, n_complete, n_failed, n_pieces;
};

struct load_options {
    const char *url;         /* http://HOST:PORT, with an optional path prefix */
    const char *const *keys; /* sent as bearer tokens, round-robin; NULL: none */
    size_t n_keys;
    const char *ca_file; /* certificates to trust; NULL: the system's */
    const struct work *work;
    struct work_style style;

    double rate; /* arrivals a second; 0: closed loop */
    enum arrival_process process;
    int concurrency;     /* closed loop: users; open loop: maximum open requests */
    double duration_s;   /* time in which new requests arrive; 0: no limit */
    uint64_t n_requests; /* 0: no limit; this or duration_s is required */
    double timeout_s;    /* of one request */
    double drain_s;      /* time for running requests after the last arrival */
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
    struct load_samples gaps; /* between two pieces of one answer, of all answers */
    uint32_t *ticks;          /* pieces of text received in each LOAD_TICK_US */
    size_t n_ticks;
    double total_s;    /* from the start to the end of the last answer */
    double busy;       /* fraction of total_s in CPU time of this process */
    uint64_t n_resent; /* requests sent again because the server had closed the kept-alive connection */
    uint64_t n_retry_after, retry_after_s; /* responses with Retry-After, and the sum of it */
    bool was_interrupted;
    char first_words[LOAD_OUTCOMES][256]; /* message of the first failure of each kind; "": none */
    int64_t started_unix_s;
};

/* "timeout"; never NULL. */
const char *load_outcome_name(enum load_outcome outcome);

/* Runs until all requests have ended, drain_s is over, or SIGINT or SIGTERM is received. Failures
 * of requests are recorded, not returned as errors. Fills *out for load_run_clear().
 * TUTTI_E_ARGUMENT: the URL. TUTTI_E_LIMIT: the system allows fewer open files. TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status load_run(struct load_run *out, const struct load_options *options,
                                      struct tutti_error *err);
void load_run_clear(struct load_run *run);

/* Appends the name of the first model in the server's list (OpenAI's API) to *out; nothing if
 * there is no list. TUTTI_E_IO: no server at the URL; the text has the reason. */
MUST_CHECK enum tutti_status load_find_model(struct buf *out, const struct load_options *options,
                                             struct tutti_error *err);

#endif
