/* The text of an answer while it arrives: the thinking of a model apart from the rest. */
#ifndef TUTTI_CLI_CHAT_ANSWER_TEXT_H
#define TUTTI_CLI_CHAT_ANSWER_TEXT_H

#include "base/buf.h"

/* Zero-initialised is the start of an answer. */
struct answer_text {
    struct buf thinking, text; /* the reader may empty both */
    size_t n_thinking_tokens;
    bool is_thinking; /* the answer so far ends within the thinking */
    bool is_lost;     /* out of memory: text is missing */
    tutti_reasoning_parser *parser;
    struct buf raw;
};

/* Adds an event's text. form: tutti_model_info.reasoning_form, of a request with shows_marks; NULL: everything
 * is the answer. */
void answer_text_add(struct answer_text *answer, const char *form, const struct tutti_event *event);
void answer_text_clear(struct answer_text *answer); /* frees the storage; a new answer may be added */

#endif
