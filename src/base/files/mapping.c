#include "base/files/mapping.h"

#include "base/system/os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A repository cloned without Git LFS has a three-line text instead of each large file. The first
 * line names the specification (the second URL is from the format's old name). */
static bool is_lfs_pointer(const struct mapping *map)
{
    static const char *const STARTS[] = { "version https://git-lfs.github.com/spec/",
                                          "version https://hawser.github.com/spec/" };
    enum { MAX_POINTER_BYTES = 1024 }; /* by the specification */
    for (size_t i = 0; map->n_bytes < MAX_POINTER_BYTES && i < sizeof STARTS / sizeof *STARTS; i++) {
        size_t n = strlen(STARTS[i]);
        if (map->n_bytes > n && memcmp(map->bytes, STARTS[i], n) == 0)
            return true;
    }
    return false;
}

enum tutti_status mapping_open(struct mapping *out, const char *path, struct tutti_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* opening a pipe must not wait for a writer */
    if (fd < 0)
        return error_from_errno(path, err);
    enum tutti_status st = TUTTI_OK;
    struct stat info;
    if (fstat(fd, &info) != 0) {
        st = error_set(err, TUTTI_E_IO, "%s: %s", path, strerror(errno));
        goto done;
    }
    if (!S_ISREG(info.st_mode)) {
        st = error_set(err, TUTTI_E_FORMAT, "%s: not a regular file", path);
        goto done;
    }
    void *bytes = NULL;
    if (info.st_size > 0)
        bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED) {
        st = error_set(err, TUTTI_E_MEMORY, "%s: cannot map %lld bytes: %s", path, (long long)info.st_size,
                       strerror(errno));
        goto done;
    }
    *out = (struct mapping){ .bytes = bytes, .n_bytes = (size_t)info.st_size, .name = strdup(path) };
    if (!out->name) {
        mapping_close(out);
        st = error_out_of_memory(path, err);
    } else if (is_lfs_pointer(out)) {
        mapping_close(out);
        st = error_set(err, TUTTI_E_FORMAT,
                       "%s: a Git LFS pointer, not the file itself; run \"git lfs pull\" in its "
                       "folder",
                       path);
    }
done:
    close(fd); /* the mapping stays */
    return st;
}

void mapping_close(struct mapping *map)
{
    if (map->bytes && !map->is_borrowed)
        munmap((void *)(uintptr_t)map->bytes, map->n_bytes);
    free(map->name);
    *map = (struct mapping){ 0 };
}

enum tutti_status mapping_borrow(struct mapping *out, const void *bytes, size_t n_bytes, const char *name,
                                 struct tutti_error *err)
{
    *out = (struct mapping){ .bytes = bytes, .n_bytes = n_bytes, .name = strdup(name), .is_borrowed = true };
    return out->name ? TUTTI_OK : error_out_of_memory(name, err);
}

void mapping_forget(const struct mapping *map, const void *data, size_t n_bytes)
{
    uintptr_t page = os_page_bytes();
    uintptr_t begin = ((uintptr_t)data + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)data + n_bytes) / page * page;
    if (map->bytes && !map->is_borrowed && end > begin)
        madvise((void *)begin, end - begin, MADV_DONTNEED);
}
