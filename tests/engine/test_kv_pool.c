/* The KV page pool. */
#include "base/rng.h"
#include "engine/kv/kv_pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_PAGES = 6, T = 16 };

static const struct kv_pool_options OPTIONS = {
    .n_pages = N_PAGES, .page_tokens = T, .n_slots = N_PAGES, .hash_seed = 1
};
static int n_passed; /* of kv_pool_match(), where every page has a slot */

static const struct kv_chain MODEL = { .adapter = -1 }, ADAPTER = { .adapter = 0 },
                             OTHER_ADAPTER = { .adapter = 1 }, TENANT = { .tenant = 7, .adapter = -1 },
                             OTHER_TENANT = { .tenant = 8, .adapter = -1 };

static int make_pool(void **state)
{
    struct kv_pool *pool = NULL;
    assert_int_equal(kv_pool_new(&pool, &OPTIONS, NULL), TUTTI_OK);
    *state = pool;
    return 0;
}

static int free_pool(void **state)
{
    kv_pool_free(*state);
    return 0;
}

/* ids of a text: the pages of texts that begin alike are alike. */
static void fill_ids(int32_t *ids, int n, int text)
{
    for (int i = 0; i < n; i++)
        ids[i] = text * 1000 + i;
}

/* Takes, fills and publishes n pages of a text, and keeps them. */
static void fill_pages(struct kv_pool *pool, const int32_t *ids, int n, int32_t *page_ids)
{
    assert_true(kv_pool_take(pool, n, page_ids));
    for (int i = 0; i < n; i++)
        page_ids[i] = kv_pool_publish(pool, page_ids[i], MODEL, i > 0 ? page_ids[i - 1] : KV_NO_PAGE,
                                      ids + i * T);
}

static void check_books(const struct kv_pool *pool, const int32_t *held, int n_held)
{
    int32_t n_holders[N_PAGES] = { 0 };
    for (int i = 0; i < n_held; i++)
        n_holders[held[i]]++;
    const char *complaint = kv_pool_audit(pool, n_holders, NULL);
    if (complaint)
        fail_msg("%s", complaint);
}

static void takes_all_pages_or_none(void **state)
{
    struct kv_pool *pool = *state;
    int32_t ids[N_PAGES] = { -5, -5, -5, -5, -5, -5 };
    assert_true(kv_pool_take(pool, 4, ids));
    assert_false(kv_pool_take(pool, 3, ids + 4));
    assert_int_equal(ids[4], -5);
    assert_int_equal(kv_pool_counts(pool).n_free, 2); /* the refused call took nothing */
    assert_int_equal(kv_pool_counts(pool).n_used, 4);
    check_books(pool, ids, 4);
    kv_pool_drop(pool, ids, 4, 0);
    assert_int_equal(kv_pool_counts(pool).n_free, N_PAGES);
}

static void a_page_lives_as_long_as_it_has_holders(void **state)
{
    struct kv_pool *pool = *state;
    int32_t id;
    assert_true(kv_pool_take(pool, 1, &id));
    assert_false(kv_pool_is_shared(pool, id));
    kv_pool_share(pool, &id, 1, 0);
    assert_true(kv_pool_is_shared(pool, id));
    kv_pool_drop(pool, &id, 1, 0);
    assert_int_equal(kv_pool_counts(pool).n_used, 1);
    kv_pool_drop(pool, &id, 1, 0);
    assert_int_equal(kv_pool_counts(pool).n_used, 0);
    assert_int_equal(kv_pool_counts(pool).n_cached, 0); /* nobody knows what stood in it */
}

static void a_published_beginning_is_found_again(void **state)
{
    struct kv_pool *pool = *state;
    int32_t ids[3 * T + 5], pages[3], found[3];
    fill_ids(ids, 3 * T + 5, 1);
    fill_pages(pool, ids, 3, pages);
    kv_pool_drop(pool, pages, 3, 0);
    assert_int_equal(kv_pool_counts(pool).n_cached, 3);
    assert_int_equal(kv_pool_match(pool, MODEL, ids, 3 * T + 5, found, &n_passed), 3);
    assert_memory_equal(found, pages, sizeof found);
    check_books(pool, found, 3);
    kv_pool_drop(pool, found, 3, 0);
    assert_int_equal(kv_pool_match(pool, MODEL, ids, 3 * T - 1, found, &n_passed), 2);
    kv_pool_drop(pool, found, 2, 0);
    ids[T + 3]++; /* the second page differs */
    assert_int_equal(kv_pool_match(pool, MODEL, ids, 3 * T, found, &n_passed), 1);
    kv_pool_drop(pool, found, 1, 0);
    ids[0]++; /* the third page is as it was, but what stands before it is not */
    assert_int_equal(kv_pool_match(pool, MODEL, ids, 3 * T, found, &n_passed), 0);
    assert_int_equal(kv_pool_match(pool, MODEL, ids + 2 * T, T, found, &n_passed), 0);
}

