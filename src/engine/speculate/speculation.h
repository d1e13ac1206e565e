/* Speculative decoding: how many draft tokens a step verifies, and how many the draft model drafts.
 *
 * A decoding sequence has one row in a step; rows of its draft tokens follow. Each of these rows
 * gives the logits for the token after it. If the token drawn from the row before equals the draft
 * token, the draft token is accepted and the next token is drawn from its row in the same step. The
 * distribution does not change, nor does the text for a given seed. After Leviathan et al., 2023,
 * "Fast Inference from Transformers via Speculative Decoding", and Chen et al., 2023. The test "the
 * drawn token equals the draft token" replaces their rejection step; backend/sample.h explains why the
 * draft model's tokens pass it so often.
 *
 * Cost. A further row costs nothing where the step is bound by memory bandwidth, and much where it
 * is bound by computing. Each further draft token of a draft model costs a pass of it, for all
 * sequences together. So the durations of steps and passes are measured by number of rows, and the
 * number of draft tokens is chosen that promises the most tokens per second; it may be none.
 * Measurements that are old are forgotten, so such step sizes are tried again, rarely. Where the
 * machine becomes slower or faster as a whole, all measurements are scaled together.
 *
 * Budget. Predictions may be wrong, so there is a speculation budget. Every step that could have
 * draft tokens adds a small share of its time to the budget. All costs of speculation are taken
 * from it: deciding, the passes of the draft model, and what a step with draft tokens took beyond
 * what its tokens would have taken without them. Speculation never spends more than the budget has.
 * So for any acceptance rate: time with speculation <= (1 + share) * time without it + initial
 * budget. What accepted tokens added to the budget is forgotten while none are accepted, so it is
 * not wasted on another text. Where deciding takes much of a step and its result is "no draft
 * tokens", it is not done in each step. A draft model that does not pay off is tried again after
 * ever longer times. */
#ifndef TUTTI_SPECULATION_H
#define TUTTI_SPECULATION_H

#include <stdbool.h>
#include <stdint.h>

enum {
    MAX_DRAFT_ROWS = 64,   /* draft tokens of a step: each needs room for its logits */
    MAX_DRAFT_TOKENS = 32, /* draft tokens of a sequence in one step */
    SPECULATION_ROWS = 256,
    NEAR_ROWS = 16, /* a draft model that lags by so many rows catches up in the pass that drafts */
};

/* Draft tokens available for one sequence from one source. A sequence may have two proposals, of which
 * at most one is used; they are adjacent in the array, prompt lookup before the draft model. */
struct draft_proposal {
    float acceptance; /* probability that a draft token is accepted, if those before it were */
    int most;         /* draft tokens available */
    int n;            /* out: how many to verify */
    int seq;          /* caller's index */
    bool is_draft;
    int n_lag;      /* is_draft: rows to compute before the first draft token, 1 or more */
    int n_catch_up; /* is_draft: rows to compute instead of drafting, because it lags too far */

    /* Scratch */
    bool is_out; /* not considered */
    int n_other; /* n in the alternative plan */
    double next;
};

/* Measured duration of steps by number of rows: us * scale. */
struct step_times {
    double us[SPECULATION_ROWS + 1], scale_at[SPECULATION_ROWS + 1]; /* 0: not measured */
    double scale;                                                    /* change of the whole machine's speed */
    uint64_t noted_at[SPECULATION_ROWS + 1], n_noted;                /* in steps */
};

struct speculation {
    bool is_forced;           /* for tests: verify all draft tokens available */
    double draft_share;       /* estimate of a draft pass / a step, until one was measured */
    struct step_times steps;  /* steps that only decode */
    struct step_times passes; /* of the draft model */
    int n_speculating;        /* steps since one without draft tokens */

    double plain_us;  /* predicted duration of the planned step without draft tokens */
    double plan_us;   /* what deciding took lately */
    double budget_us; /* the speculation budget */
    bool has_budget;
    bool is_in_vain; /* the last decision was for no draft tokens */
    int n_resting;   /* steps until the next decision */

    float model_acceptance; /* acceptance rate of the draft model, over all sequences */
    int n_idle, wait;       /* steps since the draft model was last used; steps before it is tried again */
};

/* draft_share: 0 without a draft model. */
void speculation_init(struct speculation *sp, double draft_share, bool is_forced);

/* A planned step that only decodes, before its draft tokens are chosen. */
struct speculation_step {
    int n_seqs, max_rows; /* max_rows: room for draft tokens */
    double row_us;        /* cost of a row in prefill; 0: not known */
};

/* False: this step decides for no draft tokens without looking for proposals. Call once for each step. */
bool speculation_is_due(struct speculation *sp, int n_seqs);

/* Sets n and n_catch_up of each proposal; the sum of n is at most max_rows and MAX_DRAFT_ROWS. Returns
 * that sum. */
int speculation_choose(struct speculation *sp, const struct speculation_step *room,
                       struct draft_proposal *proposals, int n_proposals);

/* A completed step. */
struct speculation_result {
    int n_seqs, n_rows, n_drafts;
    int n_model_drafts, n_model_accepted; /* draft tokens of the draft model, and of those accepted */
    int n_tokens;                         /* tokens generated, 1 or more for each sequence */
    bool may_speculate;                   /* speculation was possible for a sequence of the step */
    uint64_t us;                          /* duration without the following: */
    uint64_t draft_us;                    /* the draft model */
    double plan_us;                       /* deciding */
};
void speculation_note(struct speculation *sp, const struct speculation_result *step);

/* Updates the acceptance rate *acceptance of a sequence: of n_drafted tokens the first n_accepted were
 * accepted. It begins as model_acceptance. */
void speculation_note_acceptance(struct speculation *sp, float *acceptance, int n_drafted, int n_accepted);

/* Records a pass of the draft model. */
void speculation_note_pass(struct speculation *sp, int n_rows, uint64_t us);

#endif
