/* The draft model: a second, smaller model that guesses the next tokens of sequences, for speculation.h to verify.
 *
 * It follows the sequences of the scheduler: for each slot it knows how many of the tokens there it has computed. Tokens that were
 * guessed and not drawn are forgotten by counting back, since a page is never known to others before its tokens are drawn.
 * Its keys and values lie in a page pool of its own, with a prefix cache of its own, so that choices of one prompt, preempted
 * sequences and later turns of a conversation find what was computed before. A sequence that finds no page is not guessed for;
 * nobody waits or is preempted.
 *
 * A token is chosen as the sampler would choose it from the draft model's logits, with the request's settings and the random
 * numbers of its place: so it is the token that the target will draw, unless the two distributions tell them apart.
 *
 * Engine thread only. Nothing here allocates after draft_new(). */
#ifndef TUTTI_DRAFT_H
#define TUTTI_DRAFT_H

#include "engine/kv/kv_pool.h"
#include "engine/requests/sequence.h"
#include "engine/speculate/speculation.h"
#include "model/model.h"

struct draft;

typedef void draft_forward_fn(struct model *model, struct kv_memory *kv, const struct step *step,
                              float *logits);

struct draft_options {
    struct model *model;
    const struct model_desc *target; /* whose stop tokens and usable ids count */
    draft_forward_fn *forward;
    int max_seqs, max_context, n_pages;
    bool no_prefix_cache;
    uint64_t hash_seed;
};

/* Rows and outputs of a step of the draft model, for model_reserve(). */
int draft_max_rows(int max_seqs);
int draft_max_outputs(int max_seqs);

/* Both can guess for each other: equal numbers of usable ids, and where both have tokenizers, equal tokens.
 * TUTTI_E_ARGUMENT says what differs; TUTTI_E_UNSUPPORTED: of a kind that cannot guess; TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status draft_check(const struct model *draft, const struct model *target,
                                         struct tutti_error *err);

/* The model is reserved for steps of draft_max_rows(), and stays the caller's. TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status draft_new(struct draft **out, const struct draft_options *options,
                                       struct tutti_error *err);
void draft_free(struct draft *draft); /* NULL is allowed */

/* Gives back what ended, preempted and other sequences held. seqs: [max_seqs], here and below. */
void draft_follow(struct draft *draft, const struct sequence *seqs);

/* Fills is_draft, chance, most and n_behind of an offer for a sequence that decodes. most: in, what is allowed. False: there is
 * none. */
bool draft_offer(struct draft *draft, const struct speculation *sp, const struct sequence *seq,
                 struct guess_offer *offer);

/* Guesses n tokens, or reads n_read, for each offer that is the draft model's; the tokens are put behind ids, and n is what it
 * really was. Returns the time. */
uint64_t draft_run(struct draft *draft, struct speculation *sp, struct sequence *seqs,
                   struct guess_offer *offers, int n_offers);

/* The first n_right of n_drafted guesses were drawn. */
void draft_judge(struct draft *draft, struct speculation *sp, int slot, int n_drafted, int n_right);

struct draft_counts {
    uint64_t n_passes, n_rows;
    struct kv_counts pages;
};
struct draft_counts draft_counts(const struct draft *draft);

/* NULL: its books agree. Else what is wrong. */
const char *draft_audit(struct draft *draft, const struct sequence *seqs);

#endif