static void adapters_never_share_pages(void **state)
{
    struct kv_pool *pool = *state;
    int32_t ids[2 * T], page, found[2];
    fill_ids(ids, 2 * T, 1);
    assert_true(kv_pool_take(pool, 1, &page));
    assert_int_equal(kv_pool_publish(pool, page, ADAPTER, KV_NO_PAGE, ids), page);
    assert_int_equal(kv_pool_match(pool, MODEL, ids, 2 * T, found, &n_passed), 0);
    assert_int_equal(kv_pool_match(pool, OTHER_ADAPTER, ids, 2 * T, found, &n_passed), 0);
    assert_int_equal(kv_pool_match(pool, ADAPTER, ids, 2 * T, found, &n_passed), 1);
    assert_int_equal(found[0], page);
    int32_t held[2] = { page, page };
    check_books(pool, held, 2);
    kv_pool_drop(pool, held, 1, 0);
    kv_pool_drop(pool, held, 1, 0);
}

/* Both publish the same text, in whole chains; each finds its own pages and no others. */
static void tenants_never_share_pages(void **state)
{
    struct kv_pool *pool = *state;
    int32_t ids[2 * T], pages[2], found[2];
    fill_ids(ids, 2 * T, 1);
    assert_true(kv_pool_take(pool, 2, pages));
    assert_int_equal(kv_pool_publish(pool, pages[0], TENANT, KV_NO_PAGE, ids), pages[0]);
    assert_int_equal(kv_pool_publish(pool, pages[1], TENANT, pages[0], ids + T), pages[1]);
    assert_int_equal(kv_pool_match(pool, MODEL, ids, 2 * T, found, &n_passed), 0);
    assert_int_equal(kv_pool_match(pool, OTHER_TENANT, ids, 2 * T, found, &n_passed), 0);
    assert_int_equal(kv_pool_take_next(pool, OTHER_TENANT, pages[0], ids + T), KV_NO_PAGE);
    int32_t others[2];
    assert_true(kv_pool_take(pool, 2, others));
    assert_int_equal(kv_pool_publish(pool, others[0], OTHER_TENANT, KV_NO_PAGE, ids), others[0]);
    assert_int_equal(kv_pool_publish(pool, others[1], OTHER_TENANT, others[0], ids + T), others[1]);
    assert_int_equal(kv_pool_match(pool, TENANT, ids, 2 * T, found, &n_passed), 2);
    assert_memory_equal(found, pages, sizeof found);
    kv_pool_drop(pool, found, 2, 0);
    assert_int_equal(kv_pool_match(pool, OTHER_TENANT, ids, 2 * T, found, &n_passed), 2);
    assert_memory_equal(found, others, sizeof found);
    kv_pool_drop(pool, found, 2, 0);
    int32_t held[4] = { pages[0], pages[1], others[0], others[1] };
    check_books(pool, held, 4);
    kv_pool_drop(pool, held, 2, 0);
    kv_pool_drop(pool, others, 2, 0);
}

static void the_page_that_nobody_used_for_longest_goes_first(void **state)
{
    struct kv_pool *pool = *state;
    int32_t first[2 * T], second[2 * T], a[2], b[2], c[3], found[2];
    fill_ids(first, 2 * T, 1);
    fill_ids(second, 2 * T, 2);
    fill_pages(pool, first, 2, a);
    fill_pages(pool, second, 2, b);
    kv_pool_drop(pool, a, 2, 0);
    kv_pool_drop(pool, b, 2, 0);
    assert_int_equal(kv_pool_match(pool, MODEL, first, 2 * T, found, &n_passed),
                     2); /* used again: newer than the second */
    kv_pool_drop(pool, found, 2, 0);
    assert_true(kv_pool_take(pool, 3, c)); /* two free ones, one evicted: the second text's last page */
    assert_int_equal(kv_pool_counts(pool).n_evictions, 1);
    assert_int_equal(kv_pool_match(pool, MODEL, first, 2 * T, found, &n_passed), 2);
    kv_pool_drop(pool, found, 2, 0);
    assert_int_equal(kv_pool_match(pool, MODEL, second, 2 * T, found, &n_passed), 1);
    int32_t held[4] = { c[0], c[1], c[2], found[0] };
    check_books(pool, held, 4);
    kv_pool_drop(pool, found, 1, 0);
    kv_pool_drop(pool, c, 3, 0);
}

