/* Prompt lookup: proposes draft tokens by finding the last tokens earlier in the same text, and copying
 * the tokens that followed them there. Quotations, edited code and answers from a given text consist
 * mostly of such repetitions. Saxena, 2023, "Prompt Lookup Decoding"; Yang et al., 2023, "Inference with
 * Reference".
 *
 * Every proposal is compared with the tokens that are generated, even if it was not verified in a step.
 * So the acceptance rate is known at no cost. Engine thread only; nothing here allocates. */
#ifndef TUTTI_PROMPT_LOOKUP_H
#define TUTTI_PROMPT_LOOKUP_H

#include <stdbool.h>
#include <stdint.h>

enum { PROMPT_LOOKUP_KINDS = 2 }; /* lookups by a longer and by a shorter n-gram */

/* The lookup of one sequence. */
struct prompt_lookup {
    /* [mask + 1] by the hash of an n-gram: the position after its last occurrence. Entries may be
     * stale or of other n-grams, so the tokens there are compared. */
    int32_t *places[PROMPT_LOOKUP_KINDS];
    uint32_t mask;
    int n_entered; /* tokens entered into places */
    int from;      /* position that draft tokens are copied from; -1: there are none */
    int at;        /* position of the first draft token */
    int kind;
    float acceptance[PROMPT_LOOKUP_KINDS]; /* acceptance rate: a moving average */
};

/* Size of each of places for sequences of up to max_ids tokens: a power of two. */
int prompt_lookup_n_places(int max_ids);

/* Resets everything for a new sequence, except places and mask, which the caller sets. */
void prompt_lookup_reset(struct prompt_lookup *lookup);

/* Compares the last proposal with ids, enters up to most_tokens further tokens of ids [n_ids], and looks up
 * what may follow the last one. Returns the number of tokens entered. Between two calls ids may
 * only grow. */
int prompt_lookup_update(struct prompt_lookup *lookup, const int32_t *ids, int n_ids, int most_tokens);

/* Probability that a draft token is accepted, if those before it were; 0: there are no draft tokens. */
float prompt_lookup_acceptance(const struct prompt_lookup *lookup);

/* Writes n draft tokens to ids[n_ids...]; only if prompt_lookup_acceptance() is not 0. */
void prompt_lookup_copy(const struct prompt_lookup *lookup, int32_t *ids, int n_ids, int n);

#endif
