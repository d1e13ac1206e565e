/* How many guessed tokens a step that decodes should verify, and how many a draft model should be asked for.
 *
 * A sequence's row is followed by rows of guessed tokens. Each of them gives the logits that stand behind it: where the token
 * drawn before it is the one guessed, the next is drawn from those in the same step. What is drawn, and from what, does not
 * change: not the distribution, nor the text of a seed. After Leviathan et al., 2023, "Fast Inference from Transformers via
 * Speculative Decoding", and Chen et al., 2023; the test "is the drawn token the guess" stands in place of their rejection, and
 * sampler.h says how a draft model's guesses are made to pass it.
 *
 * Rows cost: nothing where a step waits for the weights to come from memory, much where it computes; and each further token of a
 * draft model costs one of its passes, for all sequences together. So the durations of steps and passes are learned by their
 * number of rows, and those guesses are made that promise the most tokens in a second, none if that is what does. What was learned
 * of steps that were not taken for long is forgotten, so that they are tried again, rarely; where the machine becomes slower or faster
 * as a whole, it changes with that of other steps.
 *
 * Promises may be wrong, so there is an account. Every step in which there could be guesses pays a small share of its time into it;
 * all that guessing costs is taken out: deciding what is guessed, the passes of a draft model, and what a step with guesses took
 * beyond what its tokens would have taken without them. Nothing is risked that the account does not hold. So whatever is guessed,
 * and however wrong: time with guesses <= (1 + that share) * time without them + what the account began with. What was won by right
 * guesses is forgotten while none are right, so it is not lost on another text. Where deciding takes much of a step, and decides
 * for no guesses, it is not done in each step. A draft model that is out of favour is tried again after ever longer times. */
#ifndef TUTTI_SPECULATION_H
#define TUTTI_SPECULATION_H

#include <stdbool.h>
#include <stdint.h>

enum {
    MAX_GUESS_ROWS = 64, /* of a step: each needs room for its logits */
    MAX_GUESSES = 32,    /* of a sequence */
    SPECULATION_ROWS = 256,
    NEAR_ROWS = 16, /* a draft model that is so far behind a sequence catches up with the pass that guesses */
};

/* What could be verified of one sequence. Where it has two offers, that of the draft model stands behind the other. */
struct guess_offer {
    float chance; /* of each token, if those before it were right */
    int most;     /* tokens that can be guessed */
    int n;        /* how many are to be verified */
    int seq;      /* of the caller */
    bool is_draft;
    int n_behind; /* is_draft: rows before the first guess, 1 or more */
    int n_read;   /* is_draft: rows to be read instead, without a guess, since too many are behind */

    /* Scratch */
    bool is_out; /* not considered */
    int n_other; /* of the other plan */
    double next;
};

/* What steps of a number of rows take: us * scale. */
struct step_times {
    double us[SPECULATION_ROWS + 1], scale_at[SPECULATION_ROWS + 1]; /* 0: there was none */
    double scale;                                     /* how the whole machine has changed since */
    uint64_t noted_at[SPECULATION_ROWS + 1], n_noted; /* in steps */
};

struct speculation {
    bool is_forced;           /* for tests: guess and verify all there are */
    double draft_share;       /* what a pass of the draft model takes of a step, as long as none was made */
    struct step_times steps;  /* that only decode */
    struct step_times passes; /* of the draft model */
    int n_guessing;           /* steps since one without guesses */

    double plain_us;  /* what the step that was planned last would take without guesses */
    double plan_us;   /* that deciding took lately */
    double credit_us; /* the account */
    bool has_credit;
    bool is_in_vain; /* the last decision was for no guesses */
    int n_resting;   /* steps until the next decision */

    float draft_chance; /* of the draft model's tokens, over all sequences */
    int n_idle,
        wait; /* steps since the draft model was last used, and how many are to be before it is tried again */
};

/* draft_share: 0 without a draft model. */
void speculation_init(struct speculation *sp, double draft_share, bool is_forced);

/* A step that only decodes, before its rows are chosen. */
struct guess_room {
    int n_seqs, max_rows; /* max_rows: of guesses */
    double row_us;        /* what a row costs where prompts are read; 0: not known */
};

/* Is it worth while to look for offers? To be asked once for each step. */
bool speculation_is_due(struct speculation *sp, int n_seqs);

/* Where it is: sets n and n_read of each offer, the sum of n at most max_rows and MAX_GUESS_ROWS; returns that sum. */
int speculation_choose(struct speculation *sp, const struct guess_room *room, struct guess_offer *offers,
                       int n_offers);

/* The same step when it is over. */
struct guess_step {
    int n_seqs, n_rows, n_guesses;
    int n_drafted, n_right; /* guesses of the draft model, and how many were drawn */
    int n_tokens;           /* that came out, 1 or more of each sequence */
    bool may_guess;         /* a sequence of it could have been guessed for */
    uint64_t us;            /* all of it, but for what follows */
    uint64_t draft_us;      /* on the draft model */
    double plan_us;         /* to decide what is guessed */
};
void speculation_note(struct speculation *sp, const struct guess_step *step);

/* Of n_drafted tokens of a sequence the first n_right were drawn. chance: the sequence's, which begins as draft_chance. */
void speculation_judge(struct speculation *sp, float *chance, int n_drafted, int n_right);

/* A pass of the draft model. */
void speculation_note_pass(struct speculation *sp, int n_rows, uint64_t us);

#endif
