/* How much memory the KV cache may have. */
#include "engine/engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MIB = 1 << 20, HEADROOM_MIB = 512 };

static uint64_t available_bytes(void)
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

static bool read_number(const char *path, uint64_t *out)
{
    FILE *file = fopen(path, "re");
    bool ok = file && fscanf(file, "%" SCNu64, out) == 1; /* "max" is no number: no limit */
    if (file)
        fclose(file);
    return ok;
}

/* Pages of files count as used, but the kernel takes them back when memory is asked for: the two lists of them in
 * memory.stat ("inactive_file 4096"). */
static uint64_t file_bytes(const char *stat_path)
{
    FILE *file = fopen(stat_path, "re");
    char line[256];
    uint64_t n_bytes, sum = 0;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "inactive_file %" SCNu64, &n_bytes) == 1 ||
            sscanf(line, "active_file %" SCNu64, &n_bytes) == 1)
            sum += n_bytes;
    if (file)
        fclose(file);
    return sum;
}

/* What the control group leaves, versions 2 and 1; UINT64_MAX: no limit. */
static uint64_t cgroup_bytes(void)
{
    static const struct {
        const char *limit, *used, *stat;
    } files[] = {
        { "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat" },
        { "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes",
          "/sys/fs/cgroup/memory/memory.stat" },
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        uint64_t limit, used, reclaimable;
        if (!read_number(files[i].limit, &limit) || !read_number(files[i].used, &used))
            continue;
        reclaimable = file_bytes(files[i].stat);
        used -= reclaimable < used ? reclaimable : used;
        return limit > used ? limit - used : 0;
    }
    return UINT64_MAX;
}

enum tutti_status engine_kv_pages(int *n_pages, size_t page_bytes, uint64_t kv_bytes, int n_seqs, int n_ctx,
                                  struct tutti_error *err)
{
    uint64_t budget = kv_bytes;
    if (budget == 0) {
        uint64_t available = available_bytes(), group = cgroup_bytes();
        if (group < available)
            available = group;
        uint64_t headroom = (uint64_t)HEADROOM_MIB * MIB + available / 8;
        budget = available > headroom ? available - headroom : available / 2;
    }
    uint64_t n_context = ((uint64_t)n_ctx + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
    uint64_t n = budget / page_bytes, most = n_context * (uint64_t)n_seqs;
    if (n > most)
        n = most;
    if (n > INT32_MAX / 2)
        n = INT32_MAX / 2;
    if (n == 0)
        return error_set_param(err, TUTTI_E_LIMIT, "kv_bytes",
                               "the KV cache may use %" PRIu64 " bytes, but one page of %d tokens needs %zu",
                               budget, KV_PAGE_TOKENS, page_bytes);
    *n_pages = (int)n;
    return TUTTI_OK;
}
