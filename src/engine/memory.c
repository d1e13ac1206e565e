/* How much memory the KV cache may have. */
#include "engine/engine.h"

#include <inttypes.h>

enum { MIB = 1 << 20, HEADROOM_MIB = 512 };

enum tutti_status engine_kv_pages(int *n_pages, size_t page_bytes, uint64_t kv_bytes, uint64_t bytes_left,
                                  int n_seqs, int n_ctx, struct tutti_error *err)
{
    uint64_t budget = kv_bytes, most = UINT64_MAX; /* what idle conversations may keep has no bound */
    if (budget == 0) {
        uint64_t headroom = (uint64_t)HEADROOM_MIB * MIB + bytes_left / 8;
        budget = bytes_left > headroom ? bytes_left - headroom : bytes_left / 2;
        most = ((uint64_t)n_ctx + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS * (uint64_t)n_seqs;
    }
    uint64_t n = budget / page_bytes;
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
