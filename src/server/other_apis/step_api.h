/* Chat by polling: POST /llm/generate, where each call returns the text generated since the last
 * one.
 *
 * {"cache_id", "query", "history", "model_name", "temperature", "top_p", "max_length", "do_sample"}
 * → {"flag", "delta_text"}. An unknown cache_id starts a chat; later calls need only the cache_id.
 * Clients choose the ids, so each tenant has its own: the chats of other keys cannot be reached.
 * flag: "sending"; "hang" (a token was generated, but its character is incomplete: "held_bytes" has
 * its bytes); "end" (the id is then forgotten). */
#ifndef TUTTI_SERVER_OTHER_APIS_STEP_API_H
#define TUTTI_SERVER_OTHER_APIS_STEP_API_H

#include "base/error.h"

struct steps; /* all running chats; loop's thread only */

MUST_CHECK enum tutti_status steps_new(struct steps **out, struct tutti_error *err);
void steps_free(struct steps *steps); /* NULL is allowed */

/* Number of chats that a shutdown waits for: unfinished ones, those with a waiting call, and those
 * whose client may call again soon. steps NULL: 0. */
int steps_n_awaited(const struct steps *steps, uint64_t now_us);

#endif
