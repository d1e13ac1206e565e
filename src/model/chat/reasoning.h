/* How models mark the reasoning before an answer: a table of forms, chosen by the chat template. */
#ifndef TUTTI_MODEL_CHAT_REASONING_H
#define TUTTI_MODEL_CHAT_REASONING_H

#include <stddef.h>

struct reasoning_form {
    const char *name;
    const char *trait; /* a chat template that contains this text is of this form */
    /* Reasoning is between open and close. open NULL: the answer is in channels, and reasoning ends
     * where the final one begins. Both NULL: there is none, but the answer has marks. */
    const char *open, *close;
    const char *forced; /* what ends reasoning that has used its budget; contains close */
    /* The rest of the answer may be between these; NULL: never. */
    const char *answer_open, *answer_close;
};

/* NULL: no form has this name; the template tells none. */
const struct reasoning_form *reasoning_form_find(const char *name);
const struct reasoning_form *reasoning_form_of_template(const char *text, size_t n_bytes);

#endif
