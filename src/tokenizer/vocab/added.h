/* Added tokens: tokens that are matched in a text before normalization and pre-tokenization, as
 * the added vocabulary of the Hugging Face tokenizers library. */
#ifndef TUTTI_TOKENIZER_VOCAB_ADDED_H
#define TUTTI_TOKENIZER_VOCAB_ADDED_H

#include "base/buf.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocab/trie.h"

enum { MAX_ADDED_BYTES = 1024 };

/* Zero-initialised is empty and valid. */
struct added_tokens {
    struct added_token *list; /* [n] */
    size_t n;
    int32_t max_id;              /* of list: a larger id is certainly new */
    struct trie raw, normalized; /* of their spellings; ids are indices of list */
    struct trie specials;        /* of the special ones, all by their spelling */
    int32_t *special_ids;        /* [n_special_ids] ascending */
    size_t n_special_ids;
    bool has_normalized_specials;
};

/* Adds a token; one with the same id is replaced. False: out of memory. */
MUST_CHECK bool added_tokens_put(struct added_tokens *added, struct added_token token);

/* Builds the tries. spelling: returns that of an entry, borrowed. normalize: appends a normalized
 * text; NULL: no normalizers. False: out of memory. */
typedef struct spelling added_spelling_fn(const void *from, const struct added_token *token);
typedef bool added_normalize_fn(const void *from, const char *text, size_t n_bytes, struct buf *out);
MUST_CHECK bool added_tokens_index(struct added_tokens *added, added_spelling_fn *spelling,
                                   added_normalize_fn *normalize, const void *from);

/* Callbacks for the parts of a text, in order: added tokens, and the text between them. */
struct added_cuts {
    void *to;
    bool (*between)(void *to, const char *text, size_t n_bytes); /* n_bytes > 0. False stops */
    bool (*token)(void *to, const struct added_token *token);
    bool takes_special;
    /* [n_ranges] special tokens are matched only within one of these; NULL: anywhere. */
    const struct trusted_range *ranges;
    size_t n_ranges;
};

/* trie: raw or normalized of added. text: valid UTF-8. False: a callback returned false. */
MUST_CHECK bool added_tokens_cut(const struct added_tokens *added, const struct trie *trie,
                                 const struct added_cuts *cuts, const char *text, size_t n_bytes);

/* Whether id is a special token. Call after added_tokens_index(). */
bool added_tokens_is_special(const struct added_tokens *added, int32_t id);

void added_tokens_clear(struct added_tokens *added);

#endif
