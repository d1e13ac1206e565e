/* Constrained decoding in parallel to the steps: grammars are compiled on separate threads (compile.h), and another thread
 * computes token masks, so neither the compute threads nor other answers wait.
 *
 * What may come first is known with the grammar. After each token the engine thread asks for the next mask, which is made while
 * the next step computes. A sequence whose mask is late loses one row and waits; the others go on. For each slot of a
 * sequence at most one question is open: engine thread and mask thread alternate on its memory, and no queue can overflow.
 *
 * Masks are computed in slices of MASK_SLICE_STEPS. The next slice is for the owner that was served least recently, and for the
 * least recently served slot of that owner. So a mask that takes seconds delays the mask of another owner by one slice. */
#ifndef TUTTI_CONSTRAINT_H
#define TUTTI_CONSTRAINT_H

#include "base/system/queue.h"
#include "engine/constraints/compile.h"

struct constraints;

enum { MASK_SLICE_STEPS = 50 * 1000 }; /* some 3 ms; a usual mask takes a few steps */

struct constraint_options {
    const struct tokenizer *tok;
    int n_vocab; /* tokens that may be drawn */
    int max_seqs;
    struct bell *engine_bell; /* rung when a mask is there */
    /* Gets a request back whose grammar was compiled or refused. On the compiling thread. */
    void (*is_compiled)(void *user, struct request *request);
    void *user;
    bool has_no_mask_thread; /* for tests: the caller takes the turns, by constraint_take_turn() */
};

/* Takes the memory for all masks and starts the threads. TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status
constraints_new(struct constraints **out, const struct constraint_options *options, struct tutti_error *err);
/* Ends the threads; no sequence and no request may use it any more. NULL is allowed. */
void constraints_free(struct constraints *c);

/* Any thread: takes a request with a grammar until is_compiled() gives it back with grammar or grammar_error set. */
void constraint_compile(struct constraints *c, struct request *request);

/* ---- engine thread: slot is a sequence's number; nothing here waits or allocates ---- */

/* The answer in a slot has gone on by a token, its first one where is_first. */
void constraint_advance(struct constraints *c, int slot, const struct request *request, int32_t token,
                        bool is_first);
/* The answer in a slot is over. */
void constraint_end(struct constraints *c, int slot);
/* Hands over what found its slot busy, and rings the bell for all that was asked, once: a thread that is woken for each of many answers
 * sleeps again in between, and takes its core from the step each time. Before each step, and whenever an answer is awaited. */
void constraint_flush(struct constraints *c);
/* Is the mask behind the last token there? */
bool constraint_is_ready(const struct constraints *c, int slot);

struct constraint_mask {
    const uint32_t *bits; /* as grammar.h has them */
    bool can_end;
    bool is_empty;            /* no token may come */
    enum tutti_status status; /* TUTTI_OK, else why there is no mask */
};
/* There is no token to draw, and the answer may not end. False where there is no grammar. */
static inline bool constraint_is_stuck(const struct constraint_mask *mask)
{
    return mask->bits && (mask->status != TUTTI_OK || (mask->is_empty && !mask->can_end));
}
/* What may come next in a slot; index: tokens of the answer so far. Only where index is 0 or the mask is ready. */
struct constraint_mask constraint_get(const struct constraints *c, int slot, const struct grammar *grammar,
                                      int index);

/* Computes the next slice, as the mask thread does in a loop. False: no mask is awaited. */
bool constraint_take_turn(struct constraints *c);

/* What status means, for the one who asked. */
void constraint_explain(enum tutti_status status, struct tutti_error *err);

#endif
