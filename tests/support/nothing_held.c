#include "support/nothing_held.h"

#include "engine/run/engine_state.h"
#include "support/collect.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

/* After its last event a request may still be on its way through the threads. */
static void wait_until_gone(tutti_engine *e, struct tutti_stats *stats)
{
    int64_t n_alive = 1;
    for (int k = 0; k < 10000 && (n_alive > 0 || !engine_is_settled(e)); k++) {
        usleep(1000);
        pthread_mutex_lock(&e->lock);
        n_alive = e->n_alive;
        pthread_mutex_unlock(&e->lock);
    }
    assert_int_equal(n_alive, 0);
    wait_until_idle(e, stats);
}

static void check_shares(const struct shares *shares)
{
    int n = 0;
    for (int i = 0; i < SHARE_BUCKETS; i++)
        for (const struct share *share = shares->buckets[i]; share; share = share->next, n++) {
            assert_int_equal(share->n_requests, 0);
            assert_int_equal(share->n_choices, 0);
            assert_int_equal(share->n_slots, 0);
            assert_int_equal(atomic_load(&share->waiting), 0);
            assert_int_equal(atomic_load(&share->held_bytes), 0);
            assert_null(share->lanes);
        }
    assert_int_equal(shares->n_idle, n);
}

void assert_nothing_held(tutti_engine *e)
{
    struct tutti_stats stats;
    wait_until_gone(e, &stats);
    assert_int_equal(stats.kv_pages_free + stats.kv_pages_cached, stats.kv_pages_total);
    assert_int_equal(stats.draft_pages_used, 0);
    assert_int_equal(stats.n_finished + stats.n_cancelled + stats.n_failed, stats.n_requests);
    for (int i = 0; i < TUTTI_PRIORITIES; i++)
        assert_int_equal(stats.waiting[i].n, 0);
    assert_true(stats.waiting_tokens == 0);
    assert_false(stats.is_full);
    pthread_mutex_lock(&e->lock);
    assert_int_equal(e->n_live_choices, 0);
    assert_int_equal(e->n_free_slots, e->n_slots);
    assert_null(e->prepared_head);
    assert_int_equal(atomic_load(&e->request_memory.n_bytes), 0);
    check_shares(&e->shares);
    pthread_mutex_unlock(&e->lock);
    const struct scheduler *s = e->scheduler;
    assert_int_equal(s->n_taken + s->n_running + s->n_preempted + s->n_restoring, 0);
    assert_int_equal(s->queue.n, 0);
    assert_true(s->queue.weights == 0);
    assert_false(e->spill && spill_is_busy(e->spill));
}
