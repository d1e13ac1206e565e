/* A folder that appears under its name only when it is complete: filled beside it under a temporary name, renamed at the end. An end
 * of the program by SIGINT, SIGTERM or SIGHUP removes what is there so far (base/files/unfinished.h). SIGKILL leaves a folder
 * NAME.unfinished-XXXXXX; whoever is the next to make NAME removes it, since its lock has ended with the process. */
#ifndef TUTTI_BASE_FILES_NEW_FOLDER_H
#define TUTTI_BASE_FILES_NEW_FOLDER_H

#include "base/error.h"

struct new_folder;

/* path: a free name, or an empty folder. On success *out is the caller's, for new_folder_free(). */
MUST_CHECK enum tutti_status new_folder_open(struct new_folder **out, const char *path,
                                             struct tutti_error *err);

/* A folder in it, by its relative path; one that is there already is no error. */
MUST_CHECK enum tutti_status new_folder_make(struct new_folder *folder, const char *name,
                                             struct tutti_error *err);

/* A new file in it, by its relative path. *fd is the caller's, to be closed by new_folder_close_file(). */
MUST_CHECK enum tutti_status new_folder_create(struct new_folder *folder, const char *name, int *fd,
                                               struct tutti_error *err);
MUST_CHECK enum tutti_status new_folder_write(struct new_folder *folder, int fd, const void *bytes,
                                              size_t n_bytes, struct tutti_error *err);

/* Flushes to disk. fd is closed in any case. */
MUST_CHECK enum tutti_status new_folder_close_file(struct new_folder *folder, int fd,
                                                   struct tutti_error *err);

/* Renames. */
MUST_CHECK enum tutti_status new_folder_finish(struct new_folder *folder, struct tutti_error *err);

/* Removes everything unless it was finished. NULL is allowed. */
void new_folder_free(struct new_folder *folder);

#endif
