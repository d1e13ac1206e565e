#include "hub/cache.h"

#include "base/system/os.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- paths ---- */

char *hub_cache_root(struct tutti_error *err)
{
    const char *own = getenv("TUTTI_CACHE"), *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *root = NULL;
    bool is_xdg = xdg && xdg[0] == '/'; /* the XDG specification ignores relative paths */
    if (own && *own)
        root = strdup(own);
    else if (!is_xdg && (!home || !*home)) {
        error_set(err, TUTTI_E_ARGUMENT,
                  "no folder for downloaded models: set TUTTI_CACHE, XDG_CACHE_HOME or HOME");
        return NULL;
    } else if (asprintf(&root, is_xdg ? "%s/tutti" : "%s/.cache/tutti", is_xdg ? xdg : home) < 0)
        root = NULL;
    if (!root)
        error_set(err, TUTTI_E_MEMORY, "out of memory for the path of the cache");
    return root;
}

static const char *const LAYOUT_FOLDERS[] = { [HUB_HUGGING_FACE] = "hf", [HUB_MODELSCOPE] = "ms" };

/* Names of files: everything may be in one, except for slashes. The escaped text has none of its own '%'. */
static bool add_place(struct buf *out, const char *root, const char *kind, const struct hub_name *name)
{
    bool is_https = strncmp(name->hub, "https://", 8) == 0;
    return buf_printf(out, "%s/%s/%s/", root, kind, LAYOUT_FOLDERS[name->layout]) &&
           hub_add_escaped(out, name->hub + (is_https ? 8 : 0), ":[]") &&
           buf_printf(out, "/%s%s", name->model, name->revision[0] ? "@" : "") &&
           hub_add_escaped(out, name->revision, "+=") &&
           (!name->selection[0] ||
            (buf_add_string(out, ":") && hub_add_escaped(out, name->selection, " +=@:()[],")));
}

enum tutti_status hub_places_of(struct hub_places *out, const struct hub_name *name, struct tutti_error *err)
{
    struct buf complete = { 0 }, partial = { 0 };
    *out = (struct hub_places){ .root = hub_cache_root(err) };
    if (!out->root)
        return err->status;
    bool ok = add_place(&complete, out->root, "models", name) &&
              add_place(&partial, out->root, "partial", name);
    out->complete = complete.bytes;
    out->partial = partial.bytes;
    char *name_at = ok ? strrchr(complete.bytes, '/') + 1 : NULL;
    if (ok &&
        asprintf(&out->aside, "%.*s.%s", (int)(name_at - complete.bytes), complete.bytes, name_at) < 0) {
        out->aside = NULL;
        ok = false;
    }
    return ok ? TUTTI_OK : error_set(err, TUTTI_E_MEMORY, "out of memory for the path of the cache");
}

void hub_places_clear(struct hub_places *places)
{
    free(places->root);
    free(places->complete);
    free(places->partial);
    free(places->aside);
    *places = (struct hub_places){ 0 };
}

enum tutti_status hub_make_folders(const char *path, bool is_file, struct tutti_error *err)
{
    char *part = strdup(path);
    enum tutti_status st = part ? TUTTI_OK : error_out_of_memory(path, err);
    for (char *c = part; st == TUTTI_OK && *c; c++) {
        bool is_end = c[1] == '\0' && !is_file;
        if (c == part || (*c != '/' && !is_end))
            continue;
        char kept = *c;
        *c = is_end ? kept : '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            st = error_from_errno(part, err);
        *c = kept;
    }
    free(part);
    return st;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info, (void)kind, (void)at;
    return remove(path) == 0 || errno == ENOENT ? 0 : -1;
}

enum { MAX_OPEN_FOLDERS = 16 };

enum tutti_status hub_remove_tree(const char *path, struct tutti_error *err)
{
    struct stat info;
    if (lstat(path, &info) != 0)
        return errno == ENOENT ? TUTTI_OK : error_from_errno(path, err);
    return nftw(path, remove_entry, MAX_OPEN_FOLDERS, FTW_DEPTH | FTW_PHYS) == 0
               ? TUTTI_OK
               : error_from_errno(path, err);
}

/* ---- the lock ---- */

enum { MAX_LOCK_TRIES = 1000 };

/* flock() has failed: errno has the reason. */
static enum tutti_status lock_failed(const struct hub_places *places, struct tutti_error *err)
{
    int why = errno;
    if (why == EWOULDBLOCK)
        return error_set(err, TUTTI_E_BUSY, "%s: another process is downloading it", places->partial);
    if (why != ENOSYS && why != ENOLCK && why != EOPNOTSUPP && why != ENOTSUP)
        return error_from_errno(places->partial, err);
    /* A network file system. The empty folder would be listed as an incomplete model. */
    char *path = strdup(places->partial);
    if (path && rmdir(path) == 0)
        hub_remove_empty_parents(path, places->root);
    free(path);
    return error_set(err, TUTTI_E_IO,
                     "%s: its file system cannot lock it: %s; set TUTTI_CACHE to a folder on a local disk",
                     places->partial, strerror(why));
}

