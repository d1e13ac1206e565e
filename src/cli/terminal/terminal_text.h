/* Filters untrusted text for a terminal. Model output and tensor names can contain control
 * characters, which could move the cursor, hide text, or make some terminals send input. */
#ifndef TUTTI_CLI_TERMINAL_TERMINAL_TEXT_H
#define TUTTI_CLI_TERMINAL_TERMINAL_TEXT_H

#include "base/buf.h"

/* Zero-initialised is the start. */
struct terminal_text {
    char held[4]; /* an incomplete character, or a carriage return with the next byte pending */
    size_t n_held;
};

/* Appends text to out, with U+FFFD for each control character (except line feed and tab) and for
 * each invalid UTF-8 byte. A carriage return before a line feed is dropped. Characters may be
 * split over calls. False: out of memory. */
MUST_CHECK bool terminal_text_add(struct terminal_text *t, const char *text, size_t n_bytes, struct buf *out);

#endif
