/* A trie of spellings, to find the pieces that are prefixes of a text. Immutable once built. */
#ifndef TUTTI_TOKENIZER_VOCAB_TRIE_H
#define TUTTI_TOKENIZER_VOCAB_TRIE_H

#include "base/error.h"

struct spelling {
    const char *bytes;
    size_t n_bytes;
    int32_t id;
};

struct trie_node {
    uint32_t first_child; /* children are adjacent, sorted by their byte */
    int32_t id;           /* of the spelling that ends here; -1: none */
    uint16_t n_children;
    uint8_t byte;
};

/* Zero-initialised is empty and valid: nothing matches. */
struct trie {
    struct trie_node *nodes; /* [0] is the root */
    uint32_t n_nodes;
    uint32_t roots[256]; /* the root's children by byte; 0: none */
};

/* Sorts list. Of equal spellings the one with the lowest id is kept. False: out of memory. */
MUST_CHECK bool trie_build(struct trie *trie, struct spelling *list, size_t n);
void trie_clear(struct trie *trie);

/* The child of a node by its byte; 0: none. Node 0 is the root. */
static inline uint32_t trie_child(const struct trie *trie, uint32_t node, uint8_t byte)
{
    if (node == 0)
        return trie->roots[byte];
    const struct trie_node *parent = &trie->nodes[node];
    uint32_t lo = parent->first_child, hi = lo + parent->n_children;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (trie->nodes[mid].byte < byte)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < parent->first_child + parent->n_children && trie->nodes[lo].byte == byte ? lo : 0;
}

/* The id of the longest spelling that text begins with, its length in *n_match; -1: none. */
int32_t trie_match(const struct trie *trie, const char *text, size_t n_bytes, size_t *n_match);

#endif
