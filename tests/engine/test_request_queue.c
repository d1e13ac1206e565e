/* The request queue: which request starts next: shares, priorities, ageing, time limits, and the service of owners. */
#include "engine/schedule/request_queue.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_OWNERS = 8, MAX_REQUESTS = 512, PROMPT = 100 };

struct bench {
    struct request_queue queue;
    struct share shares[MAX_OWNERS];
    struct request *requests[MAX_REQUESTS];
    int n_requests;
    double served[MAX_OWNERS]; /* work */
    uint64_t now_us;
};

static struct bench *bench_new(void)
{
    struct bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    assert_int_equal(request_queue_init(&b->queue, MAX_REQUESTS, NULL), TUTTI_OK);
    b->now_us = 1;
    return b;
}

static void bench_free(struct bench *b)
{
    for (int i = 0; i < b->n_requests; i++)
        free(b->requests[i]);
    request_queue_clear(&b->queue);
    free(b);
}

static struct request *add(struct bench *b, int owner, double weight, int priority)
{
    struct request *r = calloc(1, sizeof *r);
    assert_non_null(r);
    assert_true(b->n_requests < MAX_REQUESTS);
    b->requests[b->n_requests++] = r;
    r->serial = (uint64_t)b->n_requests;
    r->share = &b->shares[owner];
    r->spec.owner = (uint64_t)owner;
    r->spec.weight = weight;
    r->spec.priority = priority;
    r->submit_us = b->now_us;
    request_queue_add(&b->queue, r);
    return r;
}

/* Lets the next one begin with so much work. Returns its owner; -1: nobody waits. */
static int serve(struct bench *b, double work)
{
    struct request *r = request_queue_best(&b->queue, b->now_us, NULL, NULL);
    if (!r)
        return -1;
    request_queue_start(&b->queue, r, work, b->now_us);
    b->served[r->spec.owner] += work;
    return (int)r->spec.owner;
}

static void one_owner_is_served_in_order_of_arrival(void **state)
{
    (void)state;
    struct bench *b = bench_new();
    struct request *r[5];
    for (int i = 0; i < 5; i++)
        r[i] = add(b, 0, 1, 0);
    request_queue_remove(&b->queue, r[2]);
    request_queue_remove(&b->queue, r[2]); /* it is not in the queue */
    for (int i = 0; i < 5; i++)
        if (i != 2) {
            assert_ptr_equal(request_queue_best(&b->queue, b->now_us, NULL, NULL), r[i]);
            serve(b, PROMPT);
        }
    assert_null(request_queue_best(&b->queue, b->now_us, NULL, NULL));
    assert_int_equal(b->queue.n, 0);
    assert_true(b->queue.weights == 0);
    bench_free(b);
}

static void a_flood_delays_anothers_request_by_its_share_alone(void **state)
{
    (void)state;
    struct bench *b = bench_new();
    for (int i = 0; i < 300; i++)
        add(b, 0, 1, 0);
    for (int i = 0; i < 50; i++)
        serve(b, PROMPT);
    b->now_us += 3600ull * 1000 * 1000; /* however long the flood has waited */
    add(b, 1, 1, 0);
    int n_before = 0;
    while (serve(b, PROMPT) != 1)
        n_before++;
    assert_true(n_before <= 1);
    bench_free(b);
}

static void owners_share_by_weight_whatever_the_size_of_their_requests(void **state)
{
    (void)state;
    static const double weights[] = { 1, 2, 5 };
    static const double work[] = { 1000, 10, 170 };
    struct bench *b = bench_new();
    for (int n = 0; n < 160; n++)
        for (int owner = 0; owner < 3; owner++)
            add(b, owner, weights[owner], 0);
    while (b->shares[0].lanes && b->shares[1].lanes && b->shares[2].lanes) {
        struct request *next = request_queue_best(&b->queue, b->now_us, NULL, NULL);
        serve(b, work[next->spec.owner]);
        b->now_us += 10 * 1000 * 1000; /* longer than a step of ageing: of one priority it has no effect */
    }
    double least = b->served[0], most = 0;
    for (int owner = 0; owner < 3; owner++) {
        double share = b->served[owner] / weights[owner];
        least = share < least ? share : least;
        most = share > most ? share : most;
    }
    assert_true(most - least <= 1000 + 170 / 5. + 10 / 2.); /* the largest request of each, by its weight */
    bench_free(b);
}

