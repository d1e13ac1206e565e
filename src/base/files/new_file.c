#include "base/files/new_file.h"

#include "base/files/temporary.h"
#include "base/files/unfinished.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct new_file {
    char *path, *temporary;
    int fd;
};

enum tutti_status new_file_open(struct new_file **out, const char *path, struct tutti_error *err)
{
    struct new_file *file = calloc(1, sizeof *file);
    enum tutti_status st = TUTTI_OK;
    struct stat info;
    mode_t mask = umask(0);
    umask(mask);
    if (!file)
        return error_out_of_memory(path, err);
    file->fd = -1;
    file->path = strdup(path);
    if (!file->path) {
        st = error_out_of_memory(path, err);
        goto done;
    }
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        st = error_set(err, TUTTI_E_IO, "%s exists already and is not a regular file; expected another name",
                       path);
        goto done;
    }
    st = temporary_make(&file->temporary, &file->fd, path, TEMPORARY_FILE, err);
    if (st != TUTTI_OK)
        goto done;
    if (!unfinished_add(file->temporary)) {
        st = error_out_of_memory(path, err);
        goto done;
    }
    if (fchmod(file->fd, 0666 & ~mask) != 0) { /* it is 0600 */
        st = error_from_errno(path, err);
        goto done;
    }
    *out = file;
    file = NULL;
done:
    new_file_free(file);
    return st;
}

enum tutti_status new_file_write(struct new_file *file, const void *bytes, size_t n_bytes,
                                 struct tutti_error *err)
{
    const char *next = bytes;
    assert(file);
    while (n_bytes > 0) {
        ssize_t n = write(file->fd, next, n_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return error_from_errno(file->path, err);
        next += n;
        n_bytes -= (size_t)n;
    }
    return TUTTI_OK;
}

enum tutti_status new_file_finish(struct new_file *file, struct tutti_error *err)
{
    assert(file);
    if (fsync(file->fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        return error_from_errno(file->path, err);
    if (rename(file->temporary, file->path) != 0)
        return error_from_errno(file->path, err);
    unfinished_drop(file->temporary);
    close(file->fd);
    file->fd = -1;
    return TUTTI_OK;
}

void new_file_free(struct new_file *file)
{
    if (!file)
        return;
    if (file->fd >= 0) {
        unlink(file->temporary);
        unfinished_drop(file->temporary);
        close(file->fd);
    }
    free(file->temporary);
    free(file->path);
    free(file);
}

enum tutti_status new_file_put(const char *path, const void *bytes, size_t n_bytes, struct tutti_error *err)
{
    struct new_file *file = NULL;
    enum tutti_status st = new_file_open(&file, path, err);
    if (st == TUTTI_OK)
        st = new_file_write(file, bytes, n_bytes, err);
    if (st == TUTTI_OK)
        st = new_file_finish(file, err);
    new_file_free(file);
    return st;
}
