/* Checks all invariants after every step, so that a lost or doubly used page is noticed at once. */
#include "base/log.h"
#include "engine/run/engine_state.h"

#include <stdlib.h>

#if TUTTI_AUDIT
static atomic_bool is_auditing = true;
#else
static atomic_bool is_auditing = false;
#endif

void engine_set_audit(bool is_on)
{
    atomic_store(&is_auditing, is_on);
}

void audit_check(struct tutti_engine *e)
{
    if (!atomic_load_explicit(&is_auditing, memory_order_relaxed))
        return;
    const char *complaint = scheduler_audit(e->scheduler);
    if (!complaint && e->spill)
        complaint = spill_audit(e->spill);
    if (!complaint && e->draft)
        complaint = draft_audit(e->draft, e->scheduler->seqs);
    if (complaint) {
        log_error("audit after step %llu: %s", (unsigned long long)e->stats.now.n_steps, complaint);
        abort();
    }
}
