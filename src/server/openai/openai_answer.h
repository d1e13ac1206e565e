/* The text of an answer, with its reasoning apart, for the chat and the responses API. */
#ifndef TUTTI_SERVER_OPENAI_OPENAI_ANSWER_H
#define TUTTI_SERVER_OPENAI_OPENAI_ANSWER_H

#include "server/job.h"

/* Adds the text of an event to choice->text or choice->reasoning. False: out of memory. */
MUST_CHECK bool answer_add(struct job *job, struct reply_choice *choice, const struct tutti_event *event);

/* The reasoning that the client wants: NULL: none so far. */
const struct buf *answer_reasoning(const struct job *job, const struct reply_choice *choice);

/* Tokens of reasoning, of all choices. */
size_t answer_n_reasoning_tokens(const struct job *job);

#endif
