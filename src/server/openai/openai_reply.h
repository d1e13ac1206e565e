/* Writes replies of OpenAI's chat and completion APIs: their common code. */
#ifndef TUTTI_SERVER_OPENAI_OPENAI_REPLY_H
#define TUTTI_SERVER_OPENAI_OPENAI_REPLY_H

#include "server/job.h"

/* Functions return new references; NULL: out of memory. */
struct openai_api {
    struct job_api job; /* with openai_event(), openai_finish(), openai_fail() */
    const char *object, *chunk_object;
    /* A choice of a whole reply, without its log-probabilities; and these, or null. */
    json_t *(*whole)(struct job *job, size_t index, struct reply_choice *choice);
    bool (*write_logprobs)(const struct job *job, size_t index, const struct reply_choice *choice,
                           struct buf *out);
    /* Writes the stream chunks of one event. */
    void (*stream)(struct job *job, size_t index, struct reply_choice *choice,
                   const struct tutti_event *event);
};

void openai_event(struct job *job, size_t index, struct reply_choice *choice,
                  const struct tutti_event *event);
void openai_finish(struct job *job);
fail_fn openai_fail;

/* The APIs, also for batch files. */
extern const struct openai_api OPENAI_CHAT, OPENAI_COMPLETIONS;
extern const struct job_api OPENAI_EMBEDDINGS, OPENAI_RESPONSES, RERANK, INFILL;

/* Appends one chunk with this choice, which is released. False: out of memory. */
MUST_CHECK bool openai_write_chunk(const struct job *job, json_t *choice, struct buf *out);
/* The same to the stream. */
void openai_stream_choice(struct job *job, json_t *choice);
/* Appends {"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}, ...]} for
 * each token of the event. */
void openai_add_logprobs(json_t *list, const struct tutti_event *event);
/* "stop" or "length"; null if the choice has not finished. */
json_t *openai_finish_reason(enum tutti_finish finish);

#endif