static void an_owner_who_was_away_saves_nothing_up(void **state)
{
    (void)state;
    struct bench *b = bench_new();
    for (int i = 0; i < 100; i++)
        add(b, 0, 1, 0);
    for (int i = 0; i < 60; i++)
        serve(b, PROMPT);
    for (int i = 0; i < 40; i++)
        add(b, 1, 1, 0);
    for (int i = 0; i < 40; i++)
        serve(b, PROMPT);
    assert_in_range((int)b->served[1], 19 * PROMPT, 21 * PROMPT);
    /* Nor does going away for a moment pay off debts. */
    struct bench *c = bench_new();
    add(c, 0, 1, 0);
    add(c, 1, 1, 0);
    serve(c, 50 * PROMPT);
    serve(c, PROMPT);
    for (int i = 0; i < 20; i++)
        add(c, 0, 1, 0), add(c, 1, 1, 0);
    for (int i = 0; i < 20; i++)
        assert_int_equal(serve(c, PROMPT), 1);
    bench_free(c);
    bench_free(b);
}

static void better_priorities_begin_first(void **state)
{
    (void)state;
    struct bench *b = bench_new();
    add(b, 0, 1, 3);
    add(b, 1, 1, 0);
    add(b, 2, 1, TUTTI_PRIORITY_FIRST);
    add(b, 1, 1, TUTTI_PRIORITY_LAST);
    add(b, 1, 1, -1);
    static const int want[] = { 2, 1, 1, 0, 1, -1 };
    for (int i = 0; i < 6; i++)
        assert_int_equal(serve(b, PROMPT), want[i]);
    bench_free(b);
}

/* Requests of a better priority come without end; one of a worse one waits for its ageing and no longer. */
static void nobody_waits_for_ever(void **state)
{
    (void)state;
    struct bench *b = bench_new();
    add(b, 0, 1, 4);
    add(b, 0, 1, 4);
    add(b, 1, 1, 0);
    int served_at[2] = { 0 }, n_served = 0;
    for (int second = 1; second < 200 && n_served < 2; second++) {
        b->now_us += 1000 * 1000;
        if (serve(b, PROMPT) == 0)
            served_at[n_served++] = second;
        else
            add(b, 1, 1, 0);
    }
    assert_in_range(served_at[0], 40, 42);
    assert_in_range(served_at[1] - served_at[0], 40, 42); /* ageing begins anew: it is no way to the top */
    bench_free(b);
}

static void ageing_never_overtakes_the_best(void **state)
{
    (void)state;
    struct bench *b = bench_new();
    add(b, 0, 1, 0);
    serve(b, 1000 * PROMPT); /* owner 0 has had much */
    add(b, 0, 1, 10);
    add(b, 1, 1, 0);
    b->now_us += 500ull * 1000 * 1000; /* both count as 0 by now, and the shares decide */
    add(b, 1, 1, 0);
    assert_int_equal(serve(b, PROMPT), 1);
    assert_int_equal(serve(b, PROMPT), 1);
    assert_int_equal(serve(b, PROMPT), 0);
    bench_free(b);
}

static void count_late(void *user, struct request *r)
{
    struct bench *b = user;
    assert_true(r->deadline_us <= b->now_us);
    request_queue_remove(&b->queue, r);
}

static void each_is_late_at_its_own_time(void **state)
{
    (void)state;
    struct bench *b = bench_new();
    enum { N = 50 };
    for (int i = 0; i < N; i++) {
        struct request *r = add(b, i % 3, 1, i % 5);
        request_queue_remove(&b->queue, r);
        r->deadline_us = (uint64_t)(i * 7 % N) * 100 + 100;
        request_queue_add(&b->queue, r);
    }
    struct request *begun = add(b, 0, 1, 0), *patient = add(b, 1, 1, 0);
    request_queue_remove(&b->queue, begun);
    begun->deadline_us = 1;
    begun->n_started = 1; /* other choices of it run */
    request_queue_add(&b->queue, begun);
    for (int i = 1; i <= N; i++) {
        b->now_us = (uint64_t)i * 100 - 1;
        request_queue_drop_late(&b->queue, b->now_us, count_late, b);
        assert_int_equal(b->queue.n, N - i + 3);
        b->now_us++;
        request_queue_drop_late(&b->queue, b->now_us, count_late, b);
        assert_int_equal(b->queue.n, N - i + 2);
    }
    assert_true(begun->lane && patient->lane);
    bench_free(b);
}

static void choices_that_are_left_go_before_their_owners_others(void **state)
{
    (void)state;
    struct bench *b = bench_new();
    struct request *first = add(b, 0, 1, 0);
    struct request *second = add(b, 0, 1, 0);
    serve(b, PROMPT);
    first->n_started = 1;
    request_queue_add(&b->queue, first);
    assert_ptr_equal(request_queue_best(&b->queue, b->now_us, NULL, NULL), first);
    request_queue_remove(&b->queue, first);
    assert_ptr_equal(request_queue_best(&b->queue, b->now_us, NULL, NULL), second);
    bench_free(b);
}

