/* Tool calls in answers, for the chat and the responses API. */
#ifndef TUTTI_SERVER_OPENAI_OPENAI_CALLS_H
#define TUTTI_SERVER_OPENAI_OPENAI_CALLS_H

#include "server/job.h"

/* Whether the answer may contain tool calls; otherwise it is never parsed for them. */
bool calls_are_possible(const struct job *job);

/* Parses the calls of a complete answer: [{"name", "arguments": JSON as text, "id" if the model wrote
 * one}]; *n_content: bytes of text before them. NULL: there are none, or out of memory. A truncated call counts as text. */
json_t *calls_find(const struct job *job, const struct reply_choice *choice, enum tutti_finish finish,
                   size_t *n_content);

/* For streams. The functions below need this first, for each event. False: out of memory. */
MUST_CHECK bool calls_prepare(const struct job *job, struct reply_choice *choice);
/* How many of the first n_bytes of choice->text are content for certain, whatever follows. */
size_t calls_sure_content(const struct job *job, struct reply_choice *choice, size_t n_bytes);
/* The next delta of a call in them; false: none until the answer grows. A delta cannot be taken back:
 * an answer that ends within a call leaves arguments that end early. */
bool calls_next_delta(const struct job *job, struct reply_choice *choice, size_t n_bytes,
                      struct tutti_tool_call_delta *delta);

enum { CALL_ID_BYTES = 320 };

/* A call, for its id. */
struct call_name {
    size_t choice, index;
    const char *own; /* the id that the model gave it; NULL: none */
    const char *name;
    size_t n_name;
};
/* The id of a call: the model's own, else one as the model's chat template wants it, prefix and a number
 * that is unique if it does not care. out: [CALL_ID_BYTES]. */
void calls_make_id(const struct job *job, const struct call_name *call, const char *prefix, char *out);

/* Whether the calls that were sent of a complete answer are those that calls_find() finds: there are some, and
 * none ended early or turned out to be none. */
bool calls_are_whole(const struct job *job, const struct reply_choice *choice);

#endif