enum tutti_status hub_lock(const struct hub_places *places, void (*waits)(void *user), void *user, int *out,
                           struct tutti_error *err)
{
    for (int i = 0; i < MAX_LOCK_TRIES; i++) {
        struct stat locked, there;
        enum tutti_status st = hub_make_folders(places->partial, false, err);
        if (st == TUTTI_E_NOT_FOUND)
            continue; /* another process has removed a parent */
        if (st != TUTTI_OK)
            return st;
        int fd = open(places->partial, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT)
            continue; /* another process has just completed it */
        if (fd < 0)
            return error_from_errno(places->partial, err);
        bool is_locked = flock(fd, LOCK_EX | LOCK_NB) == 0;
        if (!is_locked && errno == EWOULDBLOCK && waits) {
            waits(user);
            while (!(is_locked = flock(fd, LOCK_EX) == 0) && errno == EINTR)
                ;
        }
        if (!is_locked) {
            st = lock_failed(places, err);
            close(fd);
            return st;
        }
        /* The holder before may have renamed or removed the folder. */
        if (fstat(fd, &locked) == 0 && stat(places->partial, &there) == 0 && locked.st_ino == there.st_ino &&
            locked.st_dev == there.st_dev) {
            *out = fd;
            return TUTTI_OK;
        }
        close(fd);
    }
    return error_set(err, TUTTI_E_IO, "%s: other processes keep removing it", places->partial);
}

/* ---- publishing ---- */

/* Writes what the folder's parents contain to disk, where the file system can. */
static void sync_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fsync(fd); /* not every file system syncs folders; the files themselves were synced */
        close(fd);
    }
}

static char *join(const char *folder, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

/* Removes the state of the complete model's download, and the model that it replaced. A failure only leaves
 * what nobody reads; another pull may be removing it at the same time. */
static void remove_remains(const struct hub_places *places)
{
    char *state = join(places->complete, HUB_STATE_FOLDER);
    enum tutti_status st = state ? hub_remove_tree(state, NULL) : TUTTI_OK;
    (void)st;
    st = hub_remove_tree(places->aside, NULL);
    (void)st;
    free(state);
}

/* Of the rename of the incomplete folder: errno has the reason. */
static enum tutti_status rename_failed(const struct hub_places *places, struct tutti_error *err)
{
    const char *advice = errno == EXDEV ? "put the whole cache (TUTTI_CACHE) on one file system"
                                        : "make both writable, or set TUTTI_CACHE to another folder";
    return error_set(err, TUTTI_E_IO,
                     "%s: it cannot be renamed to %s: %s; nothing was removed: %s, and run the command again",
                     places->partial, places->complete, strerror(errno), advice);
}

/* Renames without an exchange: the old model is aside in the meantime, and is put back after a failure. If
 * the process ends in between, the next call finds it there. */
static enum tutti_status rename_in_turn(const struct hub_places *places, struct tutti_error *err)
{
    if (access(places->complete, F_OK) == 0) {
        enum tutti_status st = hub_remove_tree(places->aside, err);
        if (st != TUTTI_OK)
            return st;
        if (rename(places->complete, places->aside) != 0)
            return rename_failed(places, err);
    }
    if (rename(places->partial, places->complete) == 0)
        return TUTTI_OK;
    enum tutti_status st = rename_failed(places, err);
    if (rename(places->aside, places->complete) != 0 && errno != ENOENT)
        st = error_set(err, TUTTI_E_IO,
                       "%s: it cannot be renamed back to %s: %s; rename it, or pull the model again",
                       places->aside, places->complete, strerror(errno));
    return st;
}

/* Whether a rename failed because the file system or the kernel does not know the operation: for any other
 * reason the plain rename would fail, too. */
static bool is_unsupported(int error)
{
    return error == ENOSYS || error == EINVAL || error == ENOTSUP || error == EOPNOTSUPP;
}

/* Exchanges the incomplete folder with the complete one, and removes the latter; programs that have its files
 * open keep them. It is locked first: another pull would take it for an incomplete folder, and write into it
 * while it is being removed. *st: of the removal. False: errno has the reason. */
static bool replace(const struct hub_places *places, enum tutti_status *st, struct tutti_error *err)
{
    int old = open(places->complete, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (old < 0)
        return false;
    bool ok = flock(old, LOCK_EX) == 0 && os_exchange(places->partial, places->complete);
    int why = errno;
    if (ok)
        *st = hub_remove_tree(places->partial, err);
    close(old);
    errno = why;
    return ok;
}

/* Puts the incomplete folder in the place of the complete one. */
static enum tutti_status put_in_place(const struct hub_places *places, struct tutti_error *err)
{
    enum tutti_status st = TUTTI_OK;
    if (os_rename_new(places->partial, places->complete) || (errno == EEXIST && replace(places, &st, err)))
        return st;
    return is_unsupported(errno) ? rename_in_turn(places, err) : rename_failed(places, err);
}

enum tutti_status hub_publish(const struct hub_places *places, struct tutti_error *err)
{
    enum tutti_status st = hub_make_folders(places->complete, true, err);
    if (st != TUTTI_OK)
        return st;
    sync_folder(places->partial);
    st = put_in_place(places, err);
    if (st == TUTTI_OK)
        remove_remains(places); /* not before: the next pull continues with it after a failure */
    return st;
}

enum tutti_status hub_remove_leftovers(const struct hub_places *places, struct tutti_error *err)
{
    remove_remains(places);
    return hub_remove_tree(places->partial, err);
}

bool hub_add_model_path(struct buf *out, const struct hub_places *places, const struct hub_record *record)
{
    return buf_printf(out, "%s%s%s", places->complete, *record->open ? "/" : "", record->open);
}
