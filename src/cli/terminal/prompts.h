/* Reads a file of prompts: one per line, or JSON Lines with {"prompt": TEXT} or {"messages":
 * [{"role", "content"}, ...]}.
 *
 * A file whose first line that is not blank begins with '{' is JSON Lines. Blank lines are
 * skipped. */
#ifndef TUTTI_CLI_TERMINAL_PROMPTS_H
#define TUTTI_CLI_TERMINAL_PROMPTS_H

#include "base/error.h"

struct prompt {
    const char *text; /* NULL: messages */
    size_t n_bytes;
    struct tutti_message *messages;
    size_t n_messages;
};

struct prompts {
    struct prompt *prompts;
    size_t n, capacity;
    void *storage; /* that the texts point into; private to prompts.c */
};

/* Fills *out, which must be zeroed, for prompts_clear() (also after a failure). The error names
 * file and line. */
MUST_CHECK enum tutti_status prompts_read(struct prompts *out, const char *path, struct tutti_error *err);

/* Adds a prompt whose text is borrowed. */
MUST_CHECK enum tutti_status prompts_borrow(struct prompts *out, const char *text, size_t n_bytes,
                                            struct tutti_error *err);

/* Adds a prompt; text is copied. May be called once. */
MUST_CHECK enum tutti_status prompts_single(struct prompts *out, const char *text, size_t n_bytes,
                                            struct tutti_error *err);
void prompts_clear(struct prompts *prompts);

#endif
