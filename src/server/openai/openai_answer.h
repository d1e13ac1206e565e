/* The parts of an answer, for APIs of chats: its reasoning, its text, and its calls of tools. */
#ifndef TUTTI_SERVER_OPENAI_OPENAI_ANSWER_H
#define TUTTI_SERVER_OPENAI_OPENAI_ANSWER_H

#include "server/job.h"

/* Adds the text of an event to choice->text or choice->reasoning. False: out of memory. */
MUST_CHECK bool answer_add(struct job *job, struct reply_choice *choice, const struct tutti_event *event);

/* The reasoning that the client wants: NULL: none so far. */
const struct buf *answer_reasoning(const struct job *job, const struct reply_choice *choice);

/* Tokens of reasoning, of all choices. */
size_t answer_n_reasoning_tokens(const struct job *job);

/* For an API that reports log-probabilities of the text only. Call this before answer_add(). False: out of memory. */
MUST_CHECK bool answer_add_logprobs(struct reply_choice *choice, const struct tutti_event *event);
/* Those of the tokens that end within a part of choice->text: a new list. */
json_t *answer_logprobs(const struct reply_choice *choice, const char *text, size_t n_bytes);

/* ---- parts, one after the other ---- */

enum answer_part { ANSWER_REASONING, ANSWER_TEXT, ANSWER_CALL };
enum answer_moment { ANSWER_BEGIN, ANSWER_DELTA, ANSWER_END };

/* What happens to a part. A part ends before the next one begins: the reasoning, if any, then the text,
 * then the calls. Reasoning may begin again, with a further text: choice->turn counts. Pointers are
 * valid during the call. */
struct answer_event {
    enum answer_part part;
    enum answer_moment moment;
    const char *text; /* a delta's; at the end the whole part's. A call's text is its arguments, as JSON */
    size_t n_bytes;
    /* Of a call: its index, the function's name except in deltas (not terminated), and the id that the model
     * gave it; NULL: none. */
    size_t call;
    const char *name, *id;
    size_t n_name;
    bool is_cut; /* the end of a part that is not complete */
};
typedef void answer_event_fn(struct job *job, struct reply_choice *choice, const struct answer_event *event);

/* Streams: passes on what answer_add() added and what is certain. Text that may become a call waits. */
void answer_pass_new(struct job *job, struct reply_choice *choice, answer_event_fn *emit);
/* Streams: passes on the rest of a complete answer. An answer without calls has a text, maybe an empty
 * one. */
void answer_pass_rest(struct job *job, struct reply_choice *choice, answer_event_fn *emit);
/* Passes on a complete answer of which nothing was passed on before. A call that was cut is text. */
void answer_pass_whole(struct job *job, struct reply_choice *choice, answer_event_fn *emit);

#endif
