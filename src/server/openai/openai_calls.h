/* Calls of tools in answers, as the chat and the responses API tell of them. */
#ifndef TUTTI_SERVER_OPENAI_OPENAI_CALLS_H
#define TUTTI_SERVER_OPENAI_OPENAI_CALLS_H

#include "server/job.h"

/* The tools that the answers may call; NULL: none, and the answer is text whatever it looks like. */
const json_t *calls_tools(const struct job *job);

/* The calls in a whole answer that has ended so: [{"name", "arguments": JSON as text}], and how many bytes of text come before
 * them. NULL: there are none, or there is no memory. A call that was cut off is text. */
json_t *calls_find(const struct job *job, const struct choice *choice, enum tutti_finish finish,
                   size_t *n_content);

/* Of an answer that grows, in choice->text: how many bytes are content, whatever follows. */
size_t calls_sure_content(const struct job *job, const struct choice *choice);
/* The next piece of a call that has become certain; false: there is none before the answer grows. It cannot be taken back:
 * what ends within a call leaves one whose arguments end early. */
bool calls_next_piece(const struct job *job, struct choice *choice, struct call_piece *piece);
/* After the last piece of an answer that has ended so: the calls that came in no piece, from number choice->calls.n_calls on; NULL:
 * none. Where no piece came at all, *n_content bytes of the answer are text. */
json_t *calls_rest(const struct job *job, struct choice *choice, enum tutti_finish finish, size_t *n_content);

/* The id of a call: "call_...". */
void calls_make_id(const struct job *job, size_t choice, size_t call, char *out, size_t n_bytes);

#endif
