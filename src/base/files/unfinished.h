/* Removes incomplete files and folders when a signal ends the program (base/system/ending.h). The
 * signal then ends the program as usual. Handlers are installed only while there is something to
 * remove, and only for signals that would end the program: not for those that it ignores or
 * handles. For single-threaded commands only: as a library, tutti does not touch signals. */
#ifndef TUTTI_BASE_FILES_UNFINISHED_H
#define TUTTI_BASE_FILES_UNFINISHED_H

#include "base/error.h"

/* Registers a path; it is borrowed until unfinished_drop(). Paths are removed in reverse order,
 * so add a folder before its content. False: out of memory. */
MUST_CHECK bool unfinished_add(const char *path);

/* Unregisters path: the same pointer. One that was not added is allowed. */
void unfinished_drop(const char *path);

#endif
