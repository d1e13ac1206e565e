/* Files and folders that must not stay behind when the program ends before they are complete: SIGINT, SIGTERM and SIGHUP remove them,
 * then end the program as they would have. Handlers are set while there is anything to remove. For the commands of a program, on one
 * thread: a library that a stranger links leaves signals alone. */
#ifndef TUTTI_BASE_FILES_UNFINISHED_H
#define TUTTI_BASE_FILES_UNFINISHED_H

#include "base/error.h"

/* path is borrowed until unfinished_drop(). What was added last is removed first, so a folder comes before what lies in it.
 * False: no memory. */
MUST_CHECK bool unfinished_add(const char *path);

/* The same pointer; one that was not added is allowed. */
void unfinished_drop(const char *path);

#endif
