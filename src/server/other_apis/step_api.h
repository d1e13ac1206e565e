/* A chat in steps: POST /llm/generate, where each call brings what was generated since the last one.
 *
 * {"cache_id", "query", "history", "model_name", "temperature", "top_p", "max_length", "do_sample"} → {"flag", "delta_text"}.
 * A cache_id that is not known begins a chat; later calls need only the cache_id. Clients choose the ids, so the ids of each
 * tenant are apart: the chat of another key does not exist. flag: "sending", "hang" (a token came, but its
 * character is not complete: "held_bytes" has its bytes), "end" (then the id is forgotten). */
#ifndef TUTTI_SERVER_OTHER_APIS_STEP_API_H
#define TUTTI_SERVER_OTHER_APIS_STEP_API_H

#include "base/error.h"

struct steps; /* all chats in steps; loop's thread only */

MUST_CHECK enum tutti_status steps_new(struct steps **out, struct tutti_error *err);
void steps_free(struct steps *steps); /* NULL is allowed */

/* Chats that the server waits for at shutdown: unfinished ones, those with a waiting call, and those whose client may call again soon.
 * steps NULL: 0. */
int steps_n_awaited(const struct steps *steps, uint64_t now_us);

#endif
