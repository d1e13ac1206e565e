/* Atomic file creation: written under a temporary name in the same folder, renamed when it is
 * complete. A signal that ends the program removes the temporary file first
 * (base/files/unfinished.h). What SIGKILL leaves, the next process that creates the file removes
 * (base/files/temporary.h). */
#ifndef TUTTI_BASE_FILES_NEW_FILE_H
#define TUTTI_BASE_FILES_NEW_FILE_H

#include "base/error.h"

struct new_file;

/* On success *out is the caller's, for new_file_free(). */
MUST_CHECK enum tutti_status new_file_open(struct new_file **out, const char *path, struct tutti_error *err);
MUST_CHECK enum tutti_status new_file_write(struct new_file *file, const void *bytes, size_t n_bytes,
                                            struct tutti_error *err);

/* Flushes to disk and renames. */
MUST_CHECK enum tutti_status new_file_finish(struct new_file *file, struct tutti_error *err);

/* Writes a whole file at once. */
MUST_CHECK enum tutti_status new_file_put(const char *path, const void *bytes, size_t n_bytes,
                                          struct tutti_error *err);

/* Removes the temporary file unless it was finished. NULL is allowed. */
void new_file_free(struct new_file *file);

#endif
