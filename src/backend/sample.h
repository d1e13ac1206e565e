/* Sampling, an operation of the backend: draws a token from a row of logits, where the logits are.
 *
 * Order: logit bias, repetition penalty, presence and frequency penalties, token mask, temperature,
 * top-k, top-p, min-p, typical-p, draw. Each works as transformers' LogitsProcessor of that name,
 * where there is one. Of equal logits the lower id counts as the larger, so top-k keeps exactly k.
 * The result depends on the row and the arguments only, not on other rows or on threads.
 *
 * The draw is a race (Gumbel-max sampling): every token has its own random number, a function of
 * (seed, choice, position, token). It yields an arrival time, earlier for probable tokens; the
 * earliest token wins. So with the same seed and position, two similar rows of logits mostly yield
 * the same token: with probability at least (1 - d) / (1 + d), where d is the total variation
 * distance of the two distributions. This makes the draft model's tokens match the target's.
 * Yellott, 1977 (races and the Gumbel distribution); Daliri, Musco and Suresh, 2024, "Coupling
 * without Communication and Drafter-Invariant Speculative Decoding" (the bound). */
#ifndef TUTTI_BACKEND_SAMPLE_H
#define TUTTI_BACKEND_SAMPLE_H

#include "base/error.h"
#include "base/limits.h"

enum sample_kind {
    SAMPLE_DRAW,  /* draws a token */
    SAMPLE_SCORE, /* log-probabilities of a given token and of the n_top most probable ones */
    SAMPLE_BEST,  /* the n_best most probable tokens, for beam search. May change the row */
};

struct sample {
    int32_t token;
    float logprob; /* natural logarithm of the softmax of the unchanged logits */
    int n_top;
    struct sample_top {
        int32_t id;
        float logprob;
    } top[LIMIT_TOP_LOGPROBS]; /* most probable first */
};

/* A candidate for the next token of a beam. */
struct sample_candidate {
    int32_t id;
    float score;   /* log-probability after bias and penalties */
    float logprob; /* before them */
};

/* What to do with a row of logits, and its results. All pointers are to host memory. */
struct sample_input {
    enum sample_kind kind;
    int row;                               /* of the logits */
    int n_usable;                          /* ids from here on are never drawn and have probability 0 */
    const struct tutti_sampling *sampling; /* not for SAMPLE_SCORE */
    const int32_t *ids;                    /* prompt, then answer so far, then draft tokens */
    int n_prompt, n_ids;                   /* n_ids: without draft tokens */
    /* SAMPLE_DRAW: ids[n_ids + k] is a draft token. If the token drawn from row + k equals it, the
     * next token is drawn from row + k + 1. */
    int n_drafts;
    uint64_t seed;
    int choice;
    bool logprobs;
    int n_top; /* 0..LIMIT_TOP_LOGPROBS */
    /* Token mask; NULL: all tokens are allowed. Else token id is allowed if bit id % 32 of word id
     * / 32 is set; stop tokens are allowed if stop_is_allowed. At least one token must be allowed.
     * Log-probabilities are those of the whole vocabulary. Not with draft tokens. */
    const uint32_t *allowed;
    bool stop_is_allowed;
    struct sample_stops {
        const int32_t *ids;
        size_t n;
    } stops[2];
    int32_t token; /* SAMPLE_SCORE */
    int n_best;    /* SAMPLE_BEST: at most n_usable */

    /* ---- results ---- */
    struct sample *out;            /* [n_drafts + 1]; SAMPLE_BEST: [1], only for an id that is not finite */
    struct sample_candidate *best; /* SAMPLE_BEST: [n_best], the largest score first, ties by lower id */
    int n_out;                     /* rows that were used */
    /* False: the last of these rows has a logit that is NaN or infinite; out[n_out - 1].token is its id. */
    bool is_finite;
};

#endif
