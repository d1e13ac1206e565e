/* A conversation and its settings: what the model gets with each question, and what a file of it has. */
#ifndef TUTTI_CLI_CHAT_TALK_H
#define TUTTI_CLI_CHAT_TALK_H

#include "base/error.h"
#include "cli/chat/thinking.h"
#include "cli/options/flags.h"

#include <jansson.h>

/* Initialise by talk_init(). */
struct talk {
    struct tutti_message *messages; /* the first is the system message, if any; texts are owned */
    size_t n, capacity;
    struct sampling_flags sampling;
    struct thinking_flags thinking;
    const char *model; /* of a file: "NAME" or "NAME:ADAPTER"; NULL: not given */
    json_t *owner;     /* of a file: texts of model and stop strings; may be NULL */
};

void talk_init(struct talk *talk); /* no messages, the options' defaults */
void talk_clear(struct talk *talk);

/* Inserts a message at the index. role is static, text is copied. */
MUST_CHECK enum tutti_status talk_add(struct talk *talk, size_t index, const char *role, const char *text,
                                      size_t n_bytes, struct tutti_error *err);
/* Sets the thinking before the last message's content. */
MUST_CHECK enum tutti_status talk_set_thinking(struct talk *talk, const char *text, size_t n_bytes,
                                               struct tutti_error *err);
void talk_remove(struct talk *talk, size_t index);
void talk_truncate(struct talk *talk, size_t n); /* keeps the first n messages */

bool talk_has_system(const struct talk *talk);
/* text "": removes the system message. */
MUST_CHECK enum tutti_status talk_set_system(struct talk *talk, const char *text, struct tutti_error *err);
bool talk_ends_with(const struct talk *talk, const char *role);

#endif
