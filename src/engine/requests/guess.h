/* Prompt lookup: what stood behind the same few tokens the last time is guessed to come again. Quotations, code that is
 * changed, and answers out of a given text are mostly made of such repetitions. Saxena, 2023, "Prompt Lookup Decoding";
 * Yang et al., 2023, "Inference with Reference".
 *
 * A guess is judged by the tokens that come, whether it was offered to the model or not: so it is known without cost how
 * often guesses are right. Engine thread only; nothing here allocates. */
#ifndef TUTTI_GUESS_H
#define TUTTI_GUESS_H

#include <stdbool.h>
#include <stdint.h>

enum { GUESS_KINDS = 2 }; /* guesses after a longer and after a shorter repetition */

/* Of one sequence. */
struct guesser {
    /* [mask + 1] by the hash of a few tokens: the position behind them where they stood last. May be out of date, or of
     * other tokens: what stands there is compared. */
    int32_t *places[GUESS_KINDS];
    uint32_t mask;
    int n_read; /* tokens that places knows */
    int from;   /* position of the tokens that are guessed to come again; -1: there is no guess */
    int at;     /* position that the first of them is guessed for */
    int kind;
    float chances[GUESS_KINDS]; /* that a guessed token is right: a mean of the last ones */
};

/* Entries of each of places for sequences of up to max_ids tokens: a power of two. */
int guesser_n_places(int max_ids);

/* places and mask are the caller's; all else is for a new sequence. */
void guesser_begin(struct guesser *g);

/* Judges the last guess, reads up to most_tokens further tokens of ids [n_ids], and guesses what comes behind the last. Returns the
 * tokens read. Between two calls ids may only have grown. */
int guesser_read(struct guesser *g, const int32_t *ids, int n_ids, int most_tokens);

/* The chance of the first guessed token to be right, of the next one if that was, and so on; 0: there is no guess. */
float guesser_chance(const struct guesser *g);

/* Writes n guessed tokens behind ids [n_ids]; guesser_chance() is not 0. */
void guesser_write(const struct guesser *g, int32_t *ids, int n_ids, int n);

#endif
