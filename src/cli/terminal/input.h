/* What a person hands to a command: whole files, standard input, lists of token ids. */
#ifndef TUTTI_CLI_TERMINAL_INPUT_H
#define TUTTI_CLI_TERMINAL_INPUT_H

#include "base/buf.h"
#include "base/error.h"
#include "base/ids.h"

/* Adds all bytes of the file at path, or of standard input where path is "-". */
MUST_CHECK enum tutti_status input_read(struct buf *out, const char *path, struct tutti_error *err);

/* How standard input is called in messages, other files by their path. */
const char *input_name(const char *path);

/* Adds the ids of text: numbers with commas or blanks between them. name: where they stand, for messages.
 * TUTTI_E_ARGUMENT: something else than a number, or one that no id can be. */
MUST_CHECK enum tutti_status input_parse_ids(struct ids *out, const char *name, const char *text,
                                             size_t n_bytes, struct tutti_error *err);

#endif
