#include "tokenizer/vocab/trie.h"

#include <stdlib.h>
#include <string.h>

static int by_bytes(const void *a, const void *b)
{
    const struct spelling *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, x->n_bytes < y->n_bytes ? x->n_bytes : y->n_bytes);
    if (order != 0)
        return order;
    if (x->n_bytes != y->n_bytes)
        return x->n_bytes < y->n_bytes ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* The spellings below a node: list[lo, hi), which agree in their first `depth` bytes. */
struct range {
    size_t lo, hi, depth;
};

struct builder {
    struct trie_node *nodes;
    struct range *ranges; /* of each node */
    uint32_t n, capacity;
};

static bool add_node(struct builder *b, uint8_t byte, struct range range)
{
    if (b->n == b->capacity) {
        uint32_t capacity = b->capacity < UINT32_MAX / 4 ? b->capacity * 2 + 256 : 0;
        struct trie_node *nodes = capacity > 0 ? realloc(b->nodes, capacity * sizeof *nodes) : NULL;
        if (!nodes)
            return false;
        b->nodes = nodes;
        struct range *ranges = realloc(b->ranges, capacity * sizeof *ranges);
        if (!ranges)
            return false;
        b->ranges = ranges;
        b->capacity = capacity;
    }
    b->nodes[b->n] = (struct trie_node){ .byte = byte, .id = -1 };
    b->ranges[b->n++] = range;
    return true;
}

static bool add_children(struct builder *b, const struct spelling *list, uint32_t node)
{
    struct range range = b->ranges[node];
    while (range.lo < range.hi && list[range.lo].n_bytes == range.depth) {
        if (b->nodes[node].id < 0)
            b->nodes[node].id = list[range.lo].id;
        range.lo++;
    }
    b->nodes[node].first_child = b->n;
    while (range.lo < range.hi) {
        char byte = list[range.lo].bytes[range.depth];
        size_t end = range.lo + 1;
        while (end < range.hi && list[end].bytes[range.depth] == byte)
            end++;
        if (!add_node(b, (uint8_t)byte, (struct range){ range.lo, end, range.depth + 1 }))
            return false;
        b->nodes[node].n_children++;
        range.lo = end;
    }
    return true;
}

bool trie_build(struct trie *trie, struct spelling *list, size_t n)
{
    struct builder b = { 0 };
    if (n > 0)
        qsort(list, n, sizeof *list, by_bytes);
    bool ok = add_node(&b, 0, (struct range){ 0, n, 0 });
    for (uint32_t node = 0; ok && node < b.n; node++)
        ok = add_children(&b, list, node);
    free(b.ranges);
    if (!ok) {
        free(b.nodes);
        return false;
    }
    trie_clear(trie);
    trie->nodes = b.nodes;
    trie->n_nodes = b.n;
    for (uint32_t i = 0; i < b.nodes[0].n_children; i++)
        trie->roots[b.nodes[b.nodes[0].first_child + i].byte] = b.nodes[0].first_child + i;
    return true;
}

void trie_clear(struct trie *trie)
{
    free(trie->nodes);
    *trie = (struct trie){ 0 };
}

int32_t trie_match(const struct trie *trie, const char *text, size_t n_bytes, size_t *n_match)
{
    int32_t id = -1;
    uint32_t node = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        node = trie_child(trie, node, (uint8_t)text[i]);
        if (node == 0)
            break;
        if (trie->nodes[node].id >= 0) {
            id = trie->nodes[node].id;
            *n_match = i + 1;
        }
    }
    return id;
}
