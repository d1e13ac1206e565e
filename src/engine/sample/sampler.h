/* The sampler: draws one token from one row of logits.
 *
 * Order: logit bias, repetition penalty, presence and frequency penalties, token mask, temperature,
 * top-k, top-p, min-p, typical-p, draw. Each works as transformers' LogitsProcessor of that name,
 * where there is one. Of equal logits the lower id counts as the larger, so top-k keeps exactly k.
 * One thread works on a row; the result depends on the arguments only.
 *
 * The draw is a race (Gumbel-max sampling): every token has its own random number, a function of
 * (seed, choice, position, token). It yields an arrival time, earlier for probable tokens; the
 * earliest token wins. So with the same seed and position, two similar rows of logits mostly yield
 * the same token: with probability at least (1 - d) / (1 + d), where d is the total variation
 * distance of the two distributions. This makes the draft model's tokens match the target's.
 * Yellott, 1977 (races and the Gumbel distribution); Daliri, Musco and Suresh, 2024, "Coupling
 * without Communication and Drafter-Invariant Speculative Decoding" (the bound). */
#ifndef TUTTI_SAMPLER_H
#define TUTTI_SAMPLER_H

#include "base/error.h"
#include "base/limits.h"

struct sampler; /* scratch memory for one thread */

MUST_CHECK enum tutti_status sampler_new(struct sampler **out, int n_vocab, struct tutti_error *err);
void sampler_free(struct sampler *sampler); /* NULL is allowed */

struct sample_input {
    const float *logits; /* [n_vocab of sampler_new()] */
    int n_usable;        /* ids from here on are never drawn and have probability 0 */
    const struct tutti_sampling *sampling;
    const int32_t *ids; /* prompt, then answer so far */
    int n_prompt, n_ids;
    uint64_t seed;
    int choice;
    bool logprobs;
    int n_top; /* 0..LIMIT_TOP_LOGPROBS */
    /* Token mask; NULL: all tokens are allowed. Else token id is allowed if bit id % 32 of word id
     * / 32 is set; stop tokens are allowed if stop_is_allowed. At least one token must be allowed.
     * Log-probabilities are those of the whole vocabulary. */
    const uint32_t *allowed;
    bool stop_is_allowed;
    struct sample_stops {
        const int32_t *ids;
        size_t n;
    } stops[2];
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

/* Draws a token. Allocates nothing. False: a logit is NaN or infinite; out->token is then its id. */
MUST_CHECK bool sampler_draw(struct sampler *sampler, const struct sample_input *in, struct sample *out);

/* Log-probabilities of a given token, and of the in->n_top most probable ones, from the unchanged
 * in->logits. Allocates nothing. False: a logit is NaN or infinite; out->token is then its id. */
MUST_CHECK bool sampler_score(struct sampler *sampler, const struct sample_input *in, int32_t token,
                              struct sample *out);

/* A candidate for the next token of a beam. */
struct sample_candidate {
    int32_t id;
    float score;   /* log-probability after bias and penalties */
    float logprob; /* before them */
};

/* For beam search: the n_best largest scores, the largest first, ties by lower id. Bias and
 * penalties apply to log-probabilities here, as in transformers. row [n_vocab]: in->logits on
 * entry, log-probabilities on return. n_best: at most in->n_usable. False: a logit is NaN or
 * infinite, and *bad_id is its id. */
MUST_CHECK bool sampler_best(struct sampler *sampler, const struct sample_input *in, float *row, int n_best,
                             struct sample_candidate *out, int32_t *bad_id);

#endif
