/* A trie of the vocabulary's bytes: tokens with a common prefix are checked against a grammar
 * together. Immutable once built.
 *
 * Tokens of text have their bytes. CONTROL tokens and markers have a code that no text contains, so a
 * grammar can demand the token itself, and the token never counts as text of its spelling. A marker is
 * a token spelled <...> or [...] that merges do not produce: a text with that spelling can be composed
 * of other tokens. UNKNOWN, UNUSED and empty tokens are not in the trie. */
#ifndef TUTTI_GRAMMAR_TOKEN_TRIE_H
#define TUTTI_GRAMMAR_TOKEN_TRIE_H

#include "tokenizer/tokenizer.h"

/* Nodes in preorder: the children of node i begin at i + 1, and end[i] is the first node after
 * its subtree. */
enum { TOKEN_CODE_BYTES = 4 };

struct token_trie {
    int32_t n_vocab, n_tokens; /* in the trie */
    int32_t n_nodes;           /* node 0 is the root, which has no byte */
    uint8_t *byte;             /* [n_nodes] */
    uint16_t *depth;           /* [n_nodes] bytes from the root */
    int32_t *end;              /* [n_nodes] */
    /* [n_nodes + 1] tokens that end at node i: sorted[first_token[i] .. first_token[i + 1]) */
    int32_t *first_token;
    int32_t *sorted;   /* [n_tokens] ids by their bytes */
    uint32_t *offsets; /* [n_vocab + 1] into bytes, by id; no bytes: not in the trie */
    char *bytes;
    int max_depth;
};

/* n_vocab: ids that the model can yield; ids unknown to the tokenizer are not in the trie.
 * TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status token_trie_new(struct token_trie **out, const struct tokenizer *tok,
                                            int32_t n_vocab, struct tutti_error *err);
void token_trie_free(struct token_trie *trie); /* NULL is allowed */

static inline const char *token_trie_bytes(const struct token_trie *trie, int32_t id, size_t *n_bytes)
{
    *n_bytes = trie->offsets[id + 1] - trie->offsets[id];
    return trie->bytes + trie->offsets[id];
}

/* The code of a CONTROL token or a marker: begins with a byte that is never part of UTF-8. */
static inline void token_trie_code(int32_t id, char out[TOKEN_CODE_BYTES])
{
    out[0] = '\xFF';
    for (int i = 1; i < TOKEN_CODE_BYTES; i++)
        out[i] = (char)(id >> 7 * (TOKEN_CODE_BYTES - 1 - i) & 127);
}

/* Whether a piece has a code in place of its bytes. */
bool token_trie_has_code(struct piece piece);

#endif
