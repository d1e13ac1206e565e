/* Memory of the stand-in's card, and pinned memory of the host, for libcuda_standin.c.
 *
 * Memory of the card faults unless the card works. It has a guard page at its end, and NaNs at first. */
#ifndef TUTTI_TESTS_CUDA_STANDIN_MEMORY_H
#define TUTTI_TESTS_CUDA_STANDIN_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct block {
    struct block *next;
    uint8_t *mapping, *data; /* data ends where the guard page begins, up to alignment */
    size_t mapping_bytes, n_bytes;
    bool is_new; /* not filled with NaNs yet */
};

/* NULL: out of memory. The caller adds it to a list. */
struct block *block_new(size_t n_bytes, bool is_card);
/* False: the list has no such block. */
bool block_free(struct block **list, void *data);
/* Opens or closes memory of the card. */
void block_open(struct block *b, bool opens);
struct block *block_find(struct block *list, const void *at);
bool block_has(struct block *list, const void *at, size_t n_bytes);

#endif
