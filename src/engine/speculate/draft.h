/* The draft model: a second, smaller model that proposes draft tokens, which the target model
 * verifies (speculation.h); or the target's own layer for multi-token prediction (MTP).
 *
 * For each slot of the scheduler it knows how many tokens of the sequence it has computed. Rejected
 * draft tokens are dropped by lowering that count: a page enters the prefix cache only after its
 * tokens were drawn by the target. The draft model has its own page pool and its own prefix cache.
 * So choices of one prompt, preempted sequences and later requests of a conversation reuse what it
 * computed before. A sequence for which there is no free page gets no draft tokens; no sequence
 * waits or is preempted.
 *
 * A draft token is drawn as the sampler would draw it from the draft model's logits, with the
 * request's settings and the random numbers of its position. So it equals the target's token unless
 * the two distributions differ enough (backend/sample.h).
 *
 * The MTP layer is a layer of the target, whose keys and values are in the target's pages and are
 * computed by its steps. So it never lags, and has no pages of its own: it drafts where a sequence's last
 * page is not shared, and takes the further pages that its drafts need from the target's pool. Its
 * first pass begins from the hidden state that the page of the position before has; each further pass
 * from that of the pass before.
 *
 * Engine thread only. Nothing here allocates after draft_new(). */
#ifndef TUTTI_DRAFT_H
#define TUTTI_DRAFT_H

#include "engine/kv/kv_pool.h"
#include "engine/requests/sequence.h"
#include "engine/speculate/speculation.h"
#include "model/model.h"

struct draft;

typedef struct floats draft_submit_fn(struct model *model, struct kv_memory *kv, const struct step *step);
typedef void draft_wait_fn(struct model *model);

struct draft_options {
    struct model *model;             /* the target itself: its MTP layer drafts */
    const struct model_desc *target; /* its stop tokens and usable ids apply */
    struct kv_pool *target_pool;     /* of the MTP layer; else NULL */
    struct kv_memory *target_kv;     /* likewise */
    draft_submit_fn *submit;
    draft_wait_fn *wait;
    int max_seqs, max_context, n_pages;
    bool no_prefix_cache;
    uint64_t hash_seed;
};

/* Rows and outputs of a step of a draft model, for model_reserve(). */
int draft_max_rows(int max_seqs);
int draft_max_outputs(int max_seqs);

/* Checks that the draft model fits the target: equal numbers of usable ids and, where both have
 * tokenizers, equal tokens. TUTTI_E_ARGUMENT: the text names the difference. TUTTI_E_UNSUPPORTED: a
 * kind of model that cannot draft. TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status draft_check(const struct model *draft, const struct model *target,
                                         struct tutti_error *err);

/* A draft model must be reserved for steps of draft_max_rows() rows; it is borrowed. TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status draft_new(struct draft **out, const struct draft_options *options,
                                       struct tutti_error *err);
void draft_free(struct draft *draft); /* NULL is allowed */

/* Releases the pages of slots whose sequence has ended, was preempted or was replaced. seqs:
 * [max_seqs], here and below. */
void draft_follow(struct draft *draft, const struct sequence *seqs);

/* Fills is_draft, acceptance, most and n_lag of a proposal for a decoding sequence. most: on entry,
 * the largest number of draft tokens allowed. False: the draft model cannot draft for it now. */
bool draft_propose(struct draft *draft, const struct speculation *sp, const struct sequence *seq,
                   struct draft_proposal *proposal);

/* Runs the draft model for every proposal with is_draft: drafts n tokens, or only computes n_catch_up rows
 * to catch up. Draft tokens are written after the sequence's ids; n is set to their actual number.
 * Returns the duration in microseconds. */
uint64_t draft_run(struct draft *draft, struct speculation *sp, struct sequence *seqs,
                   struct draft_proposal *proposals, int n_proposals);

/* Reports acceptance: the first n_accepted of n_drafted draft tokens were accepted. */
void draft_note_acceptance(struct draft *draft, struct speculation *sp, int slot, int n_drafted,
                           int n_accepted);

struct draft_counts {
    uint64_t n_passes, n_rows;
    struct kv_counts pages;
};
struct draft_counts draft_counts(const struct draft *draft);

/* NULL: all invariants hold. Else what is wrong. */
const char *draft_audit(struct draft *draft, const struct sequence *seqs);

#endif
