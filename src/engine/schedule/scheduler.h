/* Who runs now: fills each step with rows, and owns the sequences, their pages and the line of those who wait.
 *
 * A step has up to max_batch_tokens rows. One row for each decoding sequence comes first (in turn, where they are more
 * than fit), then pieces of the prompts that are being read, the best priority first, of one priority in turn: who has read
 * READ_TURN tokens goes behind the others, so that a long prompt delays short ones little. While prompts are read, a
 * quarter of the rows is theirs, so neither kind can starve the other; and no more than pace (pace.h) allows.
 *
 * A prompt that has begun ages like one that waits (line.h): it gains a priority each LINE_AGEING_US since its last turn, so
 * prompts of better priorities that come without end delay it, and do not stop it.
 *
 * Who begins is decided by the line (line.h), and late: not before the next step has rows left for him. So what a request
 * waits is waited in the line, where limits of that time are kept; only behind a long prompt he may wait for the end of its turn.
 *
 * Pages: a sequence takes those of its prompt when it begins, later ones as it grows. Where none is left the last sequence
 * by order (the newest of the worst priority) is preempted: it gives its pages back, keeps its tokens, and is read again
 * from the prefix cache or anew before anybody new begins. The pool holds at least one sequence of max_context tokens, so
 * the first by order can always go on to its end.
 *
 * The beams of a beam search are sequences side by side that share the pages of what they have in common. They take their
 * slots together, are preempted together, and end together; one that has its candidates waits for the others.
 *
 * Where a request wants something of each row of its prompt, what is not there yet is not taken from the prefix cache, and its
 * prompt is read in pieces of as many rows as there is room for their logits.
 *
 * Where guesses are allowed (speculation.h), rows that are left when nobody reads a prompt verify guessed tokens, of repeated text
 * (guess.h) or of a draft model (draft.h). Nobody is preempted for those, and only tokens that were drawn become known to the
 * prefix cache.
 *
 * Where a model reads prefixes in both directions, a prefix is read in one step, and nothing of it is shared with others:
 * max_batch_tokens must leave room for max_context beside max_seqs decoding rows, and there is no prefix cache.
 *
 * Engine thread only. Nothing here allocates after scheduler_new(). */
#ifndef TUTTI_SCHEDULER_H
#define TUTTI_SCHEDULER_H

#include "engine/kv/kv_pool.h"
#include "engine/requests/sequence.h"
#include "engine/schedule/line.h"
#include "engine/schedule/pace.h"
#include "engine/speculate/draft.h"
#include "engine/speculate/speculation.h"

struct scheduler_options {
    int max_seqs, max_batch_tokens, max_context, n_pages;
    int max_requests; /* that wait, at most */
    int max_outputs;  /* rows of logits in a step; at least one for each sequence that fits into it */
    bool no_prefix_cache;
    uint64_t hash_seed;
    double max_slowdown;           /* struct pace */
    int max_guesses;               /* of a sequence, by lookup; 0: none */
    int max_drafts;                /* of a sequence, by the draft model */
    double draft_share;            /* struct speculation */
    bool forces_guesses;           /* for tests */
    const struct model_desc *desc; /* of a model with prefixes that are read in both directions; else NULL */
};

/* A page whose content must be copied before the step; in this order. */
struct page_copy {
    int32_t dst, src;
};

/* One sequence's share of a step. */
struct plan_entry {
    struct sequence *seq;
    int n_rows;
    int n_guesses; /* of those: their logits stand behind the others' */
    int output;    /* row of the logits; -1: none, its prompt is not read to the end */
    /* Rows of a prompt whose results are wanted: they follow each other, in the step as in the outputs. */
    int first_pos;              /* position of the first of them */
    int n_scores, first_score;  /* row of the logits */
    int n_hidden, first_hidden; /* row of the hidden states */
};

