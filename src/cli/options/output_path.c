#include "cli/options/output_path.h"

#include "base/files/new_file.h"

#include <string.h>
#include <sys/stat.h>

bool output_path_is_same(const char *a, const char *b)
{
    struct stat x, y;
    return strcmp(a, b) == 0 ||
           (stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino);
}

enum tutti_status output_path_check(const char *shown, const char *path, const char *const *inputs, size_t n,
                                    struct tutti_error *err)
{
    if (strcmp(path, "-") == 0)
        return error_set(err, TUTTI_E_ARGUMENT,
                         "%s: found -, but the result cannot go to standard output: expected the name of a "
                         "file (./- if it is to be called -)",
                         shown);
    for (size_t i = 0; i < n; i++)
        if (inputs[i] && output_path_is_same(path, inputs[i]))
            return error_set(err, TUTTI_E_ARGUMENT,
                             "%s: %s would be overwritten, but this command reads it: expected another name",
                             shown, inputs[i]);
    return TUTTI_OK;
}

enum tutti_status output_path_try(const char *path, struct tutti_error *err)
{
    struct new_file *file = NULL;
    enum tutti_status st = new_file_open(&file, path, err);
    new_file_free(file);
    return st;
}
