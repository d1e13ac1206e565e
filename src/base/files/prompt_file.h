/* Reads a file of prompts: one per line, or JSON Lines with {"prompt": TEXT} or {"messages": [{"role",
 * "content"}, ...]}, and optionally "max_tokens" (or "output_len") for this prompt's answer.
 *
 * A file whose first line that is not blank begins with '{' is JSON Lines. Blank lines are skipped. */
#ifndef TUTTI_BASE_FILES_PROMPT_FILE_H
#define TUTTI_BASE_FILES_PROMPT_FILE_H

#include "base/buf.h"

#include <jansson.h>

struct file_prompt {
    const char *text; /* NULL: messages */
    size_t n_bytes;
    json_t *messages; /* a list of at least one object with a role */
    int max_tokens;   /* 0: not given */
};

/* Zero-initialised is empty. */
struct prompt_file {
    struct file_prompt *list;
    size_t n, capacity;
    json_t *values;   /* array that owns the JSON of the prompts */
    struct buf bytes; /* which texts of plain prompts point into */
};

enum prompt_use {
    PROMPTS_TO_RUN,  /* the content of each message is a text */
    PROMPTS_TO_SEND, /* as JSON: texts are UTF-8, messages may hold anything besides their role */
};

/* Adds the prompts in out->bytes, which must not change afterwards. The error names the file and line.
 * Call prompt_file_clear() in any case. */
MUST_CHECK enum tutti_status prompt_file_read(struct prompt_file *out, const char *name, enum prompt_use use,
                                              struct tutti_error *err);
/* Adds a prompt whose text is borrowed. */
MUST_CHECK enum tutti_status prompt_file_add(struct prompt_file *out, const char *text, size_t n_bytes,
                                             struct tutti_error *err);
void prompt_file_clear(struct prompt_file *prompts);

#endif
