/* Constrained decoding: computes masks of the tokens that may come next, so that an answer matches a
 * grammar.
 *
 * A grammar is compiled once and shared by any number of answers. A matcher is the state of one
 * answer. A token mask is combined from two parts, after Dong et al., "XGrammar", 2024.
 * Context-independent tokens are decided by the position in a rule only, whatever called the
 * rule: they are computed once, by walking the vocabulary trie, and cached. Context-dependent
 * tokens extend beyond the end of the rule: for them the walk continues with the actual stack.
 *
 * Only valid UTF-8 matches. The text may end only where the grammar is complete.
 *
 * A grammar is compiled by one thread, and its matchers are used by one thread at a time.
 * References may be taken and dropped by any thread. */
#ifndef TUTTI_GRAMMAR_H
#define TUTTI_GRAMMAR_H

#include "grammar/budget.h"
#include "grammar/client_memory.h"
#include "grammar/token_trie.h"

enum grammar_kind {
    GRAMMAR_GBNF,
    GRAMMAR_JSON_SCHEMA,
    GRAMMAR_JSON_OBJECT, /* any JSON object; no text */
    GRAMMAR_PATTERN,     /* a regular expression that the whole text matches */
};

enum {
    LIMIT_GRAMMAR_BYTES = 1 << 20, /* of its text */
    /* Limits of compilation. A string of at most 32,768 characters, one of the largest automata,
     * takes 3.8 million steps and 62 MiB; published schemas of up to 500 KB take up to 3 million
     * steps. A step takes 5 to 50 ns. */
    LIMIT_COMPILE_STEPS = 16 * 1000 * 1000,
    LIMIT_COMPILE_BYTES = 96 << 20,
    LEAST_KEPT_BYTES = 1 << 20, /* of cached mask data, for a client without ROOM_FOR_ANY */
    /* Of one mask: about a second if nothing is cached. Usual masks take a few steps, those of
     * new states some thousands. */
    LIMIT_MASK_STEPS = 8 * 1000 * 1000,
    /* Of accepting one token. */
    LIMIT_TOKEN_STEPS = 1000 * 1000,
};

struct grammar;
struct syntax;

/* trie must outlive the grammar. budget: limits the cost of compiling and counts it; NULL: the
 * limits above. TUTTI_E_ARGUMENT with err->param "grammar" or "response_format": the text is
 * invalid or unsupported. TUTTI_E_LIMIT: it is too large, or the budget is spent;
 * TUTTI_E_CANCELLED: by the budget; TUTTI_E_MEMORY. *out has one reference. */
MUST_CHECK enum tutti_status grammar_new(struct grammar **out, enum grammar_kind kind, const char *text,
                                         size_t n_bytes, const struct token_trie *trie, struct budget *budget,
                                         struct tutti_error *err);
/* The same for a grammar that another module builds. param: the field that errors name; NULL: each error
 * does so itself. */
struct grammar_source {
    enum tutti_status (*read)(void *user, struct syntax *out, struct tutti_error *err);
    void *user;
    const char *param;
};
MUST_CHECK enum tutti_status grammar_new_from(struct grammar **out, const struct grammar_source *source,
                                              const struct token_trie *trie, struct budget *budget,
                                              struct tutti_error *err);

struct grammar *grammar_share(struct grammar *g); /* takes a reference; returns g */
void grammar_drop(struct grammar *g);             /* frees it with the last reference; NULL is allowed */
bool grammar_is_shared(const struct grammar *g);  /* has more than one reference */
size_t grammar_bytes(const struct grammar *g);    /* of memory at present */
/* Moves the grammar to another client's memory. Requires the only reference, and a grammar that
 * is counted in a client's memory. */
void grammar_move(struct grammar *g, struct client_memory *memory);

/* Words of a mask: bit id % 32 of word id / 32. */
static inline size_t grammar_mask_words(int32_t n_vocab)
{
    return ((size_t)n_vocab + 31) / 32;
}

/* The mask at the start; never changes. */
const uint32_t *grammar_first_mask(const struct grammar *g, bool *can_end);

/* ---- one answer ---- */

/* The progress of a mask that is computed in slices: next place of the set, next exit from its
 * rule, and next node of the vocabulary trie. */
struct mask_progress {
    bool is_begun;
    int32_t place, rule_exit, node;
    int64_t n_exits, n_steps;
};

struct matcher {
    struct grammar *grammar; /* a reference; NULL: not in use */
    int32_t set;
    struct mask_progress progress;
    struct matcher *next, **link;
};

void matcher_init(struct matcher *m, struct grammar *g); /* takes a reference; at the start of the grammar */
void matcher_clear(struct matcher *m);                   /* a zeroed one is allowed */

/* Advances by a token, or by bytes. False: not accepted; the matcher is unchanged. */
MUST_CHECK bool matcher_take(struct matcher *m, int32_t token);
MUST_CHECK bool matcher_take_bytes(struct matcher *m, const char *bytes, size_t n_bytes);

/* Why the grammar's last matcher_take() or matcher_take_bytes() returned false. TUTTI_OK: the
 * bytes do not match. Otherwise a status of matcher_mask_slice(): a mask considers each place
 * separately, so it can allow a token that leads to too many places. */
enum tutti_status matcher_status(const struct matcher *m);

bool matcher_can_end(const struct matcher *m);

/* Computes the token mask: mask [grammar_mask_words()], in slices, to interleave the masks of several sequences.
 * TUTTI_E_BUSY: not done after n_steps (never, if they are more than LIMIT_MASK_STEPS); call again with the same
 * mask. TUTTI_E_LIMIT: the grammar is too ambiguous; TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status matcher_mask_slice(struct matcher *m, uint32_t *mask, int64_t n_steps,
                                                struct tutti_error *err);

#endif
