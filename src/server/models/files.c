#include "server/models/files.h"

#include "base/hash.h"
#include "base/system/os.h"
#include "base/text.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>

static uint64_t identity_of(const char *name, const struct stat *s)
{
    struct timespec modified = os_modified(s);
    const uint64_t numbers[] = { (uint64_t)s->st_dev, (uint64_t)s->st_ino, (uint64_t)s->st_size,
                                 (uint64_t)modified.tv_sec, (uint64_t)modified.tv_nsec };
    return hash64(hash64_string(1, name), numbers, sizeof numbers);
}

static bool holds_weights(const char *name)
{
    static const char *const ENDS[] = { ".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt" };
    for (size_t i = 0; i < sizeof ENDS / sizeof *ENDS; i++)
        if (text_ends_with(name, ENDS[i]))
            return true;
    return false;
}

struct totals {
    uint64_t identity, weight_bytes;
};

/* Of the files of a folder, whatever their order. */
static struct totals look(const char *path)
{
    struct totals totals = { 0 };
    struct stat s;
    const struct dirent *entry;
    if (stat(path, &s) != 0)
        return totals;
    if (!S_ISDIR(s.st_mode))
        return (struct totals){ identity_of("", &s), (uint64_t)s.st_size };
    DIR *folder = opendir(path);
    while (folder && (entry = readdir(folder))) {
        if (entry->d_name[0] == '.' || fstatat(dirfd(folder), entry->d_name, &s, 0) != 0 ||
            S_ISDIR(s.st_mode))
            continue;
        totals.identity += identity_of(entry->d_name, &s);
        totals.weight_bytes += holds_weights(entry->d_name) ? (uint64_t)s.st_size : 0;
    }
    if (folder)
        closedir(folder);
    return totals;
}

uint64_t files_identity(const char *path)
{
    return look(path).identity;
}

uint64_t files_weight_bytes(const char *path)
{
    return look(path).weight_bytes;
}
