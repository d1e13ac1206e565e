/* The scheduler: fills each step with rows, and owns the sequences, their pages and the request
 * queue.
 *
 * Rows. A step has up to max_batch_tokens rows. Decoding sequences come first with one row each,
 * round-robin if there are more than fit. Then come chunks of prompts (prefill), by priority, and
 * round-robin within a priority: after PREFILL_TURN tokens a prompt goes to the end of the round, so
 * that a long prompt delays short ones little. While prompts wait for prefill, a quarter of the
 * rows is reserved for them, so neither kind starves the other. pace.h limits prefill further.
 *
 * A prompt in prefill ages like one in the queue (request_queue.h), and so does a preempted sequence: it gains one priority for each
 * QUEUE_AGEING_US since its last turn, or since it was preempted. So an endless stream of prompts of better priority delays it,
 * but does not stop it.
 *
 * Admission. The queue decides which request starts next. A request starts only when the next step
 * has rows left for it, so waiting happens in the queue, where its time limit applies. The one
 * exception: it may wait for the end of a long prompt's turn.
 *
 * Pages. A sequence takes the pages of its prompt when it starts, and further ones as it grows.
 * When the pool is empty, the last sequence by order (the newest of the worst priority) is
 * preempted: it drops its pages, keeps its tokens, and is prefilled again, from the prefix cache
 * where possible, before any new request starts. The pool holds at least one sequence of
 * max_context tokens, so the first sequence by order can always run to its end.
 *
 * Sequences. lifecycle.h has their states, and all operations that change them.
 *
 * Prompt results. A request that needs a result from each row of its prompt takes from the prefix
 * cache only pages whose rows it has results of. Its chunks are limited by the room for logits.
 *
 * Speculation (speculation.h). Rows left in a step without prefill verify draft tokens, from prompt
 * lookup (prompt_lookup.h) or from a draft model (draft.h). No sequence is preempted for them. Only
 * drawn tokens enter the prefix cache.
 *
 * Running ahead. With options.runs_ahead a step is planned while the tokens of the step before are being drawn: each
 * sequence is assumed to continue (scheduler_assume()), and the backend feeds its row. A sequence that turns out to have
 * ended leaves the step that is in flight: what the step writes for it is in pages of its own, which are freed, and later
 * steps overwrite. Pages enter the prefix cache when all of their tokens are known.
 *
 * Bidirectional prefixes. Where a model attends in both directions over a prefix, the prefix is
 * computed in one step, and its pages are never shared: max_batch_tokens must be at least
 * max_context + max_seqs, and there is no prefix cache.
 *
 * Engine thread only. Nothing here allocates after scheduler_new(). */
#ifndef TUTTI_SCHEDULER_H
#define TUTTI_SCHEDULER_H

#include "engine/kv/kv_pool.h"
#include "engine/requests/sequence.h"
#include "engine/schedule/pace.h"
#include "engine/schedule/request_queue.h"
#include "engine/speculate/draft.h"
#include "engine/speculate/prompt_lookup.h"
#include "engine/speculate/speculation.h"

/* Most prompts are shorter and are prefilled in one turn: alternating between two would only delay
 * the first. */
enum { PREFILL_TURN = 1024 };

struct scheduler_options {
    int max_seqs, max_batch_tokens, max_context, n_pages;
    int page_tokens;     /* positions of a page */
    int n_slots, window; /* struct kv_pool_options */
    int max_requests;    /* in the queue, at most */
    int max_outputs;     /* rows of logits in a step; at least one for each sequence that fits into a step */
    bool no_prefix_cache;
    uint64_t hash_seed;
    double max_slowdown;           /* struct pace */
    int max_lookup_tokens;         /* draft tokens of a sequence, by prompt lookup; 0: none */
    int max_draft_tokens;          /* draft tokens of a sequence, by the draft model */
    double draft_share;            /* struct speculation */
    bool forces_drafts;            /* for tests */
    bool has_shifts;               /* sequences may have positions before zero */
    bool runs_ahead;               /* a step may be planned while tokens of the last one are being drawn */
    const struct model_desc *desc; /* of a model with bidirectional prefixes; else NULL */
};

