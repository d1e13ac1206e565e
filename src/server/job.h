/* A job: one API request on the engine, from its submission to the last byte of its reply.
 *
 * It lives until the engine has sent the last event of each of its submissions, which may be after the client is
 * gone: then its requests are cancelled and nobody is written to. */
#ifndef TUTTI_SERVER_JOB_H
#define TUTTI_SERVER_JOB_H

#include "server/app.h"
#include "server/openai_request.h"

/* What has been said of one choice so far. */
struct choice {
    struct buf text;  /* the answer; streams: only where tools may be called */
    size_t n_sent;    /* streams: bytes of it that were sent */
    json_t *logprobs; /* whole replies: in the API's shape */
    size_t n_chars;   /* of the tokens reported: text_offset of the next one */
    size_t n_generated;
    enum tutti_finish finish;
    bool has_begun;
};

/* How an API words its replies. Values returned are new references; NULL: out of memory. */
struct job_api {
    const char *id_prefix, *object, *chunk_object;
    /* The choice of a whole reply. */
    json_t *(*whole)(struct job *job, size_t index, struct choice *choice);
    /* Writes the chunks of one event. */
    void (*stream)(struct job *job, size_t index, struct choice *choice, const struct tutti_event *event);
    /* The log-probabilities of an event in the API's shape, added to into, or into a new value where that is NULL. */
    json_t *(*logprobs)(json_t *into, struct choice *choice, const struct tutti_event *event);
};

struct job {
    struct app *app;
    struct job *next, **link;
    struct http_conn *conn; /* NULL: the client has all that it will get */
    const struct job_api *api;
    struct api_request req;
    char id[48];
    time_t created;
    struct submission *subs; /* [req.n_prompts] */
    size_t n_open;           /* of them */
    struct choice *choices;  /* [req.n_prompts * req.n] */
    size_t n_choices, n_unfinished;
    uint64_t ttft_us, total_us; /* 0: no token yet */
};

/* Reads the request, submits it and sees to the reply. */
void job_start(struct app *app, struct http_conn *conn, enum api_kind kind, const struct job_api *api);

/* Cancels every job; their clients hear that the server stops. */
void job_stop_all(struct app *app);

/* The callback of the inbox; user: struct app. */
void job_read_letter(void *app, const struct letter *letter);

/* Tokens and times for the access log, "" where there are none. */
void job_describe(const struct job *job, char *out, size_t n_bytes);

/* ---- for the APIs ---- */

/* {"id", "object", "created", "model", "system_fingerprint"} and room for more. */
json_t *job_frame(const struct job *job, const char *object);
/* Writes one chunk with this choice and drops it. */
void job_stream_choice(struct job *job, json_t *choice);
/* "stop" or "length"; null while there is none. */
json_t *job_finish_reason(enum tutti_finish finish);
/* The text of the prompt that choice index answers, for echo. False: no memory or no tokenizer. */
MUST_CHECK bool job_prompt_text(const struct job *job, size_t index, struct buf *out);

#endif
