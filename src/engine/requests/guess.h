/* Prompt lookup: proposes as draft tokens those that followed the same few tokens the last time.
 * Quotations, edited code and answers from a given text consist mostly of such repetitions. Saxena,
 * 2023, "Prompt Lookup Decoding"; Yang et al., 2023, "Inference with Reference".
 *
 * Every proposal is compared with the tokens that come, even if it was not verified in a step. So
 * the acceptance rate is known at no cost. Engine thread only; nothing here allocates. */
#ifndef TUTTI_GUESS_H
#define TUTTI_GUESS_H

#include <stdbool.h>
#include <stdint.h>

enum { GUESS_KINDS = 2 }; /* lookups by a longer and by a shorter n-gram */

/* The lookup of one sequence. */
struct guesser {
    /* [mask + 1] by the hash of an n-gram: the position after its last occurrence. Entries may be
     * stale or of other n-grams, so the tokens there are compared. */
    int32_t *places[GUESS_KINDS];
    uint32_t mask;
    int n_read; /* tokens entered into places */
    int from;   /* position that draft tokens are copied from; -1: there are none */
    int at;     /* position of the first draft token */
    int kind;
    float chances[GUESS_KINDS]; /* acceptance rate: a moving average */
};

/* Size of each of places for sequences of up to max_ids tokens: a power of two. */
int guesser_n_places(int max_ids);

/* Resets everything for a new sequence, except places and mask, which the caller sets. */
void guesser_begin(struct guesser *g);

/* Judges the last proposal, enters up to most_tokens further tokens of ids [n_ids], and looks up
 * what may follow the last one. Returns the number of tokens entered. Between two calls ids may
 * only grow. */
int guesser_read(struct guesser *g, const int32_t *ids, int n_ids, int most_tokens);

/* Probability that a draft token is accepted, if those before it were; 0: there are no draft tokens. */
float guesser_chance(const struct guesser *g);

/* Writes n draft tokens to ids[n_ids...]; only if guesser_chance() is not 0. */
void guesser_write(const struct guesser *g, int32_t *ids, int n_ids, int n);

#endif