static void equal_pages_become_one(void **state)
{
    struct kv_pool *pool = *state;
    int32_t ids[2 * T], a[2], b[2];
    fill_ids(ids, 2 * T, 1);
    fill_pages(pool, ids, 2, a);
    fill_pages(pool, ids, 2, b);
    assert_memory_equal(a, b, sizeof a);
    assert_int_equal(kv_pool_counts(pool).n_used, 2);
    int32_t held[4] = { a[0], a[1], b[0], b[1] };
    check_books(pool, held, 4);
    kv_pool_drop(pool, a, 2, 0);
    kv_pool_drop(pool, b, 2, 0);
    assert_int_equal(kv_pool_counts(pool).n_cached, 2);
}

static void the_audit_sees_a_lost_and_an_invented_share(void **state)
{
    struct kv_pool *pool = *state;
    int32_t ids[2], n_holders[N_PAGES] = { 0 };
    assert_true(kv_pool_take(pool, 2, ids));
    n_holders[ids[0]] = 1;
    assert_non_null(kv_pool_audit(pool, n_holders, NULL)); /* ids[1] is held by nobody */
    n_holders[ids[1]] = 2;
    assert_non_null(kv_pool_audit(pool, n_holders, NULL)); /* once too often */
    n_holders[ids[1]] = 1;
    assert_null(kv_pool_audit(pool, n_holders, NULL));
    kv_pool_drop(pool, ids, 2, 0);
}

/* A tiny token alphabet and few slots: prefixes meet, pages are evicted and found again all the time. Whatever a match
 * returns must hold the requested ids, by a record that the test keeps. */
static void random_use_never_hands_out_a_wrong_page(void **state)
{
    (void)state;
    enum { N = 40, N_SEQS = 5, MAX = 12 };
    struct kv_pool *pool = NULL;
    assert_int_equal(
        kv_pool_new(&pool,
                    &(struct kv_pool_options){ .n_pages = N, .page_tokens = T, .n_slots = N, .hash_seed = 7 },
                    NULL),
        TUTTI_OK);
    static int32_t content[N][T];
    int32_t tables[N_SEQS][MAX], ids[MAX * T];
    int n[N_SEQS] = { 0 };
    uint64_t n_matched = 0;
    for (uint64_t round = 0; round < 20000; round++) {
        int seq = (int)(mix64(round) % N_SEQS), want = 1 + (int)(mix64(round + 1) % (MAX - 1));
        kv_pool_drop(pool, tables[seq], n[seq], 0);
        n[seq] = 0;
        for (int i = 0; i < want * T; i++)
            ids[i] = i % T == 0 ? (int32_t)(mix64(round * 64 + (uint64_t)(i / T)) % 2) : 5;
        struct kv_chain chain = { .tenant = mix64(round + 2) % 2, .adapter = -1 };
        int n_found = kv_pool_match(pool, chain, ids, want * T, tables[seq], &n_passed);
        for (int i = 0; i < n_found; i++)
            assert_memory_equal(content[tables[seq][i]], ids + i * T, sizeof content[0]);
        n_matched += (uint64_t)n_found;
        n[seq] = n_found;
        if (kv_pool_take(pool, want - n_found, tables[seq] + n_found)) {
            n[seq] = want;
            for (int i = n_found; i < want; i++) {
                memcpy(content[tables[seq][i]], ids + i * T, sizeof content[0]);
                tables[seq][i] = kv_pool_publish(pool, tables[seq][i], chain,
                                                 i > 0 ? tables[seq][i - 1] : KV_NO_PAGE, ids + i * T);
            }
        }
        int32_t n_holders[N] = { 0 };
        for (int s = 0; s < N_SEQS; s++)
            for (int i = 0; i < n[s]; i++)
                n_holders[tables[s][i]]++;
        const char *complaint = kv_pool_audit(pool, n_holders, NULL);
        if (complaint)
            fail_msg("round %llu: %s", (unsigned long long)round, complaint);
    }
    assert_true(n_matched > 1000);
    assert_true(kv_pool_counts(pool).n_evictions > 1000);
    kv_pool_free(pool);
}

