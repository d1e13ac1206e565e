#include "base/system/memory_left.h"

#include "base/system/cgroup.h"
#include "base/system/os.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A line "NAME: N kB" of a file of /proc, in bytes; 0: there is none. */
static uint64_t find_line(const char *path, const char *name)
{
    FILE *file = fopen(path, "re");
    char line[256];
    size_t n_name = strlen(name);
    uint64_t kib = 0;
    while (file && kib == 0 && fgets(line, sizeof line, file))
        if (strncmp(line, name, n_name) == 0 && line[n_name] == ':')
            kib = strtoull(line + n_name + 1, NULL, 10);
    if (file)
        fclose(file);
    return kib * 1024;
}

static uint64_t machine_bytes(const char *root)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/proc/meminfo", root);
    uint64_t n_bytes = n > 0 && (size_t)n < sizeof path ? find_line(path, "MemAvailable") : 0;
    return n_bytes > 0 ? n_bytes : os_memory_free();
}

uint64_t memory_left(const char *root)
{
    uint64_t machine = machine_bytes(root), group = cgroup_memory_left(root);
    return group < machine ? group : machine;
}

uint64_t memory_resident(void)
{
    return find_line("/proc/self/smaps_rollup", "Pss");
}
