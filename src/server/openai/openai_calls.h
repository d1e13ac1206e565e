/* Tool calls in answers, for the chat and the responses API. */
#ifndef TUTTI_SERVER_OPENAI_OPENAI_CALLS_H
#define TUTTI_SERVER_OPENAI_OPENAI_CALLS_H

#include "server/job.h"

/* The tools that the answer may call; NULL: none, so the answer is never parsed for calls. */
const json_t *calls_tools(const struct job *job);

/* Parses the calls of a complete answer: [{"name", "arguments": JSON as text}]; *n_content: bytes
 * of text before them. NULL: there are none, or out of memory. A truncated call counts as text. */
json_t *calls_find(const struct job *job, const struct choice *choice, enum tutti_finish finish,
                   size_t *n_content);

/* Streaming: how many bytes of choice->text are content for certain, whatever follows. */
size_t calls_sure_content(const struct job *job, const struct choice *choice);
/* Streaming: the next certain piece of a call; false: none until the answer grows. A piece cannot
 * be taken back: an answer that ends within a call leaves arguments that end early. */
bool calls_next_piece(const struct job *job, struct choice *choice, struct call_piece *piece);

/* The id of a call: "call_...". */
void calls_make_id(const struct job *job, size_t choice, size_t call, char *out, size_t n_bytes);

#endif
