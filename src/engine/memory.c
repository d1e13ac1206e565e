/* How much memory the KV cache may have. */
#include "base/cgroup.h"
#include "engine/engine.h"

#include <inttypes.h>
#include <stdio.h>
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

enum tutti_status engine_kv_pages(int *n_pages, size_t page_bytes, uint64_t kv_bytes, int n_seqs, int n_ctx,
                                  struct tutti_error *err)
{
    uint64_t budget = kv_bytes;
    if (budget == 0) {
        uint64_t available = available_bytes(), group = cgroup_memory_left("");
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
