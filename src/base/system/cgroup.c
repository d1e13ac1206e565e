#include "base/system/cgroup.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* A cgroup hierarchy: its mount point and file names. */
struct hierarchy {
    const char *mount;
    const char *controller; /* NULL: version 2, which has a single hierarchy */
    const char *limit, *used;
};

static bool read_number_file(const char *folder, const char *file, uint64_t *out)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    FILE *in = fopen(path, "re");
    bool ok = in && fscanf(in, "%" SCNu64, out) == 1; /* "max" is not a number: no limit */
    if (in)
        fclose(in);
    return ok;
}

/* "4:cpu,cpuacct:/a/b", of version 2 "0::/a/b": whether this is the hierarchy's line. *group:
 * "/a/b". */
static bool find_group(char *line, const char *controller, const char **group)
{
    char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;
    if (!path)
        return false;
    *path++ = '\0';
    path[strcspn(path, "\n")] = '\0';
    *group = path;
    list++;
    if (!controller)
        return *list == '\0';
    for (char *name; (name = strsep(&list, ","));) {
        if (strcmp(name, controller) == 0)
            return true;
    }
    return false;
}

/* The folder of this process's group; false: none. Inside a container the path may be the host's
 * and not exist: then the mount point is the group. */
static bool own_folder(const char *root, const struct hierarchy *h, char *out, size_t size)
{
    char path[PATH_MAX], line[PATH_MAX];
    const char *group = NULL;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *in = fopen(path, "re");
    bool found = false;
    while (in && !found && fgets(line, sizeof line, in))
        found = find_group(line, h->controller, &group);
    if (in)
        fclose(in);
    if (!found || strstr(group, "..") || strcmp(group, "/") == 0)
        group = "";
    int n = snprintf(out, size, "%s%s%s", root, h->mount, group);
    return n > 0 && (size_t)n < size;
}

/* Goes to the parent group; false at the top of the hierarchy. */
static bool go_up(char *folder, size_t n_top)
{
    char *slash = strrchr(folder, '/');
    if (!slash || strlen(folder) <= n_top)
        return false;
    *slash = '\0';
    return strlen(folder) >= n_top;
}

/* Bytes of file pages: the two lists in memory.stat ("inactive_file 4096"). */
static uint64_t file_bytes(const char *folder)
{
    char path[PATH_MAX + 64], line[256];
    uint64_t n_bytes, sum = 0;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    FILE *in = fopen(path, "re");
    while (in && fgets(line, sizeof line, in))
        if (sscanf(line, "inactive_file %" SCNu64, &n_bytes) == 1 ||
            sscanf(line, "active_file %" SCNu64, &n_bytes) == 1)
            sum += n_bytes;
    if (in)
        fclose(in);
    return sum;
}

uint64_t cgroup_memory_left(const char *root)
{
    static const struct hierarchy HIERARCHIES[] = {
        { "/sys/fs/cgroup", NULL, "memory.max", "memory.current" },
        { "/sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes" },
    };
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < sizeof HIERARCHIES / sizeof *HIERARCHIES; i++) {
        const struct hierarchy *h = &HIERARCHIES[i];
        char folder[PATH_MAX];
        if (!own_folder(root, h, folder, sizeof folder))
            continue;
        do {
            uint64_t limit, used;
            if (!read_number_file(folder, h->limit, &limit) || !read_number_file(folder, h->used, &used))
                continue;
            uint64_t reclaimable = file_bytes(folder);
            used -= reclaimable < used ? reclaimable : used;
            uint64_t left = limit > used ? limit - used : 0;
            least = left < least ? left : least;
        } while (go_up(folder, strlen(root) + strlen(h->mount)));
    }
    return least;
}

/* Version 2 has both in one file: "max 100000" or "200000 100000". */
static bool read_quota(const char *folder, bool is_2, int64_t *quota, int64_t *period)
{
    char path[PATH_MAX + 64];
    int n = 0;
    snprintf(path, sizeof path, "%s/%s", folder, is_2 ? "cpu.max" : "cpu.cfs_quota_us");
    FILE *in = fopen(path, "re");
    if (in) {
        n = fscanf(in, is_2 ? "%" SCNd64 " %" SCNd64 : "%" SCNd64, quota, period);
        fclose(in);
    }
    uint64_t period_1 = 0;
    if (!is_2 && n == 1 && read_number_file(folder, "cpu.cfs_period_us", &period_1) && period_1 < INT32_MAX) {
        *period = (int64_t)period_1;
        n = 2;
    }
    return n == 2 && *quota > 0 && *quota < INT64_MAX / 2 && *period > 0 && *period < INT32_MAX;
}

int cgroup_cores(const char *root)
{
    static const struct hierarchy HIERARCHIES[] = {
        { .mount = "/sys/fs/cgroup" },
        { .mount = "/sys/fs/cgroup/cpu", .controller = "cpu" },
    };
    int64_t least = INT_MAX;
    for (size_t i = 0; i < sizeof HIERARCHIES / sizeof *HIERARCHIES; i++) {
        const struct hierarchy *h = &HIERARCHIES[i];
        char folder[PATH_MAX];
        if (!own_folder(root, h, folder, sizeof folder))
            continue;
        do {
            int64_t quota, period, n;
            if (!read_quota(folder, !h->controller, &quota, &period))
                continue;
            n = (quota + period - 1) / period;
            least = n < least ? n : least;
        } while (go_up(folder, strlen(root) + strlen(h->mount)));
    }
    return least < INT_MAX ? (int)least : 0;
}
