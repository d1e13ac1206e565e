/* What a step does before its operations. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/step_args.h"

/* Carries out the changes of page tables. */
KERNEL(set_pages, struct set_pages_args, 128)
{
    int i = block_id() * 128 + thread_id();
    if (i >= a.n)
        return;
    struct table_change change = a.changes[i];
    int32_t *table = change.table == 0 ? a.tables[0] : a.tables[1];
    table[change.index] = change.page;
}

/* Rows whose token the step before has drawn get its id. */
KERNEL(feed_tokens, struct feed_tokens_args, 128)
{
    int i = block_id() * 128 + thread_id();
    if (i < a.n && a.sources[i] >= 0)
        a.token_ids[i] = a.results[a.sources[i]].token;
}
