/* Atomic folder creation: filled under a temporary name next to the final one, renamed when it is
 * complete. A signal that ends the program removes the temporary folder first
 * (base/files/unfinished.h). What SIGKILL leaves, the next process that creates NAME removes
 * (base/files/temporary.h). */
#ifndef TUTTI_BASE_FILES_NEW_FOLDER_H
#define TUTTI_BASE_FILES_NEW_FOLDER_H

#include "base/error.h"

struct new_folder;

/* path: a free name, or an empty folder. On success *out is the caller's, for new_folder_free(). */
MUST_CHECK enum tutti_status new_folder_open(struct new_folder **out, const char *path,
                                             struct tutti_error *err);

/* Makes a subfolder, by its relative path. An existing one is not an error. */
MUST_CHECK enum tutti_status new_folder_make(struct new_folder *folder, const char *name,
                                             struct tutti_error *err);

/* Creates a file in it, by its relative path. *fd is the caller's, to be closed by
 * new_folder_close_file(). */
MUST_CHECK enum tutti_status new_folder_create(struct new_folder *folder, const char *name, int *fd,
                                               struct tutti_error *err);
MUST_CHECK enum tutti_status new_folder_write(struct new_folder *folder, int fd, const void *bytes,
                                              size_t n_bytes, struct tutti_error *err);

/* Flushes to disk. fd is closed in any case. */
MUST_CHECK enum tutti_status new_folder_close_file(struct new_folder *folder, int fd,
                                                   struct tutti_error *err);

/* Renames the folder to its final name. */
MUST_CHECK enum tutti_status new_folder_finish(struct new_folder *folder, struct tutti_error *err);

/* Removes everything unless it was finished. NULL is allowed. */
void new_folder_free(struct new_folder *folder);

#endif
