#include "backend/page_tables.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

bool page_tables_reserve(struct page_tables *t, int n_slots, int max_pages)
{
    assert(n_slots >= 1 && max_pages >= 1);
    struct page_tables next = { .n_slots = n_slots, .max_pages = max_pages };
    next.lengths = calloc((size_t)n_slots, sizeof *next.lengths);
    next.pages = calloc((size_t)n_slots, (size_t)max_pages * sizeof *next.pages);
    if (!next.lengths || !next.pages) {
        page_tables_clear(&next);
        return false;
    }
    page_tables_clear(t);
    *t = next;
    return true;
}

void page_tables_clear(struct page_tables *t)
{
    free(t->lengths);
    free(t->pages);
    *t = (struct page_tables){ 0 };
}

static int32_t *table_of(const struct page_tables *t, int slot)
{
    return t->pages + (size_t)slot * (size_t)t->max_pages;
}

int page_tables_change(struct page_tables *t, int slot, const int32_t *table, int n, int *first)
{
    assert(slot >= 0 && slot < t->n_slots && n <= t->max_pages);
    int32_t *known = table_of(t, slot);
    int n_known = t->lengths[slot], n_common = n < n_known ? n : n_known, begin = 0, end = n;
    while (begin < n_common && known[begin] == table[begin])
        begin++;
    while (n <= n_known && end > begin && known[end - 1] == table[end - 1])
        end--;
    memcpy(known + begin, table + begin, (size_t)(end - begin) * sizeof *known);
    if (n > n_known)
        t->lengths[slot] = n;
    *first = begin;
    return end - begin;
}

bool page_tables_set(struct page_tables *t, int slot, int first, const int32_t *entries, int n)
{
    if (slot < 0 || slot >= t->n_slots || first < 0 || n < 0 || n > t->max_pages - first ||
        first > t->lengths[slot])
        return false;
    memcpy(table_of(t, slot) + first, entries, (size_t)n * sizeof *entries);
    if (first + n > t->lengths[slot])
        t->lengths[slot] = first + n;
    return true;
}

const int32_t *page_tables_get(const struct page_tables *t, int slot)
{
    return table_of(t, slot);
}
