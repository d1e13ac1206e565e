/* Sums, gathering and agreement among ranks, over memory; how the loss of a rank shows. */
#include "support/ranks.h"

#include "base/system/team.h"
#include "cluster/monitor.h"
#include "cluster/transport.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* What a rank brings, in sizes from tiny to huge, so that another order of adding gives other bits. */
static float value_of(int rank, size_t i)
{
    uint32_t x = (uint32_t)(i * 2654435761u) ^ (uint32_t)(rank + 1) * 40503u * 65537u;
    x = (x ^ x >> 15) * 2246822519u;
    x ^= x >> 13;
    float scale[] = { 1e-4f, 1, 1e4f, 33 };
    return ((float)(x & 0xffff) / 65536.0f - 0.5f) * scale[(x >> 16) % 4];
}

static float sum_in_order(int n_ranks, size_t i)
{
    float sum = value_of(0, i);
    for (int r = 1; r < n_ranks; r++)
        sum += value_of(r, i);
    return sum;
}

/* Threads of ranks must not leave a test by a jump: what is wrong is counted. */
static atomic_int n_faults;

/* arg: not NULL: in memory of the cluster's. */
static void add_sizes(void *arg, struct cluster *c)
{
    bool is_shared = arg != NULL;
    struct team *team = NULL;
    n_faults += team_new(&team, &(struct team_options){ .n_threads = 2 }, NULL) != TUTTI_OK;
    /* one wait or two, whole vectors or not, several chunks */
    static const size_t SIZES[] = { 1, 15, 16, 17, 4096, 8192, 8193, 40001, (1 << 18) + 5, (1 << 20) + 33 };
    for (size_t k = 0; k < sizeof SIZES / sizeof *SIZES; k++) {
        size_t n = SIZES[k];
        float *x = is_shared ? cluster_alloc(c, n + 1) : malloc((n + 1) * sizeof *x);
        for (size_t i = 0; i < n; i++)
            x[i] = value_of(cluster_rank(c), i);
        x[n] = 7;
        n_faults += !cluster_reduce(c, k % 2 ? team : NULL, x, n);
        for (size_t i = 0; i < n; i++) {
            float want = sum_in_order(cluster_n_ranks(c), i);
            n_faults += memcmp(&x[i], &want, sizeof want) != 0;
        }
        n_faults += x[n] != 7;
        if (is_shared)
            cluster_dealloc(c, x);
        else
            free(x);
    }
    team_free(team);
    cluster_close(c);
}

/* Again and again in the same memory: a rank that is late must still find what was meant for it. */
static void add_rows(void *arg, struct cluster *c)
{
    (void)arg;
    static const struct {
        int n_rows, n;
    } CASES[] = { { 9, 4096 }, { 37, 515 }, { 2, 9000 }, { 700, 1024 }, { 8, 16 } };
    enum { MOST = 700 * 1024 };
    float *x = cluster_alloc(c, MOST);
    for (int turn = 0; turn < 25; turn++) {
        int n_rows = CASES[turn % 5].n_rows, n = CASES[turn % 5].n, begin, end;
        size_t n_all = (size_t)n_rows * (size_t)n;
        for (size_t i = 0; i < n_all; i++)
            x[i] = value_of(cluster_rank(c), i + (size_t)turn);
        cluster_own_rows(c, n_rows, &begin, &end);
        n_faults += !cluster_reduce_rows(c, NULL, x, n_rows, n);
        for (int i = begin * n; i < end * n; i++) {
            n_faults += x[i] != sum_in_order(cluster_n_ranks(c), (size_t)(i + turn));
            x[i] = -x[i]; /* what a rank does with its rows */
        }
        n_faults += !cluster_all_gather_rows(c, NULL, x, n_rows, n);
        for (size_t i = 0; i < n_all; i++) {
            n_faults += x[i] != -sum_in_order(cluster_n_ranks(c), i + (size_t)turn);
            x[i] = 1e30f; /* nobody reads it any more */
        }
    }
    cluster_dealloc(c, x);
    n_faults += cluster_prefers_scatter(c, 1, 4096) ||
                cluster_prefers_scatter(c, 128, 4096) != (cluster_n_ranks(c) > 1);
    cluster_close(c);
}

static void rows_of_a_sum_are_dealt_out_and_put_together(void **state)
{
    (void)state;
    n_faults = 0;
    for (int n = 1; n <= 5; n++) {
        ranks_run(n, 1, false, add_rows, NULL);
        ranks_run_in(&(struct ranks_setting){ .n_ranks = n, .n_groups = 1, .is_apart = true }, add_rows,
                     NULL);
    }
    assert_int_equal(n_faults, 0);
}

