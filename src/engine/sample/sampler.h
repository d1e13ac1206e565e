/* From one row of logits to one token.
 *
 * Order: logit bias, repetition penalty, presence and frequency penalties, allowed tokens, temperature, top-k, top-p, min-p, typical-p,
 * draw.
 * Each as transformers' LogitsProcessors do it, where they have it; of equal logits the lower id counts as the larger
 * one, so top-k keeps exactly k. A row is worked on by one thread; what comes out depends on the arguments alone.
 *
 * The draw is a race: every token has a random number of its own, a function of (seed, choice, position, token), and the first one
 * to arrive wins, a probable one sooner. So two rows of logits that are alike, with the same seed at the same position, are mostly
 * drawn the same token from: with a probability of at least (1 - d) / (1 + d), where d is the total variation distance of the two
 * distributions. That is what a draft model's guesses live on. Yellott, 1977 (races and the Gumbel distribution); Daliri, Musco
 * and Suresh, 2024, "Coupling without Communication and Drafter-Invariant Speculative Decoding" (the bound). */
#ifndef TUTTI_SAMPLER_H
#define TUTTI_SAMPLER_H

#include "base/error.h"
#include "base/limits.h"

struct sampler; /* scratch memory for one thread */

MUST_CHECK enum tutti_status sampler_new(struct sampler **out, int n_vocab, struct tutti_error *err);
void sampler_free(struct sampler *sampler); /* NULL is allowed */

struct sample_input {
    const float *logits; /* [n_vocab of sampler_new()] */
    int n_usable;        /* ids from here on are never chosen, and have no share in probabilities */
    const struct tutti_sampling *sampling;
    const int32_t *ids; /* prompt, then answer so far */
    int n_prompt, n_ids;
    uint64_t seed;
    int choice;
    bool logprobs;
    int n_top; /* 0..LIMIT_TOP_LOGPROBS */
    /* NULL: all tokens are allowed. Else those whose bit id % 32 of word id / 32 is set, and stop tokens exactly where stop_is_allowed:
     * at least one. Log-probabilities are of the whole vocabulary all the same. */
    const uint32_t *allowed;
    bool stop_is_allowed;
    struct sample_stops {
        const int32_t *ids;
        size_t n;
    } stops[2];
};

struct sample {
    int32_t token;
    float logprob; /* natural logarithm of the softmax of the logits as they came */
    int n_top;
    struct sample_top {
        int32_t id;
        float logprob;
    } top[LIMIT_TOP_LOGPROBS]; /* most probable first */
};

/* Allocates nothing. False: a logit is NaN or infinite; *out->token is then its id. */
MUST_CHECK bool sampler_draw(struct sampler *sampler, const struct sample_input *in, struct sample *out);

/* The log-probabilities of a token that is there already, and of the most probable ones: in->n_top of them, of in->logits as they
 * are. Allocates nothing. False: a logit is NaN or infinite; *out->token is then its id. */
MUST_CHECK bool sampler_score(struct sampler *sampler, const struct sample_input *in, int32_t token,
                              struct sample *out);

/* A token that may come next. */
struct sample_candidate {
    int32_t id;
    float score;   /* log-probability after bias and penalties */
    float logprob; /* before them */
};

/* The n_best largest scores, the largest first, of equal ones the lower id first: for beam search. Bias and penalties
 * work on log-probabilities here, as in transformers. row [n_vocab]: in->logits, which become log-probabilities.
 * n_best: at most in->n_usable. False, and *bad_id: a logit is NaN or infinite. */
MUST_CHECK bool sampler_best(struct sampler *sampler, const struct sample_input *in, float *row, int n_best,
                             struct sample_candidate *out, int32_t *bad_id);

#endif
