/* Replies with a list of tokens: common code of Text Generation Inference and llm-serving. */
#ifndef TUTTI_SERVER_OPENAI_GENERATED_H
#define TUTTI_SERVER_OPENAI_GENERATED_H

#include "server/job.h"

/* Adds an event to choice->text, choice->tokens and choice->tops (lists of {"id", "text",
 * "logprob", "special"}; tops has one list of the most probable tokens for each token). The texts
 * of all tokens concatenated are the answer: a token whose character is incomplete has empty text,
 * and the next token has the whole character. with_stop: the model's stop token is included as the
 * last. False: out of memory. */
MUST_CHECK bool generated_add(struct job *job, struct reply_choice *choice, const struct tutti_event *event,
                              bool with_stop);

/* "length", "eos_token" or "stop_sequence". */
const char *generated_finish(const struct reply_choice *choice);

/* {"id", "text", "logprob"} of every token of the prompt. Without log-probabilities in the event
 * they are null. NULL: out of memory. */
json_t *generated_prefill(const struct job *job, const struct tutti_event *event);

/* A token as the vocabulary spells it, such as "</s>". */
json_t *generated_special(const struct app *app, int32_t id);

/* Appends the text of the prompt. False: out of memory. */
MUST_CHECK bool generated_add_prompt(const struct job *job, struct buf *out);

#endif
