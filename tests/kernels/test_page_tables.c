/* Page tables that are sent as changes: the other side always has what the sender has. */
#include "backend/page_tables.h"
#include "base/rng.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_SLOTS = 8, MAX_PAGES = 40 };

static void the_other_side_has_the_same_tables(void **state)
{
    (void)state;
    struct page_tables sent = { 0 }, got = { 0 };
    int32_t tables[N_SLOTS][MAX_PAGES];
    int lengths[N_SLOTS] = { 0 };
    assert_true(page_tables_reserve(&sent, N_SLOTS, MAX_PAGES));
    assert_true(page_tables_reserve(&got, N_SLOTS, MAX_PAGES));
    for (uint64_t round = 0; round < 20000; round++) {
        uint64_t r = mix64(round);
        int slot = (int)(r % N_SLOTS), first;
        int32_t *table = tables[slot];
        if (r >> 8 & 3 && lengths[slot] > 0 && lengths[slot] < MAX_PAGES) { /* it grows by a page */
            table[lengths[slot]++] = (int32_t)(r >> 20 & 1023);
        } else if ((r >> 10 & 3) == 0) { /* a new sequence, or one that shares its first pages */
            int n_kept = lengths[slot] > 0 ? (int)(r >> 12 & 7) % lengths[slot] : 0;
            lengths[slot] = n_kept + 1 + (int)(r >> 40) % (MAX_PAGES - n_kept);
            for (int i = n_kept; i < lengths[slot]; i++)
                table[i] = (int32_t)(mix64(r + (uint64_t)i) & 1023);
        } else if (lengths[slot] > 0) { /* a page was copied, or pages were dropped */
            table[(int)(r >> 40) % lengths[slot]] = (int32_t)(r >> 50);
            lengths[slot] -= (int)(r >> 16 & 1) * (lengths[slot] > 1);
        } else {
            continue;
        }
        int n = page_tables_change(&sent, slot, table, lengths[slot], &first);
        assert_true(page_tables_set(&got, slot, first, table + first, n));
        for (int s = 0; s < N_SLOTS; s++)
            if (lengths[s] > 0)
                assert_memory_equal(page_tables_get(&got, s), tables[s],
                                    (size_t)lengths[s] * sizeof *tables[s]);
    }
    page_tables_clear(&sent);
    page_tables_clear(&got);
}

/* 64 sequences of 4,096 tokens that decode: of 256 pages each, one is sent every 16 steps. */
static void a_decode_step_sends_new_pages_only(void **state)
{
    (void)state;
    enum { N_SEQS = 64, N_TOKENS = 4096, PAGE = 16, N_STEPS = 160, N_ALL = (N_TOKENS + N_STEPS) / PAGE + 1 };
    struct page_tables sent = { 0 };
    int32_t *table = calloc(N_ALL, sizeof *table);
    int n_sent = 0, first;
    assert_true(page_tables_reserve(&sent, N_SEQS, N_ALL));
    for (int i = 0; i < N_ALL; i++)
        table[i] = i;
    for (int s = 0; s < N_SEQS; s++)
        assert_int_equal(page_tables_change(&sent, s, table, N_TOKENS / PAGE, &first), N_TOKENS / PAGE);
    for (int step = 1; step <= N_STEPS; step++)
        for (int s = 0; s < N_SEQS; s++)
            n_sent += page_tables_change(&sent, s, table, (N_TOKENS + step + PAGE - 1) / PAGE, &first);
    assert_int_equal(n_sent, N_SEQS * N_STEPS / PAGE);
    page_tables_clear(&sent);
    free(table);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    struct page_tables got = { 0 };
    static const int32_t entries[MAX_PAGES] = { 0 };
    assert_true(page_tables_reserve(&got, 2, MAX_PAGES));
    assert_true(page_tables_set(&got, 1, 0, entries, MAX_PAGES));
    assert_false(page_tables_set(&got, 2, 0, entries, 1));
    assert_false(page_tables_set(&got, -1, 0, entries, 1));
    assert_false(page_tables_set(&got, 1, 1, entries, MAX_PAGES));
    assert_false(page_tables_set(&got, 1, -1, entries, 1));
    assert_false(page_tables_set(&got, 0, 1, entries, 1)); /* entry 0 is not known */
    assert_true(page_tables_has_room(&got, 2, MAX_PAGES));
    assert_false(page_tables_has_room(&got, 3, 1));
    page_tables_clear(&got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_other_side_has_the_same_tables),
        cmocka_unit_test(a_decode_step_sends_new_pages_only),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