/* More pieces than there is a place for, and other sizes at the place of one that was given back. */
static void take_many(void *arg, struct cluster *c)
{
    enum { N = 12 };
    float *pieces[N];
    (void)arg;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < N; i++) {
            pieces[i] = cluster_alloc(c, (size_t)(20000 + 1000 * i));
            n_faults += !pieces[i] || (uintptr_t)pieces[i] % 64 != 0;
            for (int k = 0; k < 20000 + 1000 * i; k++)
                n_faults += pieces[i][k] != 0;
        }
        for (int i = 0; i < N; i++) {
            size_t n = (size_t)(20000 + 1000 * i);
            for (size_t k = 0; k < n; k++)
                pieces[i][k] = value_of(cluster_rank(c), k);
            n_faults += !cluster_reduce(c, NULL, pieces[i], n);
            for (size_t k = 0; k < n; k++)
                n_faults += pieces[i][k] != sum_in_order(cluster_n_ranks(c), k);
        }
        for (int i = N - 1; i >= 0; i--)
            cluster_dealloc(c, pieces[(i * 5 + round) % N]);
    }
    cluster_close(c);
}

static void memory_of_sums_is_taken_and_given_back(void **state)
{
    (void)state;
    n_faults = 0;
    ranks_run(3, 2, false, take_many, NULL);
    assert_int_equal(n_faults, 0);
}

static void sums_are_added_in_the_order_of_the_ranks(void **state)
{
    (void)state;
    n_faults = 0;
    for (int n = 1; n <= 8; n++)
        ranks_run(n, 1, false, add_sizes, &n);
    for (int n = 2; n <= 8; n += 3)
        ranks_run_in(&(struct ranks_setting){ .n_ranks = n, .n_groups = 1, .is_apart = true }, add_sizes, &n);
    ranks_run(3, 2, false, add_sizes, NULL); /* two groups side by side */
    ranks_run_in(&(struct ranks_setting){ .n_ranks = 3, .n_groups = 2, .is_apart = true }, add_sizes, NULL);
    assert_int_equal(n_faults, 0);
}

static void gather_rows(void *arg, struct cluster *c)
{
    (void)arg;
    enum { N_ROWS = 300 };
    int n = cluster_n_ranks(c), rank = cluster_rank(c), begins[9] = { 0 };
    for (int r = 0; r < n; r++)
        begins[r + 1] = begins[r] + 5 + 3 * r; /* uneven */
    int width = begins[n], own = begins[rank + 1] - begins[rank];
    float *part = malloc((size_t)(N_ROWS * own) * sizeof *part);
    float *whole = rank == 0 ? calloc((size_t)(N_ROWS * width), sizeof *whole) : NULL;
    for (int i = 0; i < N_ROWS * own; i++)
        part[i] = (float)(i / own * width + begins[rank] + i % own);
    n_faults += !cluster_gather_rows(c, whole, part, N_ROWS, begins);
    for (int i = 0; whole && i < N_ROWS * width; i++)
        n_faults += whole[i] != (float)i;
    free(part);
    free(whole);
    cluster_close(c);
}

static void rows_are_put_together_on_rank_0(void **state)
{
    (void)state;
    n_faults = 0;
    for (int n = 1; n <= 5; n++)
        ranks_run(n, 1, false, gather_rows, NULL);
    assert_int_equal(n_faults, 0);
}

struct collection {
    struct cluster *cluster;
    int next;
};

static void take_part(void *user, int group, const void *bytes, size_t n_bytes)
{
    struct collection *collection = user;
    const unsigned char *part = bytes;
    n_faults += group != collection->next++ || n_bytes != (size_t)(group % 3) * 70001;
    for (size_t i = 0; i < n_bytes; i++)
        n_faults += part[i] != (unsigned char)(i * 7 + (size_t)group);
}

static void collect(void *arg, struct cluster *c)
{
    struct tutti_error err;
    struct collection collection = { c, 1 };
    int group = cluster_group(c), n_groups = *(int *)arg;
    size_t n = (size_t)(group % 3) * 70001; /* of one in three nothing */
    unsigned char *part = malloc(n + 1);
    for (size_t i = 0; i < n; i++)
        part[i] = (unsigned char)(i * 7 + (size_t)group);
    if (cluster_rank(c) == 0)
        n_faults += cluster_collect(c, part, n, take_part, &collection, &err) != TUTTI_OK;
    n_faults += !cluster_end(c);
    n_faults += collection.next != (cluster_rank(c) == 0 && group == 0 ? n_groups : 1);
    free(part);
    cluster_close(c);
}