/* The rows of one sequence in a step. */
struct plan_entry {
    struct sequence *seq;
    int n_rows;
    int n_drafts; /* of those, draft tokens: their logits follow row output */
    int output;   /* row of the logits; -1: none, the prefill is not complete */
    bool is_late; /* its token mask is not ready: its last row does not count, and has no output */
    /* Prompt rows with results are consecutive, both in the step and in the outputs. */
    int first_pos;              /* position of the first of them */
    int n_scores, first_score;  /* row of the logits */
    int n_hidden, first_hidden; /* row of the hidden states */
};

struct scheduler {
    struct scheduler_options options;
    int page_tokens; /* as in options */
    struct kv_pool *pool;
    struct sequence *seqs;               /* [max_seqs] */
    int n_running, n_preempted, n_taken; /* sequences; n_taken: slots that are not free */
    struct spiller *spiller;             /* NULL: none. spiller.h */
    int n_restoring;                     /* sequences that wait for spilled pages */
    struct request_queue queue;          /* requests with choices that have not started */
    struct forecast forecast;
    uint64_t n_turns; /* prefill turns given */
    uint64_t now_us;  /* time of the step being planned */
    uint64_t n_preemptions;
    uint64_t n_begun; /* requests that started, or ended before */
    struct pace pace;
    struct speculation speculation;
    struct prompt_lookup *lookups;    /* [max_seqs] of each slot */
    struct draft_proposal *proposals; /* [2 max_seqs] scratch */
    struct draft *draft;              /* NULL: none; borrowed */
    int cursor;                       /* slot where the round-robin of decoding sequences continues */
    bool is_prompt_turn;              /* if max_batch_tokens is 1, decoding and prefill alternate */

    /* The planned step */
    struct step step;
    bool is_in_flight;   /* it was submitted, and scheduler_advance() follows: sequences that end leave it */
    int n_decoding_rows; /* without draft tokens */
    int n_draft_rows;    /* draft tokens */
    double prefill_distance;    /* sum of the positions of its prefill rows */
    bool may_speculate;         /* speculation is possible for a sequence of it */
    uint64_t draft_us;          /* duration of the draft model's passes */
    double plan_us;             /* duration of choosing draft tokens, without those passes */
    struct plan_entry *entries; /* [max_seqs] */
    int n_entries;
    struct page_copy *copies; /* [max_seqs] made before the step, in this order */
    int n_copies;

    int32_t *token_ids, *token_sources, *positions, *row_seqs, *output_rows; /* [max_batch_tokens] */
    int32_t *rope_positions, *block_positions;    /* [max_batch_tokens]; with options.desc */
    const int32_t **page_tables, **window_tables; /* [max_seqs] */
    int32_t *prefix_lens, *slots, *adapters;      /* [max_seqs] */
    int32_t *ids_memory, *page_table_memory, *window_table_memory, *lookup_memory; /* of all sequences */
    int32_t *n_holders, *n_viewers; /* [n_pages] scratch of the audit; NULL: no kv_pool_has_viewers() */
};

/* options.n_pages: at least those of max_context tokens. TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status scheduler_new(struct scheduler **out, const struct scheduler_options *options,
                                           struct tutti_error *err);
void scheduler_free(struct scheduler *s); /* NULL is allowed */

/* Adds a request whose prompt is tokenized to the queue. */
void scheduler_add(struct scheduler *s, struct request *request);

/* Plans a step (plan.c): starts requests, then fills step, entries and copies. False: there is
 * nothing to do. */
bool scheduler_plan(struct scheduler *s, uint64_t now_us);

/* Removes a request with choices that have not started from the queue. */
void scheduler_remove(struct scheduler *s, struct request *request);

/* For use between steps. NULL: all invariants hold. Else what is wrong. */
const char *scheduler_audit(struct scheduler *s);

/* Pages that n_tokens take. */
static inline int scheduler_pages(const struct scheduler *s, int n_tokens)
{
    return (int)kv_pages_of(n_tokens, s->page_tokens);
}

#endif
