/* The vocabulary by its bytes: a tree in which tokens that begin alike share a way, so that a grammar is asked once for all
 * of them. Immutable once made.
 *
 * Only tokens that stand for text are in it: no CONTROL, UNKNOWN or UNUSED ones, no empty ones, and no markers, that is tokens
 * apart from the merges that are spelled <...> or [...]: a text with that spelling can be made of other tokens. */
#ifndef TUTTI_GRAMMAR_TOKEN_TRIE_H
#define TUTTI_GRAMMAR_TOKEN_TRIE_H

#include "tokenizer/tokenizer.h"

/* In preorder: the children of node i begin at i + 1, and end[i] is what comes behind all of them. */
struct token_trie {
    int32_t n_vocab, n_tokens; /* in the trie */
    int32_t n_nodes;           /* node 0 is the root, that reads nothing */
    uint8_t *byte;             /* [n_nodes] */
    uint16_t *depth;           /* [n_nodes] bytes from the root */
    int32_t *end;              /* [n_nodes] */
    int32_t *first_token; /* [n_nodes + 1] its own tokens are sorted[first_token[i] .. first_token[i + 1]) */
    int32_t *sorted;      /* [n_tokens] ids by their bytes */
    uint32_t *offsets;    /* [n_vocab + 1] of the bytes of an id, none: not in the trie */
    char *bytes;
    int max_depth;
};

/* n_vocab: ids that the model may yield; those that the tokenizer does not know stand for nothing. TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status token_trie_new(struct token_trie **out, const struct tokenizer *tok,
                                            int32_t n_vocab, struct tutti_error *err);
void token_trie_free(struct token_trie *trie); /* NULL is allowed */

static inline const char *token_trie_bytes(const struct token_trie *trie, int32_t id, size_t *n_bytes)
{
    *n_bytes = trie->offsets[id + 1] - trie->offsets[id];
    return trie->bytes + trie->offsets[id];
}

#endif