static void what_replicas_bring_is_taken_in_their_order(void **state)
{
    (void)state;
    n_faults = 0;
    for (int n_groups = 1; n_groups <= 7; n_groups += 2)
        for (int n_ranks = 1; n_ranks <= 2; n_ranks++)
            ranks_run(n_ranks, n_groups, n_groups == 3, collect, &n_groups);
    assert_int_equal(n_faults, 0);
}

static void agree(void *arg, struct cluster *c)
{
    struct tutti_error err = { 0 };
    int rank = cluster_rank(c), n = cluster_n_ranks(c);
    (void)arg;
    n_faults += cluster_agree(c, TUTTI_OK, &err) != TUTTI_OK;
    enum tutti_status st = rank == n - 1 ? error_set(&err, TUTTI_E_FORMAT, "no such file") : TUTTI_OK;
    n_faults += cluster_agree(c, st, &err) != TUTTI_E_FORMAT;
    char want[64];
    snprintf(want, sizeof want, "rank %d: no such file", n - 1);
    n_faults += strcmp(err.text, rank == n - 1 ? "no such file" : want) != 0;
    uint64_t value = (uint64_t)(100 - rank);
    n_faults += !cluster_min(c, &value) || value != (uint64_t)(100 - (n - 1));
    char plan[64] = "";
    if (rank == 0)
        strcpy(plan, "rows and pages");
    n_faults += !cluster_broadcast(c, plan, rank == 0 ? strlen(plan) + 1 : sizeof plan, true);
    n_faults += strcmp(plan, "rows and pages") != 0;
    n_faults += !cluster_end(c);
    cluster_close(c);
}

static void what_one_rank_says_all_know(void **state)
{
    (void)state;
    n_faults = 0;
    ranks_run(2, 1, false, agree, NULL);
    ranks_run(4, 2, true, agree, NULL);
    assert_int_equal(n_faults, 0);
}

/* Looks that the other rank has taken while it waits. */
static atomic_int n_looks;

static bool look(void *user)
{
    (void)user;
    n_looks++;
    return true;
}

static bool look_once(void *user)
{
    (void)user;
    return false;
}

static void await_twice(void *arg, struct cluster *c)
{
    char plan[16] = "";
    (void)arg;
    if (cluster_rank(c) == 0) {
        strcpy(plan, "rows");
        while (n_looks < 3)
            sched_yield();
        n_faults += !cluster_broadcast(c, plan, sizeof plan, false);
    } else {
        n_faults += !cluster_await(c, plan, sizeof plan, look, NULL) || strcmp(plan, "rows") != 0;
        n_faults += cluster_is_lost(c) || cluster_await(c, plan, sizeof plan, look_once, NULL);
    }
    cluster_close(c);
}

static void a_rank_that_awaits_the_first_one_may_look_at_other_work(void **state)
{
    (void)state;
    n_faults = 0;
    n_looks = 0;
    ranks_run(2, 1, false, await_twice, NULL);
    assert_int_equal(n_faults, 0);
}

static void wrong_numbers_are_refused(void **state)
{
    (void)state;
    static const struct {
        int started, n_ranks, n_groups;
        const char *words;
    } CASES[] = { { 2, 3, 1, "2 ranks were started, but tensor parallelism over 3 needs 3" },
                  { 4, 3, 2, "4 ranks were started, but 2 replicas of 3 ranks each need 6, 64 at most" },
                  { 3, 1, 2, "3 ranks were started, but 2 replicas of 1 rank each need 2, 64 at most" },
                  { 66, 33, 2, "66 ranks were started, but 2 replicas of 33 ranks each need 66, 64 at most" },
                  { 1, 0, 1, "over 0 ranks, expected 1 to 64" },
                  { 1, 65, 1, "over 65 ranks, expected 1 to 64" } };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct ranks_world *world = ranks_world(CASES[i].started);
        struct cluster *c = NULL;
        struct tutti_error err = { 0 };
        struct cluster_options options = { .n_ranks = CASES[i].n_ranks, .n_groups = CASES[i].n_groups };
        enum tutti_status st = cluster_new(&c, ranks_transport(world, 0), &options, true, &err);
        assert_int_equal(st, TUTTI_E_ARGUMENT);
        assert_non_null(strstr(err.text, CASES[i].words));
        assert_string_equal(err.param, CASES[i].n_groups > 1 ? "dp" : "tp");
        assert_null(c);
        ranks_world_free(world);
    }
}