struct scheduler {
    struct scheduler_options options;
    struct kv_pool *pool;
    struct sequence *seqs; /* [max_seqs] */
    int n_running, n_preempted;
    struct spiller *spiller; /* NULL: none. spiller.h */
    int n_returning;         /* of the running ones: wait for pages from the file */
    struct line line;        /* requests with choices that have not begun */
    struct forecast forecast;
    uint64_t n_turns; /* given */
    uint64_t now_us;  /* of the step that is planned */
    uint64_t n_preemptions;
    struct pace pace;
    struct speculation speculation;
    struct guess_offer *offers; /* [2 max_seqs] scratch */
    struct draft *draft;        /* NULL: none; borrowed */
    int cursor;                 /* decoding sequences take turns from this slot on */
    bool is_prompt_turn;        /* with one row a step: decoding and reading alternate */

    /* The planned step */
    struct step step;
    int n_decoding_rows; /* of it, without guesses */
    int n_guess_rows;
    double reading_distance;    /* sum of the positions of its rows of prompts */
    bool may_guess;             /* a sequence of it could be guessed for */
    uint64_t draft_us;          /* that the draft model took */
    double plan_us;             /* that deciding what is guessed took beside that */
    struct plan_entry *entries; /* [max_seqs] */
    int n_entries;
    struct page_copy *copies; /* [max_seqs] */
    int n_copies;

    int32_t *token_ids, *positions, *row_seqs, *output_rows; /* [max_batch_tokens] */
    int32_t *rope_positions, *block_positions;               /* [max_batch_tokens]; with options.desc */
    const int32_t **page_tables;                             /* [max_seqs] */
    int32_t *prefix_lens, *adapters;                         /* [max_seqs] */
    int32_t *ids_memory, *page_table_memory, *guess_memory;  /* of all sequences */
    int32_t *n_holders;                                      /* [n_pages] scratch of the audit */
};

/* options.n_pages: at least those of max_context tokens. TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status scheduler_new(struct scheduler **out, const struct scheduler_options *options,
                                           struct tutti_error *err);
void scheduler_free(struct scheduler *s); /* NULL is allowed */

/* Puts a request whose prompt is ready into the line. */
void scheduler_add(struct scheduler *s, struct request *request);

/* Fills step, entries and copies. False: there is nothing to do. */
bool scheduler_plan(struct scheduler *s, uint64_t now_us);

/* While a step is planned: pages that others have filled since seq began are taken over instead of computed again. Of many users
 * who come at once with the same long beginning, one reads it. */
void scheduler_adopt_pages(struct scheduler *s, struct sequence *seq);

/* Likewise: takes all pages of the last running sequence by order, and of the other beams of its search. */
void scheduler_preempt_last(struct scheduler *s);

/* After the step: its rows are computed, but for guesses; full pages become known to the prefix cache. */
void scheduler_advance(struct scheduler *s);

/* Another choice of a request whose prompt seq has just read: a sequence that shares all its pages. NULL: no slot is
 * free, or every choice has begun. */
struct sequence *scheduler_fork(struct scheduler *s, const struct sequence *seq);

/* The beams of a request become what its search has chosen as next; a token more each. Those that continue the same beam
 * share its pages. All live beams have run, none is preempted. */
void scheduler_branch(struct scheduler *s, struct request *request);

/* Puts a token behind a sequence that goes on. */
void scheduler_append(struct scheduler *s, struct sequence *seq, int32_t token);

/* The content of seq's next full page is there: it need not be computed. */
void scheduler_take_back(struct scheduler *s, struct sequence *seq);

/* The token put behind seq last was guessed, so it is computed already. */
void scheduler_accept(struct scheduler *s, struct sequence *seq);

/* The guesses that were not accepted are given up, with their pages. */
void scheduler_drop_guesses(struct scheduler *s, struct sequence *seq);

/* seq has read the prompt, and all forks were made: choices that found no slot begin later by themselves. */
void scheduler_end_reading(struct scheduler *s, struct sequence *seq);

/* Ends a sequence, and all others of its beam search: their pages are dropped, their slots are free. */
void scheduler_end(struct scheduler *s, struct sequence *seq);

/* Takes a request with choices that have not begun out of the line. */
void scheduler_remove(struct scheduler *s, struct request *request);

/* NULL: the books agree. Else what is wrong. */
const char *scheduler_audit(struct scheduler *s);

static inline int pages_of(int n_tokens)
{
    return (n_tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
}

#endif
