/* A job: one API request on the engine, from its submission to the last byte of its reply.
 *
 * It lives until the engine has sent the last event of each of its submissions, which may be after the client is
 * gone: then its requests are cancelled and nobody is written to. */
#ifndef TUTTI_SERVER_JOB_H
#define TUTTI_SERVER_JOB_H

#include "model/chat/call_reader.h"
#include "server/app.h"
#include "server/intake.h"
#include "server/requests/openai_request.h"

/* What has been said of one choice so far. */
struct choice {
    struct buf text;  /* the answer, or what of it an API has not sent */
    size_t n_sent;    /* streams: bytes of it that were sent */
    struct buf held;  /* text that waits for a token to carry it */
    json_t *logprobs; /* whole replies: in the API's shape */
    json_t *tokens,
        *tops; /* APIs that tell of each token: all of them, and the most probable ones beside each */
    struct call_reader calls; /* streams with tools: what was sent of calls */
    json_t *items;            /* the responses API: what the answer consists of, as far as it is complete */
    size_t n_events;          /* the same: of its stream */
    size_t n_chars;           /* of the tokens reported: text_offset of the next one */
    size_t n_generated;
    size_t n_accepted_guesses, n_rejected_guesses;
    double logprob_sum; /* over n_scored tokens */
    size_t n_scored;
    enum tutti_finish finish;
    bool has_begun;
    bool has_stop_token; /* ended by a token of the model */
};

/* How an API reads its requests and words its replies. */
struct job_api {
    const char *id_prefix;
    /* Both run on a worker (intake.h). Reads a body. req is zeroed; it is cleared by the caller in either case. NULL: the body is JSON
     * that read_value() reads. */
    enum tutti_status (*read)(struct api_request *req, struct app *app, const struct intake_body *body,
                              struct tutti_error *err);
    /* Reads a body, which is taken over. */
    enum tutti_status (*read_value)(struct api_request *req, struct app *app, json_t *body,
                                    struct tutti_error *err);
    /* On a worker, before the first event() of a prompt whose request has tells_prompt: sets sub->prompt and sub->prompt_text.
     * False: out of memory. NULL: nothing to do. */
    bool (*read_prompt)(const struct job *job, struct submission *sub, const struct tutti_event *event);
    /* An event of a choice, while somebody listens. */
    void (*event)(struct job *job, size_t index, struct choice *choice, const struct tutti_event *event);
    /* Every choice has finished: says the rest. */
    void (*finish)(struct job *job);
    /* The last words of a request that failed; where the stream has begun, the status line is gone. job may be NULL, and conn
     * too where the API listens without one. */
    fail_fn *fail;
    bool is_detached; /* events are listened to also without a connection */
};

/* Where the reply goes of a job that came without a connection. */
struct job_sink {
    void (*reply)(void *user, int status, const char *body, size_t n_bytes); /* once; NULL: there is none */
    void *user;
};

struct job {
    struct app *app;
    struct job *next, **link;
    struct http_conn *conn; /* NULL: the client has all that it will get */
    const struct job_api *api;
    void *user; /* the API's own */
    struct job_sink sink;
    bool is_over; /* nobody listens any more */
    struct api_request req;
    char id[48];
    time_t created;
    struct client *client;    /* NULL: not let in */
    struct http_body *memory; /* what the request takes of its client's memory; NULL: little */
    uint64_t tenant;          /* whose cached pages it may use */
    struct submission *subs;  /* [req.n_prompts] */
    size_t n_submitted;       /* of them; the others follow when some of these have ended */
    size_t n_open;            /* of the submitted ones: those that have not ended */
    struct choice *choices;   /* [req.n_prompts * req.n] */
    size_t n_choices, n_unfinished;
    uint64_t ttft_us, total_us;                /* 0: no token yet */
    bool is_working;                           /* a worker reads a prompt or writes the reply: events wait */
    struct letter *first_letter, *last_letter; /* those that wait */
    json_t *reply;                             /* that a worker writes, */
    const char *reply_end;                     /* and what follows it */
};

/* Reads the request, submits it and sees to the reply. */
void job_start(struct app *app, struct http_conn *conn, const struct job_api *api);

/* The same for a request that was read: does not reply on conn, which gives the job its name. NULL: it was refused. *req is
 * empty where the job took it over, and the caller's where it did not. */
struct job *job_open(struct app *app, const struct http_conn *conn, const struct job_api *api,
                     struct api_request *req, void *user, struct tutti_error *err);

/* The same without any connection; streams are refused. name: the job's, behind the API's prefix. */
struct job *job_open_offline(struct app *app, const char *name, const struct job_api *api,
                             struct api_request *req, struct job_sink sink, struct tutti_error *err);

/* Nobody wants the answer: its requests are cancelled. */
void job_drop(struct job *job);

/* Cancels every job; their clients hear that the server stops. */
void job_stop_all(struct app *app);

/* The callback of the inbox; user: struct app. */
void job_read_letter(void *app, struct letter *letter);

/* Tokens and times for the access log, "" where there are none. */
void job_describe(const struct job *job, char *out, size_t n_bytes);

/* ---- for the APIs ---- */

/* Takes the connection off the job, to write its last words. */
struct http_conn *job_take_conn(struct job *job);
/* Begins a stream of the usual kind, where it has not begun. */
void job_begin_stream(struct job *job);
/* The whole reply, with status 200; value is dropped. */
void job_reply(struct job *job, const char *body, size_t n_bytes);
/* The same of a value and an end, such as "\n"; a large value is written on a worker. Lists in the job's choices and prompts
 * may be dropped too. */
void job_reply_json(struct job *job, json_t *value, const char *end);
/* Ends the job with an error. */
void job_fail(struct job *job, const struct tutti_error *err);
void job_fail_memory(struct job *job);
/* Writes prefix, the value and "\n\n" or another end to the stream, and drops the value. False: out of memory. */
MUST_CHECK bool job_stream_json(struct job *job, const char *prefix, json_t *value, const char *end);
size_t job_n_prompt_tokens(const struct job *job, size_t *n_cached); /* n_cached may be NULL */
size_t job_n_generated(const struct job *job);
/* For read_prompt(): the text of a prompt of ids. False: no memory or no tokenizer. */
MUST_CHECK bool job_read_prompt_text(const struct job *job, struct submission *sub);
/* The text of the prompt that choice index answers, once it was read. False: no memory. */
MUST_CHECK bool job_prompt_text(const struct job *job, size_t index, struct buf *out);

#endif
