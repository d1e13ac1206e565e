/* Where the layers with a window of attention keep the keys and values of pages: slots, fewer than there
 * are pages, because a sequence sees only the last positions through these layers.
 *
 * A page has a slot from when its first row is computed. Sequences that still see the page are its
 * viewers. A slot without viewers keeps its content for the prefix cache until another page needs it,
 * least recently seen first.
 *
 * Without such layers, or if every page has a slot of its own, slot and page are the same number and
 * nothing is given back. */
#ifndef TUTTI_WINDOW_SLOTS_H
#define TUTTI_WINDOW_SLOTS_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct window_slots {
    bool is_identity; /* each page has the slot of its number */
    int n_slots, n_free, n_unseen;
    int32_t *free; /* [n_slots] stack */
    struct window_page {
        int32_t slot; /* -1: none */
        int32_t n_viewers;
        int32_t prev, next; /* list of the pages with a slot and no viewers */
    } * pages;
    int32_t oldest, newest;
};

/* n_slots: n_pages, or fewer. TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status window_slots_open(struct window_slots *w, int n_pages, int n_slots,
                                               struct tutti_error *err);
void window_slots_close(struct window_slots *w);

/* The slot of a page; -1: none. */
int32_t window_slots_of(const struct window_slots *w, int32_t page_id);

/* Gives a page without a slot one, and one viewer. False: all slots have viewers. */
MUST_CHECK bool window_slots_take(struct window_slots *w, int32_t page_id);

/* One viewer more, of a page that has a slot. */
void window_slots_see(struct window_slots *w, int32_t page_id);

/* One viewer less. keeps: the content may be of use to others. */
void window_slots_pass(struct window_slots *w, int32_t page_id, bool keeps);

/* The page is no more: its slot is free. It has no viewers. */
void window_slots_forget(struct window_slots *w, int32_t page_id);

/* Moves a page's slot and its viewer to another, which has none: their contents are the same. */
void window_slots_move(struct window_slots *w, int32_t from, int32_t to);

#endif