/* ---- losses ---- */

static atomic_int n_told;

static void tell(void *user)
{
    (void)user;
    n_told++;
}

struct watcher {
    pthread_t thread;
    struct monitor *monitor;
    struct monitor_options options;
    const struct monitor_invitation *invitation;
    enum tutti_status status;
};

static void *join(void *arg)
{
    struct watcher *w = arg;
    struct tutti_error err = { 0 };
    w->status = monitor_join(&w->monitor, &w->options, w->invitation, &err);
    if (w->status == TUTTI_OK)
        w->status = monitor_start(w->monitor, &err);
    return NULL;
}

static void open_watchers(struct watcher *w, int n, struct monitor_invitation *invitation)
{
    n_told = 0;
    for (int r = 0; r < n; r++)
        w[r] = (struct watcher){
            .options = { .rank = r, .n_ranks = n, .is_local = true, .stays = true, .lost = tell },
            .invitation = invitation
        };
    assert_int_equal(monitor_listen(&w[0].monitor, &w[0].options, invitation, NULL), TUTTI_OK);
    for (int r = 1; r < n; r++)
        assert_int_equal(pthread_create(&w[r].thread, NULL, join, &w[r]), 0);
    assert_int_equal(monitor_start(w[0].monitor, NULL), TUTTI_OK);
    for (int r = 1; r < n; r++) {
        pthread_join(w[r].thread, NULL);
        assert_int_equal(w[r].status, TUTTI_OK);
    }
}

static void who_says_goodbye_is_not_lost(void **state)
{
    (void)state;
    struct watcher w[3];
    struct monitor_invitation invitation;
    open_watchers(w, 3, &invitation);
    monitor_free(w[2].monitor, true);
    usleep(700000); /* longer than a beat */
    assert_int_equal(monitor_lost(w[0].monitor), -1);
    assert_string_equal(monitor_text(w[0].monitor), "");
    monitor_free(w[0].monitor, true);
    usleep(100000);
    assert_int_equal(monitor_lost(w[1].monitor), -1);
    monitor_free(w[1].monitor, true);
    assert_int_equal(n_told, 0);
}

/* A rank whose process ends: here a child, so that its sockets close without a word. */
static void an_end_without_goodbye_is_a_loss(void **state)
{
    (void)state;
    struct watcher w[3];
    struct monitor_invitation invitation;
    n_told = 0;
    for (int r = 0; r < 3; r++)
        w[r] = (struct watcher){
            .options = { .rank = r, .n_ranks = 3, .is_local = true, .stays = true, .lost = tell },
            .invitation = &invitation
        };
    assert_int_equal(monitor_listen(&w[0].monitor, &w[0].options, &invitation, NULL), TUTTI_OK);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        join(&w[2]);
        usleep(300000);
        _exit(0); /* without a word */
    }
    assert_int_equal(pthread_create(&w[1].thread, NULL, join, &w[1]), 0);
    assert_int_equal(monitor_start(w[0].monitor, NULL), TUTTI_OK);
    pthread_join(w[1].thread, NULL);
    while (n_told < 2)
        usleep(1000);
    assert_int_equal(monitor_lost(w[0].monitor), 2);
    assert_int_equal(monitor_lost(w[1].monitor), 2); /* rank 0 told it */
    char want[64];
    snprintf(want, sizeof want, "process %d) was lost: its process ended", (int)child);
    assert_non_null(strstr(monitor_text(w[0].monitor), "rank 2 of 3 (host "));
    assert_non_null(strstr(monitor_text(w[0].monitor), want));
    assert_int_equal(n_told, 2);
    monitor_free(w[0].monitor, true);
    monitor_free(w[1].monitor, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_added_in_the_order_of_the_ranks),
        cmocka_unit_test(rows_of_a_sum_are_dealt_out_and_put_together),
        cmocka_unit_test(memory_of_sums_is_taken_and_given_back),
        cmocka_unit_test(rows_are_put_together_on_rank_0),
        cmocka_unit_test(what_replicas_bring_is_taken_in_their_order),
        cmocka_unit_test(what_one_rank_says_all_know),
        cmocka_unit_test(a_rank_that_awaits_the_first_one_may_look_at_other_work),
        cmocka_unit_test(wrong_numbers_are_refused),
        cmocka_unit_test(who_says_goodbye_is_not_lost),
        cmocka_unit_test(an_end_without_goodbye_is_a_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
