/* Reads a command's input: whole files, standard input, lists of token ids. */
#ifndef TUTTI_CLI_TERMINAL_INPUT_H
#define TUTTI_CLI_TERMINAL_INPUT_H

#include "base/buf.h"
#include "base/error.h"
#include "base/ids.h"

/* Appends the text of the file at path, or of standard input if path is "-": all bytes but a byte order mark at its start. */
MUST_CHECK enum tutti_status input_read(struct buf *out, const char *path, struct tutti_error *err);

/* The same, but stops when more than max_bytes were read: *out then has more than that. */
MUST_CHECK enum tutti_status input_read_most(struct buf *out, const char *path, size_t max_bytes,
                                             struct tutti_error *err);

/* The name for messages: the path, or a phrase for standard input. */
const char *input_name(const char *path);

/* Appends the ids in text: numbers separated by commas or blanks. name: the source, for messages.
 * TUTTI_E_ARGUMENT: not a number, or out of the range of ids. */
MUST_CHECK enum tutti_status input_parse_ids(struct ids *out, const char *name, const char *text,
                                             size_t n_bytes, struct tutti_error *err);

/* The same for the value of --ids: a list of ids, or @FILE for a file with such a list. */
MUST_CHECK enum tutti_status input_read_ids(struct ids *out, const char *value, struct tutti_error *err);

/* The file that a value of --ids names. NULL: value is a list, standard input or NULL. */
const char *input_ids_file(const char *value);

#endif
