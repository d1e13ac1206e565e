/* The state that the threads of one engine share. Private to the engine's files. */
#ifndef TUTTI_ENGINE_STATE_H
#define TUTTI_ENGINE_STATE_H

#include "backend/sample.h"
#include "base/system/queue.h"
#include "base/system/workers.h"
#include "engine/constraints/constraint.h"
#include "engine/run/alloc_guard.h"
#include "engine/run/engine.h"
#include "engine/run/stats.h"
#include "engine/schedule/lifecycle.h"
#include "engine/schedule/spiller.h"

/* From the engine thread to the text thread: a token, or the end of a choice, or both; or a whole answer of a
 * beam search. */
struct record {
    struct request *request;
    int choice;
    bool has_token;
    bool has_stop_token; /* sample is the token that ended the choice */
    enum tutti_finish finish;
    enum tutti_status status;         /* where finish is TUTTI_FINISH_ERROR */
    bool is_over;                     /* the grammar was complete: it ended without a stop token */
    const struct beam_answer *answer; /* its tokens, in request->beams; NULL: no beam search */
    size_t n_cached;                  /* prompt tokens from the prefix cache */
    uint64_t queue_us, ttft_us;
    size_t n_accepted, n_rejected; /* draft tokens so far */
    size_t n_searched;             /* tokens computed by all beams; in the record of the first choice */
    struct sample sample;
};

/* A token to draw after the step. A sequence's draws are adjacent: the first row, then those of its
 * draft tokens. */
struct draw {
    struct sequence *seq;
    int output; /* row of the logits */
    struct sample sample;
    int n_ids;           /* tokens before it, including draft tokens */
    int32_t draft_token; /* the draft token at this position; -1: none, the last draw of its sequence */
    bool is_left;        /* the device could not draw it */
    bool is_accepted; /* the draft token is accepted and does not end the answer: the next draw counts too */
    bool is_finite;
    struct constraint_mask mask; /* where the request has a grammar */
    bool is_over;                /* the grammar allows no further token, and there is no stop token to draw */
    bool is_stuck; /* there is no mask, or it allows no token but stop tokens where the answer may not end */
};

/* A prompt token whose log-probability is taken from a row of logits. */
struct score {
    struct plan_entry *entry;
    int pos, output; /* the token's position; the row of the logits */
    bool is_finite;
};

/* What the engine notes of a step when it submits it. */
struct submission {
    int n_rows, n_decoding_rows, n_draft_rows;
    double prefill_distance, plan_us;
    bool may_speculate;
    uint64_t draft_us, submit_us;
};

struct tutti_engine {
    struct model *model;
    struct engine_hooks hooks;
    struct tutti_engine_options options; /* every 0 replaced */
    struct request_limits limits;
    uint64_t seed; /* for requests without one */
    /* What close must undo. has_model, has_draft_model: we have set its in_use */
    bool has_model, has_draft_model, has_lock, has_text_thread, has_engine_thread;

    /* ---- callers, under lock ---- */
    pthread_mutex_t lock;
    struct request **slots; /* [n_slots] requests whose last event was not sent; id % n_slots is the slot */
    int32_t *free_slots;    /* [n_slots] a stack */
    int n_slots, n_free_slots;
    int64_t n_live_choices; /* accepted, last event not sent */
    int64_t n_alive;        /* request structs in memory */
    uint64_t serial;
    struct shares shares;
    struct request_memory request_memory;
    struct request *prepared_head, *prepared_tail; /* queue to the text thread */
    bool is_draining, is_closing;

    struct workers *prompts; /* threads that render and tokenize prompts */

    /* ---- text thread ---- */
    pthread_t text_thread;
    struct bell text_bell;
    struct token_scratch {
        struct tutti_token *tokens;
        struct tutti_top_token *tops;
        size_t n_tokens, n_tops; /* room */
        struct buf bytes;
    } scratch;                                       /* of one event */
    struct long_answer *answers_head, *answers_tail; /* of beam searches, not read whole yet */

    /* ---- between text thread and engine thread ---- */
    struct queue *ready;     /* struct request *: their prompts are tokenized */
    struct queue *records;   /* struct record */
    atomic_bool has_ends;    /* the engine thread must look for cancelled requests and ended choices */
    atomic_bool wants_room;  /* the engine thread waits for room in records */
    atomic_bool is_stopping; /* the engine thread must end */

    /* ---- engine thread ---- */
    pthread_t engine_thread;
    struct bell engine_bell;
    struct scheduler *scheduler;
    struct kv_memory *kv;
    struct spill *spill;         /* NULL: pages are not spilled */
    struct spiller *spiller;     /* likewise */
    struct draft *draft;         /* NULL: none */
    uint64_t step_us;            /* how long the last step took */
    struct submission submitted; /* the last step */
    uint64_t computed_us;        /* when the end of a step was last noticed */
    /* The engine thread found nothing to do; its records may not be sent yet. */
    atomic_bool is_settled;
    struct floats logits; /* of the last step, [its outputs][n_vocab], in the backend's memory */
    float *host_row;      /* [n_vocab]: with hooks.logits; else NULL */
    struct draw *draws;   /* [max_seqs + rows of draft tokens] */
    int n_draws;
    struct sample_input *inputs; /* [max outputs of a step, or draws] of the backend's sample() */
    struct sample *samples;      /* [max draws]: results, draw by draw */
    float *hidden;               /* [max_batch_tokens][d_model]: of rows whose hidden states are needed */
    int32_t *kept_rows;          /* [2 max_batch_tokens] scratch of hidden_rows.c: rows, then their pages */
    struct score *scores;        /* [max outputs of a step] */
    int n_scores;
    struct constraints *constraints; /* NULL: the model has no tokenizer */
    bool has_failed;                 /* a rank was lost, and options.failed was called */
    alloc_phase phase;
    struct stats stats;
};

