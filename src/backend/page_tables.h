/* Copies of page tables in another memory, a rank's or a device's. Between two steps most entries stay
 * the same, so only the changed ones are sent. */
#ifndef TUTTI_BACKEND_PAGE_TABLES_H
#define TUTTI_BACKEND_PAGE_TABLES_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Sender and receiver each have one, and make the same changes to it. All zero: empty. */
struct page_tables {
    int n_slots, max_pages;
    int32_t *lengths; /* [n_slots]: entries that are known */
    int32_t *pages;   /* [n_slots][max_pages] */
};

/* Makes room, and forgets all entries. False: out of memory; nothing changed. */
MUST_CHECK bool page_tables_reserve(struct page_tables *tables, int n_slots, int max_pages);
void page_tables_clear(struct page_tables *tables);

static inline bool page_tables_has_room(const struct page_tables *tables, int n_slots, int max_pages)
{
    return n_slots <= tables->n_slots && max_pages <= tables->max_pages;
}

/* Sender: the slot's table is now table [n]. Returns how many entries, from *first on, must be sent
 * to the receiver. */
int page_tables_change(struct page_tables *tables, int slot, const int32_t *table, int n, int *first);

/* Receiver: sets entries first..first + n - 1 of the slot's table. False: they do not fit, or would
 * leave a gap. */
MUST_CHECK bool page_tables_set(struct page_tables *tables, int slot, int first, const int32_t *entries,
                                int n);
/* Valid until page_tables_reserve(). */
const int32_t *page_tables_get(const struct page_tables *tables, int slot);

#endif