/* The same with fewer slots than pages: the pages that the next row sees through layers with a window have slots, and these
 * hold what was computed. */
static void random_use_never_loses_what_a_window_sees(void **state)
{
    (void)state;
    enum { N = 60, N_SLOTS = 16, N_SEQS = 4, MAX = 14, WINDOW = 3 * T + 5 };
    struct kv_pool *pool = NULL;
    const struct kv_pool_options options = {
        .n_pages = N, .page_tokens = T, .n_slots = N_SLOTS, .window = WINDOW, .hash_seed = 7
    };
    assert_int_equal(kv_pool_new(&pool, &options, NULL), TUTTI_OK);
    assert_int_equal(kv_pool_passable(pool, WINDOW - 1), 0);
    assert_int_equal(kv_pool_passable(pool, WINDOW - 1 + T), 1);
    static int32_t content[N_SLOTS][T];
    int32_t tables[N_SEQS][MAX], ids[MAX * T];
    int n[N_SEQS] = { 0 }, passed[N_SEQS] = { 0 };
    int n_matched = 0, n_shortened = 0, n_refused = 0, n_forks = 0;
    for (uint64_t round = 0; round < 20000; round++) {
        int seq = (int)(mix64(round) % N_SEQS), want = 1 + (int)(mix64(round + 1) % (MAX - 1));
        kv_pool_drop(pool, tables[seq], n[seq], passed[seq]);
        n[seq] = passed[seq] = 0;
        if (mix64(round + 3) % 8 == 0) { /* as another one goes on */
            int from = (seq + 1) % N_SEQS;
            memcpy(tables[seq], tables[from], sizeof tables[0]);
            kv_pool_share(pool, tables[seq], n[from], passed[from]);
            n[seq] = n[from];
            passed[seq] = passed[from];
            n_forks++;
            want = 0;
        }
        for (int i = 0; i < want * T; i++)
            ids[i] = i % T == 0 ? (int32_t)(mix64(round * 64 + (uint64_t)(i / T)) % 3 == 0) : 5;
        if (want > 0) {
            n[seq] = kv_pool_match(pool, MODEL, ids, want * T, tables[seq], &passed[seq]);
            n_matched += n[seq];
            n_shortened += passed[seq] > 0;
        }
        for (int i = passed[seq]; want > 0 && i < n[seq]; i++) {
            int32_t slot = kv_pool_slot(pool, tables[seq][i]);
            assert_in_range(slot, 0, N_SLOTS - 1);
            assert_memory_equal(content[slot], ids + i * T, sizeof content[0]);
        }
        for (int i = n[seq]; i < want; i++) {
            int32_t page;
            if (!kv_pool_take(pool, 1, &page))
                break;
            if (!kv_pool_take_slot(pool, page)) {
                kv_pool_drop(pool, &page, 1, 0);
                n_refused++;
                break;
            }
            memcpy(content[kv_pool_slot(pool, page)], ids + i * T, sizeof content[0]);
            tables[seq][i] = kv_pool_publish(pool, page, MODEL, i > 0 ? tables[seq][i - 1] : KV_NO_PAGE,
                                             ids + i * T);
            n[seq] = i + 1;
            int passable = kv_pool_passable(pool, n[seq] * T);
            kv_pool_pass(pool, tables[seq] + passed[seq], passable - passed[seq]);
            passed[seq] = passable;
        }
        int32_t n_holders[N] = { 0 }, n_viewers[N] = { 0 };
        for (int s = 0; s < N_SEQS; s++)
            for (int i = 0; i < n[s]; i++) {
                n_holders[tables[s][i]]++;
                n_viewers[tables[s][i]] += i >= passed[s];
            }
        const char *complaint = kv_pool_audit(pool, n_holders, n_viewers);
        if (complaint)
            fail_msg("round %llu: %s", (unsigned long long)round, complaint);
    }
    assert_true(n_matched > 1000 && n_shortened > 100 && n_forks > 100 && n_refused > 10);
    for (int s = 0; s < N_SEQS; s++)
        kv_pool_drop(pool, tables[s], n[s], passed[s]);
    assert_int_equal(kv_pool_slots_left(pool), N_SLOTS);
    kv_pool_free(pool);
}

/* The state after n_ids tokens, updated token by token in the slot of the last page. Continues after the
 * first n pages, whose last one has a slot. Returns the pages now held, all after *passed with slots. */
