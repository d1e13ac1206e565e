#include "base/files/path_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void path_name(char *out, size_t size, const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    size_t begin = n;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    snprintf(out, size, "%.*s", (int)(n - begin), path + begin);
    char *real = strcmp(out, ".") == 0 || strcmp(out, "..") == 0 ? realpath(path, NULL) : NULL;
    if (real && real[1] != '\0') /* the root has no name */
        snprintf(out, size, "%s", strrchr(real, '/') + 1);
    free(real);
}
