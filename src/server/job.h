/* A job: one API request on the engine, from its submission to the last byte of its reply.
 *
 * It lives until the engine has sent the last event of each of its submissions. If the client
 * disconnects before, the job's requests are cancelled and further events are ignored. */
#ifndef TUTTI_SERVER_JOB_H
#define TUTTI_SERVER_JOB_H

#include "server/app.h"
#include "server/intake.h"
#include "server/requests/openai_request.h"

/* What was sent of a choice's tool calls. */
struct sent_calls {
    tutti_tool_parser *parser; /* NULL: nothing was parsed yet */
    size_t n;                  /* calls that have begun */
    bool is_open;              /* more arguments of the last one follow */
};

/* Where reasoning begins again after text, as models with channels do: bytes of either before that. */
struct answer_turn {
    size_t n_reasoning, n_text;
};

/* Where a token's text ends, in bytes. */
struct answer_token {
    size_t raw_end;  /* in what the model wrote */
    size_t text_end; /* in choice->text; 0: no part of it */
};

enum { REPLY_LISTS = 4 };

/* The reply of one choice so far. */
struct reply_choice {
    struct buf text;                  /* the answer, or the part of it that was not sent */
    struct buf raw;                   /* what the model wrote, if its reasoning is split off */
    struct buf reasoning;             /* of raw; text has the rest */
    tutti_reasoning_parser *splitter; /* NULL: nothing was split yet */
    size_t n_split;                   /* bytes of raw that were passed to it */
    bool is_inside;                   /* the latest token ends within reasoning */
    struct buf turns;                 /* of struct answer_turn */
    size_t turn;                      /* that is passed on (openai_answer.h) */
    size_t n_reasoning_sent, n_reasoning_tokens;
    size_t n_sent;                      /* streams: bytes of text that were sent */
    size_t reasoning_begin, text_begin; /* of this turn, in reasoning and in text */
    struct buf held; /* text that waits for a token to carry it; parts: the call being passed on */
    /* Whole replies: entries of the API's lists of log-probabilities, as text. */
    struct buf lists[REPLY_LISTS];
    json_t *logprobs;        /* responses API: the list of log-probabilities */
    struct buf places;       /* responses API: of struct answer_token, one for each entry of logprobs */
    size_t n_placed;         /* of them, those whose text_end is known */
    json_t *tokens, *tops;   /* for APIs that report tokens: all tokens, and the most probable ones of each */
    struct sent_calls calls; /* streams with tools */
    const char *own_id;      /* of the call being passed on; NULL: the model wrote none */
    json_t *items;           /* responses API: complete output items */
    size_t n_events;         /* responses API: events sent */
    size_t n_chars;          /* of the tokens reported: text_offset of the next one */
    size_t n_generated, n_new; /* tokens so far, and those of the latest event */
    size_t n_accepted_drafts, n_rejected_drafts;
    double logprob_sum; /* over n_scored tokens */
    size_t n_scored;
    enum tutti_finish finish;
    bool is_open; /* what its stream begins with was written */
    bool has_begun;
    bool reasoning_is_over, message_is_over; /* these parts of the turn were passed on */
    bool has_stop_token;                     /* ended with a stop token of the model */
    const struct tutti_string *stop_string; /* ended with this stop string of the request; NULL: it did not */
    size_t n_json_bytes;                    /* memory of the JSON values above */
    size_t n_counted;                       /* bytes that the job has counted */
};

struct job;

/* Appends a whole reply, or the end of a stream. False: out of memory. */
typedef bool job_write_fn(struct job *job, struct buf *out);

/* How an API parses its requests and writes its replies. */
struct job_api {
    const char *id_prefix; /* of the reply's id, with its separator */
    /* read() and read_value() run on a worker (intake.h). read() parses a body. req is zeroed; the
     * caller clears it in any case. NULL: the body is JSON for read_value(). */
    enum tutti_status (*read)(struct api_request *req, struct app *app, const struct intake_body *body,
                              struct tutti_error *err);
    /* Reads a parsed body and takes ownership of it. */
    enum tutti_status (*read_value)(struct api_request *req, struct app *app, json_t *body,
                                    struct tutti_error *err);
    /* Renames err->param of an error about a request that was read: to the field that the client sent.
     * NULL: they are the same. */
    void (*name_field)(struct tutti_error *err);
    /* On a worker, before the first event() of a prompt whose request has reports_prompt: sets
     * sub->prompt and sub->prompt_text. False: out of memory. NULL: nothing to do. */
    bool (*read_prompt)(const struct job *job, struct submission *sub, const struct tutti_event *event);
    /* Streams, after that and before the first event() of each choice: appends what the choice begins with. On a
     * worker if that is large. False: out of memory. NULL: nothing to do. */
    bool (*open)(struct job *job, size_t index, struct buf *out);
    /* An event of a choice, while the client is connected. */
    void (*event)(struct job *job, size_t index, struct reply_choice *choice,
                  const struct tutti_event *event);
    /* Every choice has finished: writes the rest of the reply. */
    void (*finish)(struct job *job);
    /* Writes the error of a failed request. If the stream has begun, the status line was sent
     * already. job may be NULL, and conn too for an API with is_detached. */
    fail_fn *fail;
    bool is_detached; /* the API wants events without a connection too */
};

