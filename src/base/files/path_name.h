/* The name of a file or folder: the last part of its path. */
#ifndef TUTTI_BASE_FILES_PATH_NAME_H
#define TUTTI_BASE_FILES_PATH_NAME_H

#include <stddef.h>

/* Slashes at the end do not count. Of "." and "..", it is the name of the folder that they lead to. */
void path_name(char *out, size_t size, const char *path);

#endif
