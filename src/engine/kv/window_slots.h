/* Window slots: memory for the keys and values of pages in the layers with sliding-window attention.
 * There are fewer slots than pages, because in these layers a row attends only to the last positions.
 *
 * A page gets a slot before its first row is computed. Its viewers are the sequences with further rows
 * that attend to it. A slot without viewers keeps its content for the prefix cache until another page
 * needs the slot; the least recently seen slot is reused first.
 *
 * Without such layers, or if there are as many slots as pages, each page always has the slot of its
 * number. */
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

/* The slot of a page. -1: none, so its keys and values in these layers are unknown. */
int32_t window_slots_of(const struct window_slots *w, int32_t page_id);

/* Assigns a slot to a page that has none; the page then has one viewer. False: all slots have
 * viewers. */
MUST_CHECK bool window_slots_take(struct window_slots *w, int32_t page_id);

/* Adds a viewer to a page that has a slot. */
void window_slots_see(struct window_slots *w, int32_t page_id);

/* Removes a viewer. keeps: if it was the last one, the content stays for the prefix cache. */
void window_slots_pass(struct window_slots *w, int32_t page_id, bool keeps);

/* Frees the slot of a page that is evicted. The page has no viewers. */
void window_slots_forget(struct window_slots *w, int32_t page_id);

/* Moves the slot and the only viewer of a page to another page without a slot, which has the same
 * content. */
void window_slots_move(struct window_slots *w, int32_t from, int32_t to);

#endif
