/* Chooses the size of the KV cache. */
#include "engine/run/engine.h"
#include "model/load/fit.h"

#include <stdio.h>

enum tutti_status engine_kv_too_small(struct kv_page_size page, uint64_t kv_bytes, bool is_given, int n_pages,
                                      int n_ctx, struct tutti_error *err)
{
    char budget[FIT_SIZE_BYTES], size[FIT_SIZE_BYTES], whole[FIT_SIZE_BYTES], shorter[64] = "",
                                                                              smaller[64] = "";
    uint64_t n_needed = (uint64_t)kv_pages_of(n_ctx, page.tokens);
    if (n_pages > 0)
        snprintf(shorter, sizeof shorter, ", or at most --context %d", n_pages * page.tokens);
    if (page.int8_bytes > 0)
        snprintf(smaller, sizeof smaller, ", or --kv-type int8, with which it needs %s",
                 fit_size_text(size, n_needed * page.int8_bytes));
    fit_size_text(budget, kv_bytes);
    fit_size_text(size, page.bytes);
    fit_size_text(whole, n_needed * page.bytes);
    return error_set_param(
        err, TUTTI_E_LIMIT, n_pages > 0 ? "max_context" : "kv_bytes",
        "%s of %s holds %lld tokens (%s for each page of %d tokens); the context of %d tokens "
        "needs %s: give --kv-memory %s%s%s",
        is_given ? "--kv-memory" : "without --kv-memory, the share of free memory", budget,
        (long long)n_pages * page.tokens, size, page.tokens, n_ctx, whole, whole, shorter, smaller);
}

enum tutti_status engine_kv_too_large(struct kv_page_size page, uint64_t kv_bytes, uint64_t bytes_left,
                                      int n_ctx, struct tutti_error *err)
{
    char budget[FIT_SIZE_BYTES], left[FIT_SIZE_BYTES], most[FIT_SIZE_BYTES];
    int64_t n_tokens = (int64_t)(fit_kv_bytes(bytes_left) / page.bytes) * page.tokens;
    uint64_t mib = fit_kv_bytes(bytes_left) >> 20;
    return error_set_param(
        err, TUTTI_E_LIMIT, "kv_bytes",
        "--kv-memory of %s, but %s of memory are available: give at most --kv-memory %s, which "
        "holds %lld tokens, %lld user%s of %d tokens",
        fit_size_text(budget, kv_bytes), fit_size_text(left, bytes_left), fit_size_text(most, mib << 20),
        (long long)n_tokens, (long long)(n_tokens / n_ctx), n_tokens / n_ctx == 1 ? "" : "s", n_ctx);
}

struct window_room engine_window_room(int page_tokens, int window, int max_batch_tokens, int n_ctx)
{
    enum { TYPICAL_TOKENS = 4096 };
    int64_t typical = 4 * (int64_t)window > TYPICAL_TOKENS ? 4 * (int64_t)window : TYPICAL_TOKENS;
    int64_t n_pages = kv_pages_of(typical < n_ctx ? typical : n_ctx, page_tokens);
    int64_t n_slots = model_window_slots(window, max_batch_tokens, page_tokens);
    if (window == 0 || n_slots >= n_pages)
        return (struct window_room){ 1, 1 };
    return (struct window_room){ (double)n_slots / (double)n_pages, (int)n_pages };
}

enum tutti_status engine_kv_pages(int *n_pages, struct kv_page_size page, uint64_t kv_bytes,
                                  uint64_t bytes_left, int n_seqs, int n_ctx, struct tutti_error *err)
{
    uint64_t budget = kv_bytes, most = UINT64_MAX; /* no limit: the prefix cache uses any number of pages */
    if (budget == 0) {
        budget = fit_kv_bytes(bytes_left);
        /* a beam needs one more, to copy the page that it shares */
        most = ((uint64_t)kv_pages_of(n_ctx, page.tokens) + 1) * (uint64_t)n_seqs;
    }
    uint64_t n = budget / page.bytes;
    if (n > most)
        n = most;
    if (n > INT32_MAX / 2)
        n = INT32_MAX / 2;
    if (n == 0)
        return engine_kv_too_small(page, budget, kv_bytes > 0, 0, n_ctx, err);
    *n_pages = (int)n;
    return TUTTI_OK;
}
