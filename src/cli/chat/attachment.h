/* Text files in a message: each with its name, in a fence that is longer than any in the file, as the chat page
 * sends them. */
#ifndef TUTTI_CLI_CHAT_ATTACHMENT_H
#define TUTTI_CLI_CHAT_ATTACHMENT_H

#include "base/buf.h"

/* Appends the block of a file. False: out of memory; the content is then incomplete. */
MUST_CHECK bool attachment_write(struct buf *out, const char *name, const char *text, size_t n_bytes);

/* Appends the text of the file at path. The error names the file. TUTTI_E_LIMIT: longer than max_bytes;
 * TUTTI_E_FORMAT: not UTF-8 text. */
MUST_CHECK enum tutti_status text_file_read(struct buf *out, const char *path, size_t max_bytes,
                                            struct tutti_error *err);

/* The same for a system message: without the line break at its end. TUTTI_E_FORMAT: it is empty. */
MUST_CHECK enum tutti_status system_file_read(struct buf *out, const char *path, size_t max_bytes,
                                              struct tutti_error *err);

/* Appends the block of the file at path; errors as above. On failure *out is unchanged. */
MUST_CHECK enum tutti_status attachment_read(struct buf *out, const char *path, size_t max_bytes,
                                             struct tutti_error *err);

/* What a context of n tokens can hold at most: longer files are refused before they are tokenized. */
size_t attachment_max_bytes(int n_tokens);

#endif