/* Receives the reply of a job without a connection. */
struct job_sink {
    void (*reply)(void *user, int status, const char *body, size_t n_bytes); /* called once; NULL: unused */
    void *user;
};

struct job {
    struct app *app;
    LIST_ENTRY(job) link;   /* in app->jobs, once it has submitted a prompt */
    struct http_conn *conn; /* NULL: the reply is complete, or the client has disconnected */
    const struct job_api *api;
    void *user; /* for the API */
    struct job_sink sink;
    bool is_over; /* further events are ignored */
    bool splits;  /* reasoning and text of an answer are separated */
    struct api_request req;
    char id[48];
    time_t created;
    uint64_t start_us;              /* when its request began to arrive */
    struct client *client;          /* NULL: not admitted yet */
    struct http_body *memory;       /* of the request: charged to the client; NULL: too small to count */
    struct http_body *reply_memory; /* of the reply, the same; NULL: it has no connection */
    size_t n_reply_bytes;           /* of memory, collected so far */
    uint64_t tenant;                /* whose cached pages it may use */
    struct submission *subs;        /* [req.n_prompts] */
    size_t n_submitted;             /* of them; the others follow when some of these have ended */
    size_t n_open;                  /* submitted ones that have not ended */
    bool is_stalled;                /* none is open, and the queue had no room for the next one */
    struct reply_choice *choices;   /* [req.n_prompts * req.n] */
    size_t n_choices, n_unfinished;
    uint64_t queue_us, ttft_us, total_us; /* 0: not started, no token yet */
    bool is_working;                      /* a worker reads a prompt or writes the reply: events wait */
    struct inbox_event *first_event, *last_event; /* waiting events */
    job_write_fn *write;                          /* of the reply, on a worker */
};

/* Parses the request, submits it and writes the reply. */
void job_start(struct app *app, struct http_conn *conn, const struct job_api *api);

/* The same for a parsed request. Does not reply on conn, from which the job takes its id. NULL:
 * refused. On success the job owns the contents of *req and *req is empty; else *req remains the
 * caller's. */
struct job *job_open(struct app *app, const struct http_conn *conn, const struct job_api *api,
                     struct api_request *req, void *user, struct tutti_error *err);

/* The same without a connection; streams are refused. name: follows the API's prefix in the job's
 * id. */
struct job *job_open_offline(struct app *app, const char *name, const struct job_api *api,
                             struct api_request *req, struct job_sink sink, struct tutti_error *err);

/* Cancels the job's requests: the reply is no longer needed. */
void job_drop(struct job *job);

/* Cancels every job; clients get the error that the server stops. */
void job_stop_all(struct app *app);

/* Reads app->inbox; user: struct app. */
void job_take_event(void *app, struct mail *mail);

/* Tokens and times for the access log; "" if there are none. */
void job_describe(const struct job *job, char *out, size_t n_bytes);

/* ---- for the APIs ---- */

/* Detaches the connection from the job, to write the end of the reply. */
struct http_conn *job_take_conn(struct job *job);
/* Begins an event stream, if it has not begun. */
void job_begin_stream(struct job *job);
/* Sends the whole reply that write() writes, with status 200, or the end of a stream. A large one is written on a
 * worker, which may use the job except its connection; its contents are freed there. */
void job_reply(struct job *job, job_write_fn *write);
/* In write(): the value, followed by end, such as "\n"; releases value. False: it is NULL, or out of memory. */
MUST_CHECK bool job_write_json(struct buf *out, json_t *value, const char *end);
/* In event(): the API needs no more of this choice, whose answer ends here as one that is too long does. */
void job_end_choice(struct job *job, size_t index);
/* Ends the job with an error: out of memory. */
void job_fail_memory(struct job *job);
/* Sends a part of the stream that was written to text, and clears text. ok false: there was no memory for it. */
void job_stream_text(struct job *job, bool ok, struct buf *text);
/* Writes prefix, the value and end (such as "\n\n") to the stream, and releases the value. False:
 * out of memory. */
MUST_CHECK bool job_stream_json(struct job *job, const char *prefix, json_t *value, const char *end);
size_t job_n_prompt_tokens(const struct job *job, size_t *n_cached); /* n_cached may be NULL */
size_t job_n_generated(const struct job *job);
/* For read_prompt(): the text of a prompt of ids. False: out of memory, or no tokenizer. */
MUST_CHECK bool job_read_prompt_text(const struct job *job, struct submission *sub);
/* The text of the prompt of choice index, once it was read. False: out of memory. */
MUST_CHECK bool job_prompt_text(const struct job *job, size_t index, struct buf *out);

#endif
