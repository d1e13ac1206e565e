/* How many guessed tokens a step that decodes should verify.
 *
 * A sequence's row is followed by rows of guessed tokens. Each of them gives the logits that stand behind it: where the token
 * drawn before it is the one guessed, the next is drawn from those in the same step. What is drawn, and from what, does not
 * change: not the distribution, nor the text of a seed. After Leviathan et al., 2023, "Fast Inference from Transformers via
 * Speculative Decoding", and Chen et al., 2023, for guesses that are certain of themselves.
 *
 * Rows cost: nothing where a step waits for the weights to come from memory, much where it computes. So the durations of steps are
 * learned by their number of rows, and those guesses are verified that promise the most tokens in a second, none if that is
 * what does. What was learned of steps that were not taken for long is forgotten, so that they are tried again, rarely. */
#ifndef TUTTI_SPECULATION_H
#define TUTTI_SPECULATION_H

#include <stdbool.h>
#include <stdint.h>

enum {
    MAX_GUESS_ROWS = 64, /* of a step: each needs room for its logits */
    MAX_GUESSES = 32,    /* of a sequence */
    SPECULATION_ROWS = 256,
};

/* What could be verified of one sequence. */
struct guess_offer {
    float chance; /* of each token, if those before it were right */
    int most;     /* tokens that can be guessed */
    int n;        /* how many are to be verified */
    int seq;      /* of the caller */
    double next;  /* scratch */
};

struct speculation {
    int max_guesses;                      /* of a sequence; 0: none */
    bool is_forced;                       /* for tests: verify all there are */
    double step_us[SPECULATION_ROWS + 1]; /* by rows, of steps that only decode; 0: there was none */
    uint64_t noted_at[SPECULATION_ROWS + 1], n_noted; /* in steps that only decode */
    int n_guessing;                                   /* steps since one without guesses */
};

/* A step that only decodes, of n_rows rows with n_guesses among them, took so long. */
void speculation_note(struct speculation *sp, int n_rows, int n_guesses, uint64_t us);

/* Sets n of each offer, the sum of them at most max_rows and MAX_GUESS_ROWS; returns it. The step has n_seqs rows beside
 * those. row_us: what a row costs where prompts are read; 0: not known. */
int speculation_choose(struct speculation *sp, int n_seqs, int max_rows, double row_us,
                       struct guess_offer *offers, int n_offers);

#endif
