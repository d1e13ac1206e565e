#include "cuda/standin_memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    PAGE = 4096,
    MOST_NANS = 1 << 16, /* at the begin of pinned memory */
    CARD_ALIGNMENT = 256
};

static size_t round_to(size_t n, size_t step)
{
    return (n + step - 1) / step * step;
}

struct block *block_new(size_t n_bytes, bool is_card)
{
    struct block *b = calloc(1, sizeof *b);
    size_t room = round_to(n_bytes, CARD_ALIGNMENT), pages = round_to(room, PAGE);
    if (!b)
        return NULL;
    b->mapping_bytes = pages + PAGE;
    b->mapping = mmap(NULL, b->mapping_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b->mapping == MAP_FAILED) {
        free(b);
        return NULL;
    }
    b->data = b->mapping + pages - room;
    b->n_bytes = n_bytes;
    mprotect(b->mapping + pages, PAGE, PROT_NONE);
    b->is_new = is_card;
    if (is_card)
        mprotect(b->mapping, pages, PROT_NONE);
    else
        memset(b->mapping, 0xff, pages < MOST_NANS ? pages : MOST_NANS);
    return b;
}

void block_open(struct block *b, bool opens)
{
    mprotect(b->mapping, b->mapping_bytes - PAGE, opens ? PROT_READ | PROT_WRITE : PROT_NONE);
    if (opens && b->is_new)
        memset(b->mapping, 0xff, b->mapping_bytes - PAGE);
    b->is_new = false;
}

struct block *block_find(struct block *list, const void *at)
{
    for (struct block *b = list; b; b = b->next)
        if ((const uint8_t *)at >= b->data &&
            (const uint8_t *)at < b->data + (b->n_bytes > 0 ? b->n_bytes : 1))
            return b;
    return NULL;
}

bool block_has(struct block *list, const void *at, size_t n_bytes)
{
    struct block *b = block_find(list, at);
    return b && n_bytes <= b->n_bytes - (size_t)((const uint8_t *)at - b->data);
}

bool block_free(struct block **list, void *data)
{
    for (struct block **at = list; *at; at = &(*at)->next) {
        struct block *b = *at;
        if (b->data != data)
            continue;
        *at = b->next;
        munmap(b->mapping, b->mapping_bytes);
        free(b);
        return true;
    }
    return false;
}
