/* Constrained decoding: which tokens may come next, so that the text of an answer fits a grammar.
 *
 * A grammar is compiled once and shared by any number of answers. A matcher is one answer's place in it. For each place the
 * mask of allowed tokens is put together from two parts, after Dong et al., "XGrammar", 2024: what a place in a rule says by
 * itself, whatever the rule was called from, which is found once by walking through the vocabulary as a tree and is kept; and
 * tokens that reach beyond the end of that rule, for which the walk goes on with the stack as it is.
 *
 * Only valid UTF-8 fits. The text may end exactly where the whole grammar has been read.
 *
 * A grammar is made by one thread and its matchers are used by one thread at a time; shares may be taken and dropped by
 * any thread. */
#ifndef TUTTI_GRAMMAR_H
#define TUTTI_GRAMMAR_H

#include "grammar/budget.h"
#include "grammar/client_memory.h"
#include "grammar/token_trie.h"

enum grammar_kind {
    GRAMMAR_GBNF,
    GRAMMAR_JSON_SCHEMA,
    GRAMMAR_JSON_OBJECT, /* any JSON object; no text */
    GRAMMAR_PATTERN,     /* a regular expression that all of the text matches */
};

enum {
    LIMIT_GRAMMAR_BYTES = 1 << 20, /* of its text */
    /* What compiling one may cost. The largest automaton there is (2^20 edges, 2^19 states) takes 5 million steps and 100 MiB to make;
     * schemas that people publish, of up to 500 KB, take up to 3 million. A step takes 5 to 50 ns: at worst some seconds. */
    LIMIT_COMPILE_STEPS = 16 * 1000 * 1000,
    LIMIT_COMPILE_BYTES = 96 << 20,
    LEAST_KEPT_BYTES = 1 << 20, /* of what leads to masks, of a client without ROOM_FOR_ANY */
    /* Of one mask: about a second where everything is new. Usual ones take a few, those of new states some thousands. */
    LIMIT_MASK_STEPS = 8 * 1000 * 1000,
    /* Of following one token. */
    LIMIT_TOKEN_STEPS = 1000 * 1000,
};

struct grammar;

/* trie must outlive the grammar. budget: what compiling may cost and what it did; NULL: the limits above.
 * TUTTI_E_ARGUMENT with err->param "grammar" or "response_format": the text is wrong, or asks for what is not supported;
 * TUTTI_E_LIMIT: it is too large, or the budget is spent; TUTTI_E_CANCELLED: by the budget; TUTTI_E_MEMORY. *out has one share. */
MUST_CHECK enum tutti_status grammar_new(struct grammar **out, enum grammar_kind kind, const char *text,
                                         size_t n_bytes, const struct token_trie *trie, struct budget *budget,
                                         struct tutti_error *err);
struct grammar *grammar_share(struct grammar *g); /* one share more; returns g */
void grammar_drop(struct grammar *g);             /* frees it with the last share; NULL is allowed */
bool grammar_is_shared(const struct grammar *g);  /* is there another share than the caller's? */
size_t grammar_bytes(const struct grammar *g);    /* of memory, now */
/* The grammar counts in another client's memory from now on. Only with the only share, of a grammar that counts in one. */
void grammar_move(struct grammar *g, struct client_memory *memory);

/* Words of a mask: bit id % 32 of word id / 32. */
static inline size_t grammar_mask_words(int32_t n_vocab)
{
    return ((size_t)n_vocab + 31) / 32;
}

/* What may come first; never changes. */
const uint32_t *grammar_first_mask(const struct grammar *g, bool *can_end);

/* ---- one answer ---- */

/* A mask that is under way: the place of the set, the way out of its rule and the node of the vocabulary that come next. */
struct mask_progress {
    bool is_begun;
    int32_t place, leaving, node;
    int64_t n_leavings, n_steps;
};

struct matcher {
    struct grammar *grammar; /* NULL: not in use; a share */
    int32_t set;
    struct mask_progress progress;
    struct matcher *next, **link;
};

void matcher_init(struct matcher *m, struct grammar *g); /* takes a share; at the beginning */
void matcher_clear(struct matcher *m);                   /* a zeroed one is allowed */

/* Goes on by a token, or by bytes. False: they do not fit; the matcher is where it was. */
MUST_CHECK bool matcher_take(struct matcher *m, int32_t token);
MUST_CHECK bool matcher_take_bytes(struct matcher *m, const char *bytes, size_t n_bytes);

/* Why the last call of this grammar's said no: TUTTI_OK: they do not fit; else as of a mask, which looks at each place by itself and
 * so may allow a token that leads to too many of them. */
enum tutti_status matcher_status(const struct matcher *m);

bool matcher_can_end(const struct matcher *m);

/* The tokens that may come next: mask [grammar_mask_words()]. TUTTI_E_LIMIT: the grammar says the same in too many ways;
 * TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status matcher_mask(struct matcher *m, uint32_t *mask, struct tutti_error *err);

/* The same in slices, so that others have theirs in between. TUTTI_E_BUSY: it is not done after n_steps: to be called again with
 * the same mask. */
MUST_CHECK enum tutti_status matcher_mask_slice(struct matcher *m, uint32_t *mask, int64_t n_steps,
                                                struct tutti_error *err);

#endif
