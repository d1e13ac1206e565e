#include "base/memory_left.h"

#include "base/cgroup.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

static uint64_t machine_bytes(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    char line[256];
    uint64_t kib = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            break;
    if (file)
        fclose(file);
    if (kib > 0)
        return kib * 1024;
    long pages = sysconf(_SC_AVPHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 0;
}

uint64_t memory_left(void)
{
    uint64_t machine = machine_bytes(), group = cgroup_memory_left("");
    return group < machine ? group : machine;
}
