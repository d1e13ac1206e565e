/* Carries engine events from the engine's text thread to the thread of the event loop: the callback
 * copies what the reply needs into one block of memory and sends it. */
#ifndef TUTTI_SERVER_INBOX_H
#define TUTTI_SERVER_INBOX_H

#include "base/buf.h"
#include "server/http/mailbox.h"

#include <jansson.h>

struct job;

/* One tutti_engine_submit() of a job. The job owns it until its last event was handled. */
struct submission {
    struct job *job;
    struct mailbox *inbox;
    size_t index;       /* of the prompt */
    uint64_t engine_id; /* of the request */
    bool is_open;       /* its last event has not arrived */
    bool copies_tokens;
    bool lost;                 /* text thread: an event could not be copied */
    struct inbox_event *spare; /* allocated for the last event, in case memory runs out */
    size_t n_prompt_tokens, n_cached_tokens;
    json_t *prompt;         /* the prompt's tokens in the API's shape, from read_prompt(); NULL: none */
    size_t n_prompt_bytes;  /* memory of prompt and prompt_text */
    struct buf prompt_text; /* of a prompt of ids, from read_prompt() */
    bool is_prompt_read;
    int64_t n_charged;    /* tokens of the prompt charged to the client */
    int64_t n_accounted;  /* of those, in its counts: known, not estimated */
    bool is_read_charged; /* the client was charged for parsing a prompt in vain */
};

/* A copied event. Its pointers point into its own block. */
struct inbox_event {
    struct mail mail;
    struct inbox_event *next; /* of those that wait in their job */
    struct submission *submission;
    struct tutti_event event;
};

/* A tutti_callback; user: struct submission. Sends an inbox_event, which the reader must free(). */
void inbox_callback(void *user, const struct tutti_event *event);

#endif
