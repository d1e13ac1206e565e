/* For tests: copies of pages that are complete at once. */
#ifndef TUTTI_TESTS_KV_PAGES_H
#define TUTTI_TESTS_KV_PAGES_H

#include "backend/backend.h"

/* host: on a card, memory of kv_reserve_host(). */
static inline void kv_read_now(struct backend *be, struct kv_memory *kv, int32_t page_id, void *host)
{
    be->ops->kv_read_begin(be, kv, 0, page_id, host);
    (void)be->ops->kv_is_copied(be, kv, 0, true);
}

static inline void kv_write_now(struct backend *be, struct kv_memory *kv, int32_t page_id, const void *host)
{
    be->ops->kv_write_begin(be, kv, 0, host);
    (void)be->ops->kv_is_copied(be, kv, 0, true);
    be->ops->kv_write_end(be, kv, 0, page_id, host);
}

#endif