static int compute_state(struct kv_pool *pool, uint64_t *states, const int32_t *ids, int n_ids,
                         int32_t *table, int n, int *passed)
{
    for (int position = n * T; position < n_ids; position++) {
        if (position % T == 0) { /* a snapshot of the state stays with the page before */
            assert_true(kv_pool_take(pool, 1, &table[n]));
            assert_true(kv_pool_take_slot(pool, table[n]));
            uint64_t before = n > 0 ? states[kv_pool_slot(pool, table[n - 1])] : 0;
            states[kv_pool_slot(pool, table[n++])] = before;
        }
        uint64_t *state = &states[kv_pool_slot(pool, table[n - 1])];
        *state = mix64(*state + (uint64_t)ids[position]);
        if (position % T == T - 1)
            table[n - 1] = kv_pool_publish(pool, table[n - 1], MODEL, n > 1 ? table[n - 2] : KV_NO_PAGE,
                                           ids + position + 1 - T);
        int passable = kv_pool_passable(pool, position + 1);
        kv_pool_pass(pool, table + *passed, passable - *passed);
        *passed = passable;
    }
    return n;
}

/* A layer with a state instead of keys and values is a layer with a window of two positions: a row needs
 * what the position before it left. Its slots hold states, of which a sequence needs one or two, and those
 * that the prefix cache keeps are snapshots at the ends of pages. */
static void a_window_of_two_positions_keeps_states(void **unused)
{
    (void)unused;
    enum { N = 40, N_SLOTS = 5, N_IDS = 10 * T + 3 };
    const struct kv_pool_options options = {
        .n_pages = N, .page_tokens = T, .n_slots = N_SLOTS, .window = 2, .hash_seed = 7
    };
    struct kv_pool *pool = NULL;
    uint64_t states[N_SLOTS], expected = 0;
    int32_t ids[N_IDS], table[N], other[N];
    int passed = 0, other_passed = 0;
    assert_int_equal(kv_pool_new(&pool, &options, NULL), TUTTI_OK);
    fill_ids(ids, N_IDS, 3);
    for (int i = 0; i < N_IDS; i++)
        expected = mix64(expected + (uint64_t)ids[i]);

    int n = compute_state(pool, states, ids, N_IDS, table, 0, &passed);
    assert_int_equal(n, 11);
    assert_int_equal(passed, 10); /* one slot is in use, the others are snapshots */
    assert_true(states[kv_pool_slot(pool, table[n - 1])] == expected);
    assert_int_equal(kv_pool_slots_left(pool), N_SLOTS - 1);

    int n_found = kv_pool_match(pool, MODEL, ids, N_IDS, other, &other_passed);
    assert_int_equal(n_found, 10); /* where the newest snapshot is */
    assert_int_equal(other_passed, 9);
    int n_other = compute_state(pool, states, ids, N_IDS, other, n_found, &other_passed);
    assert_true(states[kv_pool_slot(pool, other[n_other - 1])] == expected);
    assert_true(kv_pool_slot(pool, other[n_other - 1]) != kv_pool_slot(pool, table[n - 1]));
    kv_pool_drop(pool, other, n_other, other_passed);

    n_found = kv_pool_match(pool, MODEL, ids, 3 * T, other, &other_passed);
    assert_int_equal(n_found, 0); /* the snapshots of the first pages are gone: compute again */
    kv_pool_drop(pool, table, n, passed);
    assert_int_equal(kv_pool_slots_left(pool), N_SLOTS);
    kv_pool_free(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(takes_all_pages_or_none, make_pool, free_pool),
        cmocka_unit_test_setup_teardown(a_page_lives_as_long_as_it_has_holders, make_pool, free_pool),
        cmocka_unit_test_setup_teardown(a_published_beginning_is_found_again, make_pool, free_pool),
        cmocka_unit_test_setup_teardown(adapters_never_share_pages, make_pool, free_pool),
        cmocka_unit_test_setup_teardown(tenants_never_share_pages, make_pool, free_pool),
        cmocka_unit_test_setup_teardown(the_page_that_nobody_used_for_longest_goes_first, make_pool,
                                        free_pool),
        cmocka_unit_test_setup_teardown(equal_pages_become_one, make_pool, free_pool),
        cmocka_unit_test_setup_teardown(the_audit_sees_a_lost_and_an_invented_share, make_pool, free_pool),
        cmocka_unit_test(random_use_never_hands_out_a_wrong_page),
        cmocka_unit_test(random_use_never_loses_what_a_window_sees),
        cmocka_unit_test(a_window_of_two_positions_keeps_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
