/* Answers told token by token: what Text Generation Inference and llm-serving have in common. */
#ifndef TUTTI_SERVER_OPENAI_GENERATED_H
#define TUTTI_SERVER_OPENAI_GENERATED_H

#include "server/job.h"

/* Adds what the event brings to choice->text, choice->tokens and choice->tops (lists of {"id", "text", "logprob", "special"},
 * one list of the most probable ones beside each token). The texts of all tokens together are the answer: a token whose
 * character is not complete has the empty text, and the next one carries the whole character.
 * with_stop: the token of the model that ended the answer is the last of them. False: out of memory. */
MUST_CHECK bool generated_add(struct job *job, struct choice *choice, const struct tutti_event *event,
                              bool with_stop);

/* "length", "eos_token" or "stop_sequence". */
const char *generated_finish(const struct choice *choice);

/* {"id", "text", "logprob"} of every token of the prompt. Where the event says no log-probabilities, they are null. NULL: out of
 * memory. */
json_t *generated_prefill(const struct job *job, const struct tutti_event *event);

/* A token of the model as its vocabulary spells it: "</s>". */
json_t *generated_special(const struct app *app, int32_t id);

/* Adds the prompt as a text. False: out of memory. */
MUST_CHECK bool generated_add_prompt(const struct job *job, struct buf *out);

#endif