static void classes_are_counted(void **state)
{
    (void)state;
    struct bench *b = bench_new();
    struct tutti_waiting waiting[TUTTI_PRIORITIES];
    add(b, 0, 1, -10);
    b->now_us += 500;
    add(b, 1, 1, -10);
    add(b, 1, 1, 10);
    b->now_us += 1000;
    request_queue_count(&b->queue, waiting, b->now_us);
    assert_int_equal(waiting[0].n, 2);
    assert_int_equal(waiting[0].oldest_us, 1500);
    assert_int_equal(waiting[TUTTI_PRIORITIES - 1].n, 1);
    assert_int_equal(waiting[TUTTI_PRIORITIES - 1].oldest_us, 1000);
    assert_int_equal(waiting[10].n, 0);
    bench_free(b);
}

/* The same queue in a thousand random ways: nothing is lost, every lane is free again. */
static void random_use_loses_nobody(void **state)
{
    (void)state;
    struct bench *b = bench_new();
    uint64_t random = 1;
    int n = 0;
    struct request *all[MAX_REQUESTS];
    for (int i = 0; i < MAX_REQUESTS; i++) {
        all[i] = add(b, i % MAX_OWNERS, 1 + i % 3, i % TUTTI_PRIORITIES + TUTTI_PRIORITY_FIRST);
        request_queue_remove(&b->queue, all[i]);
    }
    for (int i = 0; i < 20000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        struct request *r = all[(random >> 33) % MAX_REQUESTS];
        b->now_us += 1000;
        if (!r->lane) {
            request_queue_add(&b->queue, r);
            n++;
        } else if (random >> 63) {
            request_queue_remove(&b->queue, r);
            n--;
        } else {
            n -= serve(b, PROMPT) >= 0;
        }
        int n_found = 0;
        for (struct request *at = request_queue_first(&b->queue); at; at = request_queue_next(at))
            n_found++;
        assert_int_equal(n_found, n);
        assert_int_equal(b->queue.n, n);
    }
    while (serve(b, PROMPT) >= 0)
        n--;
    assert_int_equal(n, 0);
    int n_free = 0;
    for (const struct lane *lane = b->queue.free; lane; lane = lane->next)
        n_free++;
    assert_int_equal(n_free, MAX_REQUESTS);
    bench_free(b);
}

/* ---- accounts ---- */

static void an_owner_is_remembered_until_many_others_came(void **state)
{
    (void)state;
    struct shares *shares = calloc(1, sizeof *shares);
    assert_non_null(shares);
    struct share *a = share_take(shares, 7);
    a->service = 42;
    assert_ptr_equal(share_take(shares, 7), a);
    share_drop(shares, a);
    share_drop(shares, a);
    for (uint64_t i = 0; i < SHARES_REMEMBERED - 1; i++)
        share_drop(shares, share_take(shares, 1000 + i));
    assert_ptr_equal(share_take(shares, 7), a);
    assert_true(a->service == 42);
    for (uint64_t i = 0; i < 5000; i++) /* not forgotten while it has a request */
        share_drop(shares, share_take(shares, 100000 + i));
    assert_true(a->service == 42);
    assert_int_equal(shares->n_idle, SHARES_REMEMBERED);
    share_drop(shares, a);
    for (uint64_t i = 0; i < SHARES_REMEMBERED; i++)
        share_drop(shares, share_take(shares, 200000 + i));
    a = share_take(shares, 7);
    assert_true(a->service == 0);
    share_drop(shares, a);
    shares_clear(shares);
    free(shares);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_owner_is_served_in_order_of_arrival),
        cmocka_unit_test(a_flood_delays_anothers_request_by_its_share_alone),
        cmocka_unit_test(owners_share_by_weight_whatever_the_size_of_their_requests),
        cmocka_unit_test(an_owner_who_was_away_saves_nothing_up),
        cmocka_unit_test(better_priorities_begin_first),
        cmocka_unit_test(nobody_waits_for_ever),
        cmocka_unit_test(ageing_never_overtakes_the_best),
        cmocka_unit_test(each_is_late_at_its_own_time),
        cmocka_unit_test(choices_that_are_left_go_before_their_owners_others),
        cmocka_unit_test(classes_are_counted),
        cmocka_unit_test(random_use_loses_nobody),
        cmocka_unit_test(an_owner_is_remembered_until_many_others_came),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
