/* Workers: the order in which owners' items are worked on, counted, with one thread and a gate; and all of it with many threads. */
#include "base/system/workers.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MAX_ORDER = 64 };

struct item {
    struct work_item work;
    int owner;
};

struct desk {
    pthread_mutex_t gate; /* held while items are queued: the first one waits for it */
    int order[MAX_ORDER], n;
    atomic_int running[8], most;
    atomic_int n_done;
};

static void note(void *user, struct work_item *work)
{
    struct desk *desk = user;
    struct item *item = (struct item *)work;
    pthread_mutex_lock(&desk->gate);
    desk->order[desk->n++] = item->owner;
    pthread_mutex_unlock(&desk->gate);
    free(item);
}

static struct workers *start(struct desk *desk, work_fn *work, int n_threads)
{
    struct workers *workers = NULL;
    struct tutti_error err;
    const struct workers_options options = {
        .name = "tutti-test", .n_threads = n_threads, .work = work, .user = desk
    };
    assert_int_equal(workers_new(&workers, &options, &err), TUTTI_OK);
    return workers;
}

static void add(struct workers *workers, int owner, uint64_t cost)
{
    struct item *item = calloc(1, sizeof *item);
    assert_non_null(item);
    item->owner = owner;
    item->work.cost = cost;
    assert_true(workers_add(workers, (uint64_t)owner, &item->work));
}

/* Until the first item waits at the gate. */
static void wait_for_first(struct workers *workers)
{
    struct workers_counts counts;
    for (workers_counts(workers, &counts); counts.n_running == 0; workers_counts(workers, &counts))
        sched_yield();
}

static void check_order(const struct desk *desk, const int *expected, int n)
{
    assert_int_equal(desk->n, n);
    for (int i = 0; i < n && i < desk->n; i++)
        assert_int_equal(desk->order[i], expected[i]);
}

/* One owner has queued many items before the others came: theirs do not wait for them. */
static void owners_alternate(void **state)
{
    (void)state;
    struct desk desk = { .gate = PTHREAD_MUTEX_INITIALIZER };
    struct workers *workers = start(&desk, note, 1);
    pthread_mutex_lock(&desk.gate);
    for (int i = 0; i < 5; i++)
        add(workers, 1, 10);
    wait_for_first(workers);
    add(workers, 2, 10);
    add(workers, 2, 10);
    add(workers, 3, 10);
    pthread_mutex_unlock(&desk.gate);
    workers_free(workers);
    check_order(&desk, (int[]){ 1, 2, 3, 1, 2, 1, 1, 1 }, 8);
}

/* Turns are counted in cost: of two owners, the one with items of a tenth of the cost has ten of them for one of the other. */
static void turns_are_counted_in_cost(void **state)
{
    (void)state;
    struct desk desk = { .gate = PTHREAD_MUTEX_INITIALIZER };
    struct workers *workers = start(&desk, note, 1);
    pthread_mutex_lock(&desk.gate);
    add(workers, 9, 1);
    wait_for_first(workers);
    for (int i = 0; i < 2; i++)
        add(workers, 1, 1000);
    for (int i = 0; i < 12; i++)
        add(workers, 2, 100);
    pthread_mutex_unlock(&desk.gate);
    workers_free(workers);
    check_order(&desk, (int[]){ 9, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 2, 2 }, 15);
}

/* What was charged afterwards counts too, also while the owner has nothing queued; an owner that was idle saves nothing up. */
static void what_is_charged_later_counts(void **state)
{
    (void)state;
    struct desk desk = { .gate = PTHREAD_MUTEX_INITIALIZER };
    struct workers *workers = start(&desk, note, 1);
    pthread_mutex_lock(&desk.gate);
    add(workers, 9, 1);
    wait_for_first(workers);
    add(workers, 1, 10);
    add(workers, 1, 10);
    add(workers, 2, 10);
    add(workers, 2, 10);
    add(workers, 2, 10);
    workers_charge(workers, 1, 15);
    workers_charge(workers, 77, 15); /* unknown: nothing */
    pthread_mutex_unlock(&desk.gate);
    workers_free(workers);
    check_order(&desk, (int[]){ 9, 2, 2, 1, 2, 1 }, 6);
}

/* ---- many threads ---- */

static void count(void *user, struct work_item *work)
{
    struct desk *desk = user;
    struct item *item = (struct item *)work;
    int now = atomic_fetch_add(&desk->running[item->owner], 1) + 1;
    int most = atomic_load(&desk->most);
    while (now > most && !atomic_compare_exchange_weak(&desk->most, &most, now))
        ;
    atomic_fetch_add(&desk->n_done, 1);
    atomic_fetch_sub(&desk->running[item->owner], 1);
    free(item);
}

/* However many threads there are, an owner has one of them at a time; all that was queued is worked on before the end. */
static void an_owner_has_one_thread_at_a_time(void **state)
{
    (void)state;
    struct desk desk = { .n = 0 };
    struct workers *workers = start(&desk, count, 4);
    for (int i = 0; i < 4000; i++)
        add(workers, i % 5, (uint64_t)(i % 7 + 1));
    struct workers_counts counts;
    workers_counts(workers, &counts);
    assert_int_equal(counts.n_owners, 5);
    workers_free(workers);
    assert_int_equal(atomic_load(&desk.n_done), 4000);
    assert_int_equal(atomic_load(&desk.most), 1);
}

/* Owners without work and debt are forgotten. */
static void owners_without_debt_are_forgotten(void **state)
{
    (void)state;
    struct desk desk = { .n = 0 };
    struct workers *workers = start(&desk, count, 1);
    struct workers_counts counts;
    for (int i = 0; i < 3000; i++) {
        struct item *item = calloc(1, sizeof *item);
        assert_non_null(item);
        item->work.cost = 5;
        assert_true(workers_add(workers, (uint64_t)i, &item->work));
        for (workers_counts(workers, &counts); counts.n_waiting + counts.n_running > 0;
             workers_counts(workers, &counts))
            sched_yield();
        assert_in_range(counts.n_owners, 0, 9);
    }
    assert_int_equal(counts.n_done, 3000);
    workers_free(workers);
}

/* ---- an end right after the last item ---- */

struct adder {
    struct workers *workers;
    struct item item;
};

static void count_done(void *user, struct work_item *work)
{
    struct desk *desk = user;
    (void)work;
    atomic_fetch_add(&desk->n_done, 1);
}

static void *add_one(void *arg)
{
    struct adder *adder = arg;
    return workers_add(adder->workers, 1, &adder->item.work) ? adder : NULL;
}

/* Whoever knows that an item has run may free the workers, though the thread that added it is not back yet. The thread sanitizer
 * watches. */
static void may_be_freed_as_soon_as_an_item_has_run(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        struct desk desk = { .gate = PTHREAD_MUTEX_INITIALIZER };
        struct adder adder = { .workers = start(&desk, count_done, 2) };
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, add_one, &adder), 0);
        while (atomic_load(&desk.n_done) == 0)
            sched_yield();
        workers_free(adder.workers);
        void *added;
        pthread_join(thread, &added);
        assert_non_null(added);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(owners_alternate),
        cmocka_unit_test(turns_are_counted_in_cost),
        cmocka_unit_test(what_is_charged_later_counts),
        cmocka_unit_test(an_owner_has_one_thread_at_a_time),
        cmocka_unit_test(owners_without_debt_are_forgotten),
        cmocka_unit_test(may_be_freed_as_soon_as_an_item_has_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
