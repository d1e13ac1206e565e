#include "scratch.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[SCRATCH_MAX_PATH / 2];

static const char *path_of(const char *name)
{
    static char path[SCRATCH_MAX_PATH];
    snprintf(path, sizeof path, "%s/%s", scratch_folder(), name);
    return path;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *place)
{
    (void)info;
    (void)kind;
    (void)place;
    return remove(path);
}

static void remove_folder(void)
{
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

const char *scratch_folder(void)
{
    if (folder[0])
        return folder;
    snprintf(folder, sizeof folder, "%s/tutti-fuzz-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(folder))
        abort();
    atexit(remove_folder);
    return folder;
}

const char *scratch_write(const char *name, const void *bytes, size_t n_bytes)
{
    const char *path = path_of(name);
    FILE *file = fopen(path, "wb");
    if (!file || (n_bytes > 0 && fwrite(bytes, 1, n_bytes, file) != n_bytes) || fclose(file) != 0)
        abort();
    return path;
}

void scratch_remove(const char *name)
{
    unlink(path_of(name));
}
