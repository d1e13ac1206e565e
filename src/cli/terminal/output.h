/* Standard output with error checking: the first write error is kept, and later output is
 * dropped. Control characters are filtered on a terminal (cli/terminal/terminal_text.h); files
 * and pipes get every byte. */
#ifndef TUTTI_CLI_TERMINAL_OUTPUT_H
#define TUTTI_CLI_TERMINAL_OUTPUT_H

#include "base/buf.h"
#include "base/error.h"

#include <jansson.h>

void output_write(const void *bytes, size_t n_bytes);
/* Text from now on is dimmed, or no longer. No effect unless standard output is a terminal that can do this, and
 * the environment has no NO_COLOR. */
void output_dim(bool is_dim);
/* Redirects all further output into *into, for the caller to write. */
void output_keep(struct buf *into);
void output_printf(const char *format, ...) PRINTF_LIKE(1, 2);

/* The value on lines of its own (indented) or on one line. */
void output_json(const json_t *value, bool indented);

/* Flushes the buffer. TUTTI_E_IO: output was lost since the start. The error text is empty if the
 * reader closed the pipe ("tutti generate ... | head"). */
MUST_CHECK enum tutti_status output_flush(struct tutti_error *err);

#endif
