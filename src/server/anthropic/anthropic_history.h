/* Translates the messages of a request to those of the chat API. */
#ifndef TUTTI_SERVER_ANTHROPIC_ANTHROPIC_HISTORY_H
#define TUTTI_SERVER_ANTHROPIC_ANTHROPIC_HISTORY_H

#include "base/error.h"

#include <jansson.h>

struct history_facts {
    bool has_cache_control; /* a block has that field */
    bool ends_in_answer;    /* the last message is the assistant's: the answer continues it */
};

/* Appends the system prompt and the messages of root to messages. Messages of one role in a row become one
 * message, as in the original. TUTTI_E_ARGUMENT: also calls without results, and results without calls. */
MUST_CHECK enum tutti_status history_translate(json_t *messages, const json_t *root,
                                               struct history_facts *facts, struct tutti_error *err);

#endif
