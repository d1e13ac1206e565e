/* Reads the user's input: lines with editing and history on a terminal, plain lines otherwise. */
#ifndef TUTTI_CLI_TERMINAL_CHAT_LINE_H
#define TUTTI_CLI_TERMINAL_CHAT_LINE_H

#include "base/buf.h"
#include "base/error.h"

struct chat_line;

enum chat_line_end { CHAT_LINE_READ, CHAT_LINE_EOF, CHAT_LINE_INTERRUPTED };

/* interrupt_catch() must be called before. On success *out is the caller's, for chat_line_free(). */
MUST_CHECK enum tutti_status chat_line_new(struct chat_line **out, struct tutti_error *err);
void chat_line_free(struct chat_line *reader); /* saves the history; NULL is allowed */

/* Whether input and output are a terminal, so that prompts and hints are shown. */
bool chat_line_is_interactive(const struct chat_line *reader);

/* Reads one message into *out, without the line break at its end. A line that ends in a backslash
 * continues on the next line; pasted lines form one message. A line that begins with """ begins a message that
 * ends with the next """ at the end of a line. */
MUST_CHECK enum tutti_status chat_line_read(struct chat_line *reader, struct buf *out,
                                            enum chat_line_end *end, struct tutti_error *err);

/* Whether the last message was between quotes: then it is text, whatever it begins with. */
bool chat_line_was_quoted(const struct chat_line *reader);

#endif
