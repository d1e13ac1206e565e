/* Text for a terminal. What a model says and how a checkpoint names its tensors comes from strangers: control characters in it
 * could move the cursor, hide what stands there, or make some terminals type. */
#ifndef TUTTI_CLI_TERMINAL_TERMINAL_TEXT_H
#define TUTTI_CLI_TERMINAL_TERMINAL_TEXT_H

#include "base/buf.h"

/* Zero-initialised is the start. */
struct terminal_text {
    char held[4]; /* the beginning of a character, or a carriage return whose successor is not known */
    size_t n_held;
};

/* Adds text to out with U+FFFD for each control character but line feed and tab, and for each byte that is no UTF-8. A
 * carriage return before a line feed is left out. A character may come in parts. False: out of memory. */
MUST_CHECK bool terminal_text_add(struct terminal_text *t, const char *text, size_t n_bytes, struct buf *out);

#endif