/* Engine thread. */
static inline int slot_of(const struct tutti_engine *e, const struct sequence *seq)
{
    return (int)(seq - e->scheduler->seqs);
}

/* text.c */
void *text_main(void *engine);

/* prompts.c */
MUST_CHECK enum tutti_status prompts_start(struct tutti_engine *e, struct tutti_error *err);
/* Queues a request to be tokenized. If it has a grammar, that was compiled or refused before. Any
 * thread. */
void prompts_add(void *engine, struct request *r);

/* step.c */
void *step_main(void *engine);
/* draws.c, engine thread */
/* Before scheduler_advance(): removes rows whose token mask is late from the step, which took
 * step_us; their sequences wait. */
void draws_drop_late(struct tutti_engine *e, uint64_t step_us);
/* Lets sequences run again whose mask has arrived. True: a sequence still waits for its mask. */
bool draws_wake(struct tutti_engine *e);
/* Fills draws: for each sequence with logits, and for each choice that starts from the same logits. */
void draws_collect(struct tutti_engine *e);
void draws_run(struct tutti_engine *e);
/* For a step that is not waited for. draws_can_submit(): true: every token of it can be drawn by the device, and all token
 * masks are there; waits for these as long as the step is computed. draws_submit(): submits sampling; false: a draw needs
 * the host. draws_take(): waits for the results. */
bool draws_can_submit(struct tutti_engine *e);
bool draws_submit(struct tutti_engine *e);
void draws_take(struct tutti_engine *e);
/* answers.c, engine thread */
/* The state of a sequence for a record; a record is then sent. */
struct record answers_record(const struct sequence *seq);
/* The same for a sequence that ends: with the work of a beam search. */
struct record answers_last_record(const struct sequence *seq);
void answers_send(struct tutti_engine *e, const struct record *record);
/* Counts the time to the first token, or since the last one. */
void answers_note_times(struct tutti_engine *e, struct sequence *seq, uint64_t now_us);
/* scheduler_commit(); a request without kept keys and values recomputes its tokens. */
void answers_append(struct tutti_engine *e, struct sequence *seq, const int32_t *tokens, int n);
/* Appends the tokens drawn for a sequence, up to the first one that differs from its draft token,
 * or ends the sequence. Notes accepted draft tokens in *step. draws: the sequence's first
 * draw. Returns its number of draws. */
int answers_commit(struct tutti_engine *e, const struct draw *draws, uint64_t now_us,
                   struct speculation_result *step);
/* Ends a sequence, or all choices of a request that ends as one. sample: the token that ended it or
 * was wrong; NULL: no token. Frees the request if this was its last choice. */
void answers_end(struct tutti_engine *e, struct sequence *seq, enum tutti_finish finish,
                 enum tutti_status status, const struct sample *sample);
/* Ends the choices of a request that have not started, with copies of record. */
void answers_end_unstarted(struct tutti_engine *e, struct request *r, struct record record);
/* Wakes the text thread for the records sent so far. */
void answers_flush(struct tutti_engine *e);
/* beams.c, engine thread */
/* first has prefilled the prompt of a search: it and its siblings become the beams. */
void beams_attach(struct sequence *first);
/* A beam has its candidates. When all have, the search takes a step for all of them, or ends. */
void beams_commit(struct tutti_engine *e, struct sequence *seq, uint64_t now_us);
/* prompt_rows.c: takes the results of prompt rows from a computed step, before scheduler_advance() */
void prompt_rows_take(struct tutti_engine *e);
/* hidden_rows.c, for multi-token prediction. Before scheduler_advance(): keeps the hidden states of the last rows
 * of sequences and of pages. After the tokens are committed: those of the last accepted draft tokens. */
void hidden_rows_keep(struct tutti_engine *e);
void hidden_rows_settle(struct tutti_engine *e);
/* A score of a running sequence that is NaN or infinite; NULL: none. */
const struct score *prompt_rows_bad_score(const struct tutti_engine *e);
/* spill_start.c */
MUST_CHECK enum tutti_status spill_check_options(struct tutti_engine *e, struct tutti_error *err);
/* Opens the spill file if the options have one. The model and the KV memory are ready, no thread
 * runs yet. */
MUST_CHECK enum tutti_status spill_start(struct tutti_engine *e, uint64_t hash_seed, struct tutti_error *err);
/* audit.c */
void audit_check(struct tutti_engine *e);

#endif
