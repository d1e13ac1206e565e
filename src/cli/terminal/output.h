/* Standard output, with every failure to write noticed. The first one is kept; later output is dropped. A terminal is shown
 * no control characters (cli/terminal/terminal_text.h); files and pipes get every byte. */
#ifndef TUTTI_CLI_TERMINAL_OUTPUT_H
#define TUTTI_CLI_TERMINAL_OUTPUT_H

#include "base/buf.h"
#include "base/error.h"

#include <jansson.h>

void output_write(const void *bytes, size_t n_bytes);
/* From now on what is written is added to *into instead, for somebody else to write. */
void output_keep(struct buf *into);
void output_printf(const char *format, ...) PRINTF_LIKE(1, 2);

/* The value on lines of its own (indented) or on one line. */
void output_json(const json_t *value, bool indented);

/* Hands over what is buffered. TUTTI_E_IO: something was lost since the start; the text is empty where the reader went
 * away by itself ("tutti generate ... | head"). */
MUST_CHECK enum tutti_status output_flush(struct tutti_error *err);

#endif
