#include "base/files/new_folder.h"

#include "base/containers/array.h"
#include "base/files/temporary.h"
#include "base/files/unfinished.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct new_folder {
    char *path, *temporary;
    int lock;    /* the temporary folder, locked; -1: not made yet */
    char **made; /* [n_made]: temporary itself, then its folders and files in order of creation */
    size_t n_made, capacity;
    bool is_finished;
};

/* Registers path, which need not exist yet, and takes ownership of the string. */
static bool register_path(struct new_folder *f, char *path)
{
    if (!array_grow(&f->made, f->n_made, &f->capacity, sizeof *f->made) || !unfinished_add(path)) {
        free(path);
        return false;
    }
    f->made[f->n_made++] = path;
    return true;
}

static enum tutti_status check_free(const char *path, struct tutti_error *err)
{
    struct stat info;
    if (lstat(path, &info) != 0)
        return errno == ENOENT ? TUTTI_OK : error_from_errno(path, err);
    bool is_empty = S_ISDIR(info.st_mode);
    DIR *dir = is_empty ? opendir(path) : NULL;
    if (is_empty && !dir)
        return error_from_errno(path, err);
    for (const struct dirent *entry; dir && (entry = readdir(dir));)
        is_empty = is_empty && (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0);
    if (dir)
        closedir(dir);
    return is_empty ? TUTTI_OK
                    : error_set(err, TUTTI_E_ARGUMENT,
                                "%s exists already; expected another name or an empty folder", path);
}

enum tutti_status new_folder_open(struct new_folder **out, const char *path, struct tutti_error *err)
{
    enum tutti_status st = check_free(path, err);
    if (st != TUTTI_OK)
        return st;
    struct new_folder *f = calloc(1, sizeof *f);
    mode_t mask = umask(0);
    umask(mask);
    if (f) {
        f->lock = -1;
        f->path = strdup(path);
    }
    for (size_t n = f && f->path ? strlen(f->path) : 0; n > 1 && f->path[n - 1] == '/'; n--)
        f->path[n - 1] = '\0';
    if (!f || !f->path) {
        new_folder_free(f);
        return error_out_of_memory(path, err);
    }
    char *temporary = NULL;
    st = temporary_make(&temporary, &f->lock, f->path, TEMPORARY_FOLDER, err);
    if (st == TUTTI_OK && !register_path(f, temporary)) {
        rmdir(temporary);
        st = error_out_of_memory(path, err);
    } else if (st == TUTTI_OK) {
        f->temporary = temporary;
        if (chmod(temporary, 0777 & ~mask) != 0) /* mkdtemp() gives 0700 */
            st = error_from_errno(path, err);
    }
    if (st == TUTTI_OK)
        *out = f;
    else
        new_folder_free(f);
    return st;
}

/* Makes and registers the path of a file or folder inside. NULL: out of memory. */
static char *entry_place(struct new_folder *f, const char *name)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s", f->temporary, name) < 0)
        return NULL;
    return register_path(f, path) ? path : NULL;
}

enum tutti_status new_folder_make(struct new_folder *f, const char *name, struct tutti_error *err)
{
    char *path = entry_place(f, name);
    if (!path)
        return error_out_of_memory(f->path, err);
    return mkdir(path, 0777) == 0 || errno == EEXIST ? TUTTI_OK : error_from_errno(path, err);
}

enum tutti_status new_folder_create(struct new_folder *f, const char *name, int *fd, struct tutti_error *err)
{
    char *path = entry_place(f, name);
    if (!path)
        return error_out_of_memory(f->path, err);
    *fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    return *fd >= 0 ? TUTTI_OK : error_from_errno(path, err);
}

enum tutti_status new_folder_write(struct new_folder *f, int fd, const void *bytes, size_t n_bytes,
                                   struct tutti_error *err)
{
    const char *next = bytes;
    while (n_bytes > 0) {
        ssize_t n = write(fd, next, n_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return error_from_errno(f->path, err);
        next += n;
        n_bytes -= (size_t)n;
    }
    return TUTTI_OK;
}

enum tutti_status new_folder_close_file(struct new_folder *f, int fd, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        st = error_from_errno(f->path, err);
    if (close(fd) != 0 && st == TUTTI_OK)
        st = error_from_errno(f->path, err);
    return st;
}

enum tutti_status new_folder_finish(struct new_folder *f, struct tutti_error *err)
{
    int fd = open(f->temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        fsync(fd); /* not every file system supports it */
        close(fd);
    }
    if (rename(f->temporary, f->path) != 0)
        return error_from_errno(f->path, err);
    f->is_finished = true;
    return TUTTI_OK;
}

void new_folder_free(struct new_folder *f)
{
    if (!f)
        return;
    for (size_t i = f->n_made; i > 0; i--) {
        char *path = f->made[i - 1];
        if (!f->is_finished && unlink(path) != 0)
            rmdir(path);
        unfinished_drop(path);
        free(path);
    }
    if (f->lock >= 0)
        close(f->lock);
    free(f->made);
    free(f->path);
    free(f);
}
