/* Temporary files and folders in which others are completed: NAME.unfinished-XXXXXX in the folder of NAME. Each is locked
 * by its process. The next process that makes one for NAME removes those of killed processes, whose locks have ended. */
#ifndef TUTTI_BASE_FILES_TEMPORARY_H
#define TUTTI_BASE_FILES_TEMPORARY_H

#include "base/error.h"

enum temporary_kind { TEMPORARY_FILE, TEMPORARY_FOLDER };

/* Makes an empty one for path, which has no slash at its end, for its user only. *out: its path, for free(). *fd: the file
 * opened for writing, or the folder; closing it ends the lock. */
MUST_CHECK enum tutti_status temporary_make(char **out, int *fd, const char *path, enum temporary_kind kind,
                                            struct tutti_error *err);

#endif
