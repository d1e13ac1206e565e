#include "engine/kv/window_slots.h"

#include <assert.h>
#include <stdlib.h>

enum { NONE = -1 };

enum tutti_status window_slots_open(struct window_slots *w, int n_pages, int n_slots, struct tutti_error *err)
{
    *w = (struct window_slots){
        .is_identity = n_slots >= n_pages, .n_slots = n_slots, .oldest = NONE, .newest = NONE
    };
    if (w->is_identity)
        return TUTTI_OK;
    w->free = malloc((size_t)n_slots * sizeof *w->free);
    w->pages = calloc((size_t)n_pages, sizeof *w->pages);
    if (!w->free || !w->pages) {
        window_slots_close(w);
        return error_set(err, TUTTI_E_MEMORY, "slots of %d KV pages: out of memory", n_pages);
    }
    for (int i = 0; i < n_pages; i++)
        w->pages[i].slot = NONE;
    for (int i = n_slots - 1; i >= 0; i--)
        w->free[w->n_free++] = i;
    return TUTTI_OK;
}

void window_slots_close(struct window_slots *w)
{
    free(w->free);
    free(w->pages);
    *w = (struct window_slots){ 0 };
}

int32_t window_slots_of(const struct window_slots *w, int32_t page_id)
{
    return w->is_identity ? page_id : w->pages[page_id].slot;
}

static void list_remove(struct window_slots *w, int32_t page_id)
{
    const struct window_page *page = &w->pages[page_id];
    *(page->prev != NONE ? &w->pages[page->prev].next : &w->oldest) = page->next;
    *(page->next != NONE ? &w->pages[page->next].prev : &w->newest) = page->prev;
    w->n_unseen--;
}

static void list_add(struct window_slots *w, int32_t page_id)
{
    struct window_page *page = &w->pages[page_id];
    page->prev = w->newest;
    page->next = NONE;
    *(w->newest != NONE ? &w->pages[w->newest].next : &w->oldest) = page_id;
    w->newest = page_id;
    w->n_unseen++;
}

static void window_slots_put_free(struct window_slots *w, int32_t page_id)
{
    w->free[w->n_free++] = w->pages[page_id].slot;
    w->pages[page_id].slot = NONE;
}

bool window_slots_take(struct window_slots *w, int32_t page_id)
{
    if (w->is_identity)
        return true;
    struct window_page *page = &w->pages[page_id];
    assert(page->slot == NONE && page->n_viewers == 0);
    if (w->n_free == 0 && w->n_unseen == 0)
        return false;
    if (w->n_free == 0)
        window_slots_forget(w, w->oldest);
    page->slot = w->free[--w->n_free];
    page->n_viewers = 1;
    return true;
}

void window_slots_see(struct window_slots *w, int32_t page_id)
{
    if (w->is_identity)
        return;
    struct window_page *page = &w->pages[page_id];
    assert(page->slot != NONE);
    if (page->n_viewers++ == 0)
        list_remove(w, page_id);
}

void window_slots_pass(struct window_slots *w, int32_t page_id, bool keeps)
{
    if (w->is_identity)
        return;
    struct window_page *page = &w->pages[page_id];
    assert(page->n_viewers > 0);
    if (--page->n_viewers > 0)
        return;
    if (keeps)
        list_add(w, page_id);
    else
        window_slots_put_free(w, page_id);
}

void window_slots_forget(struct window_slots *w, int32_t page_id)
{
    if (w->is_identity || w->pages[page_id].slot == NONE)
        return;
    assert(w->pages[page_id].n_viewers == 0);
    list_remove(w, page_id);
    window_slots_put_free(w, page_id);
}

void window_slots_move(struct window_slots *w, int32_t from, int32_t to)
{
    if (w->is_identity)
        return;
    struct window_page *a = &w->pages[from], *b = &w->pages[to];
    assert(a->slot != NONE && a->n_viewers == 1 && b->slot == NONE);
    b->slot = a->slot;
    b->n_viewers = 1;
    a->slot = NONE;
    a->n_viewers = 0;
}
