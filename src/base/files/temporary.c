#include "base/files/temporary.h"

#include "base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Followed by six characters. No other program uses such names. */
#define UNFINISHED ".unfinished-"
enum { N_RANDOM = 6, MAX_TRIES = 16 };

/* ---- leftovers of ended processes ---- */

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *entry_place)
{
    (void)info;
    (void)kind;
    (void)entry_place;
    return remove(path);
}

/* Removes a leftover, unless its process still holds the lock. Without file locks this cannot be
 * known, and it stays. */
static void remove_left(const char *path, enum temporary_kind kind)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    bool is_one = fstat(fd, &info) == 0 &&
                  (kind == TEMPORARY_FOLDER ? S_ISDIR(info.st_mode) : S_ISREG(info.st_mode));
    if (is_one && flock(fd, LOCK_EX | LOCK_NB) == 0) {
        if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT) == 0)
            log_info("%s: removed, an interrupted run had left it", path);
        else
            log_warn("%s: an interrupted run has left it, and it cannot be removed: %s", path,
                     strerror(errno));
    }
    close(fd);
}

static void remove_all_left(const char *path, enum temporary_kind kind)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t n_name = strlen(name), n_mark = strlen(UNFINISHED);
    char *parent = slash == path ? strdup("/") : slash ? strndup(path, (size_t)(slash - path)) : strdup(".");
    DIR *dir = parent ? opendir(parent) : NULL;
    for (const struct dirent *entry; dir && (entry = readdir(dir));) {
        char *left = NULL;
        if (strlen(entry->d_name) == n_name + n_mark + N_RANDOM && memcmp(entry->d_name, name, n_name) == 0 &&
            memcmp(entry->d_name + n_name, UNFINISHED, n_mark) == 0 &&
            asprintf(&left, "%s/%s", parent, entry->d_name) >= 0) {
            remove_left(left, kind);
            free(left);
        }
    }
    if (dir)
        closedir(dir);
    free(parent);
}

/* ---- making ---- */

/* Makes and locks one by the pattern at path. -1: errno has the reason. */
static int make_locked(char *path, enum temporary_kind kind)
{
    size_t n = strlen(path) - N_RANDOM;
    for (int i = 0; i < MAX_TRIES; i++) {
        struct stat there, locked;
        memset(path + n, 'X', N_RANDOM);
        if (kind == TEMPORARY_FOLDER && !mkdtemp(path))
            return -1;
        int fd = kind == TEMPORARY_FOLDER ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                                          : mkostemp(path, O_CLOEXEC);
        if (fd < 0 && (kind == TEMPORARY_FILE || errno != ENOENT))
            return -1;
        if (fd >= 0)
            flock(fd, LOCK_EX); /* not every file system supports it */
        /* Another process may have removed it before it was locked. */
        if (fd >= 0 && stat(path, &there) == 0 && fstat(fd, &locked) == 0 && there.st_ino == locked.st_ino)
            return fd;
        if (fd >= 0)
            close(fd);
    }
    errno = EAGAIN;
    return -1;
}

enum tutti_status temporary_make(char **out, int *fd, const char *path, enum temporary_kind kind,
                                 struct tutti_error *err)
{
    char *temporary = NULL;
    if (asprintf(&temporary, "%s" UNFINISHED "XXXXXX", path) < 0)
        return error_out_of_memory(path, err);
    remove_all_left(path, kind);
    *fd = make_locked(temporary, kind);
    if (*fd < 0) {
        enum tutti_status st = error_from_errno(path, err);
        free(temporary);
        return st;
    }
    *out = temporary;
    return TUTTI_OK;
}
