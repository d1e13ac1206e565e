/* How models mark the reasoning before an answer: a table of forms, chosen by the chat template. */
#ifndef TUTTI_MODEL_CHAT_REASONING_H
#define TUTTI_MODEL_CHAT_REASONING_H

#include <stdbool.h>
#include <stddef.h>

enum { REASONING_MAX_ENDS = 5 };

struct reasoning_form {
    const char *name;
    const char *trait; /* a chat template that contains this text is of this form */
    /* Reasoning is between open and close. open NULL: the answer is in channels, and reasoning ends
     * where the final one begins. Both NULL: there is none, but the answer has marks. */
    const char *open, *close;
    const char *forced; /* what ends reasoning that has used its budget; contains close */
    /* The rest of the answer may be between answer_open and the first of answer_ends. NULL: never. All of
     * answer_ends are left out of the answer, with the blanks before them. */
    const char *answer_open, *answer_ends[REASONING_MAX_ENDS];
    const char *label;  /* between open and the reasoning, where it is not a part of it; NULL: none */
    bool has_citations; /* <co>TEXT</co: SOURCES>: these marks are left out */
    const char *again;  /* what opens reasoning within the answer, with a special token; NULL: nothing */
};

/* Mark i of a form, to look up the special tokens of all marks. NULL: there are no more. */
const char *reasoning_form_mark(const struct reasoning_form *form, size_t i);

/* NULL: no form has this name; the template tells none. */
const struct reasoning_form *reasoning_form_find(const char *name);
const struct reasoning_form *reasoning_form_of_template(const char *text, size_t n_bytes);

/* Ends a message of reasoning in a channel, and begins the next message. */
#define REASONING_TURN "<|end|><|start|>assistant"

#endif
