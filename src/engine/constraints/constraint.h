/* Constrained decoding, in parallel to the steps: grammars are compiled on separate threads
 * (compile.h), and another thread computes token masks. Neither the compute threads nor other
 * sequences wait for them.
 *
 * The mask of the first token comes with the compiled grammar. After each token the engine thread
 * requests the next mask, which is computed while the next step runs. A sequence whose mask is late
 * loses one row and waits; the others go on. Each slot has at most one open mask request: the
 * engine thread and the mask thread alternate on its memory, and no queue can overflow.
 *
 * Masks are computed in slices of MASK_SLICE_STEPS. The next slice is for the owner that was served
 * least recently, and for the least recently served slot of that owner. So a mask that takes
 * seconds delays the mask of another owner by one slice. */
#ifndef TUTTI_CONSTRAINT_H
#define TUTTI_CONSTRAINT_H

#include "base/system/queue.h"
#include "engine/constraints/compile.h"

struct constraints;
struct chat_marks;

enum { MASK_SLICE_STEPS = 50 * 1000 }; /* some 3 ms; a usual mask takes a few steps */

struct constraint_options {
    const struct tokenizer *tok;
    int n_vocab; /* tokens that may be drawn */
    int max_seqs;
    struct bell *engine_bell; /* rung when a mask is ready */
    /* Returns a request whose grammar was compiled or refused. On the compiling thread. */
    void (*is_compiled)(void *user, struct request *request);
    void *user;
    const struct chat_marks *marks; /* how the model writes calls; NULL: it has no chat format */
    const int32_t *stop_ids;        /* [n_stop_ids] that end answers in chats */
    size_t n_stop_ids;
    bool has_no_mask_thread; /* for tests: the caller computes slices by constraint_compute_slice() */
};

/* Allocates the memory for all masks and starts the threads. TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status
constraints_new(struct constraints **out, const struct constraint_options *options, struct tutti_error *err);
/* Ends the threads; no sequence and no request may use c any more. NULL is allowed. */
void constraints_free(struct constraints *c);

/* Any thread: queues a request with a grammar; is_compiled() returns it with grammar or
 * grammar_error set. */
void constraint_compile(struct constraints *c, struct request *request);

/* ---- engine thread: slot is a sequence's index; nothing here waits or allocates ---- */

/* Requests the mask after token, the latest token of the answer in a slot. is_first: its first
 * token. */
void constraint_advance(struct constraints *c, int slot, const struct request *request, int32_t token,
                        bool is_first);
/* The answer in a slot has ended. */
void constraint_end(struct constraints *c, int slot);
/* Hands requests over whose slot was busy, and rings the mask thread's bell once for all new ones.
 * (A thread that is woken for each of many requests sleeps again in between, and takes its core
 * from the step each time.) Call before each step, and whenever the engine waits for a mask. */
void constraint_flush(struct constraints *c);
/* True: the mask after the latest token is ready. */
bool constraint_is_ready(const struct constraints *c, int slot);

struct constraint_mask {
    const uint32_t *bits; /* layout: grammar.h */
    bool can_end;
    bool is_empty;            /* no token is allowed */
    enum tutti_status status; /* not TUTTI_OK: why there is no mask */
};
/* No token is allowed, and the answer may not end. False where there is no grammar. */
static inline bool constraint_is_stuck(const struct constraint_mask *mask)
{
    return mask->bits && (mask->status != TUTTI_OK || (mask->is_empty && !mask->can_end));
}
/* The mask for the next token in a slot; index: number of tokens in the answer so far. Only if
 * index is 0 or the mask is ready. */
struct constraint_mask constraint_get(const struct constraints *c, int slot, const struct grammar *grammar,
                                      int index);

/* A mask that allows every token, but no end: before the grammar applies. */
struct constraint_mask constraint_any(const struct constraints *c);
/* The mask for the first token in a slot, which may also be this token. */
struct constraint_mask constraint_first_or(struct constraints *c, int slot, const struct grammar *grammar,
                                           int32_t token);

/* Computes the next slice; the mask thread calls it in a loop. False: no mask is requested. */
bool constraint_compute_slice(struct constraints *c);

/* Turns status into the error that the client gets. */
void constraint_explain(enum tutti_status status, struct tutti_error *err);

#endif
