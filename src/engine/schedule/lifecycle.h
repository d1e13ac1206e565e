/* The life of a sequence: a state machine. Every change of a sequence's state and of its tokens is
 * made here; plan.c adds draft tokens, and pages for planned rows.
 *
 *   from                cause                                     by                        to
 *   ------------------  ----------------------------------------  ------------------------  -----------
 *   FREE                its request starts, its pages are taken   lifecycle_start()         running (1)
 *   FREE                a sibling starts                          lifecycle_start()         RESERVED
 *   FREE                another choice of a computed prompt       scheduler_fork()          COMPUTED
 *   RESERVED, COMPUTED  it continues a sibling's tokens           scheduler_copy()          COMPUTED
 *   PREEMPTED           its pages are taken again                 lifecycle_run()           running (1)
 *   RESTORING           its pages are there, or it stops waiting  lifecycle_restored()      (2)
 *   PREFILL             others have computed its next pages       lifecycle_adopt()         (2)
 *   PREFILL, DECODE     a step computed its rows                  scheduler_advance()       (2)
 *   PREFILL, DECODE     the same, but its token mask is late      scheduler_advance()       MASK_WAIT
 *   MASK_WAIT           its token mask is ready                   scheduler_wake()          DECODE
 *   COMPUTED            tokens were drawn                         scheduler_commit()        (2)
 *   COMPUTED            a token is being drawn                    scheduler_assume()        DECODE
 *   DECODE              only the host can draw that token         scheduler_redraw()        PREEMPTED
 *   DECODE              its keys and values are dropped           scheduler_recompute()     PREFILL
 *   running             pages are needed for sequences before it  lifecycle_preempt_last()  PREEMPTED
 *   all but FREE        its answer ends                           scheduler_finish()        FREE
 *
 * Running are RESTORING, PREFILL, DECODE, MASK_WAIT and COMPUTED. (1): RESTORING if spilled pages are
 * restored, else (2). (2): by the number of tokens to compute: PREFILL for two or more, DECODE for one,
 * COMPUTED for none. Any other transition is an error and ends the program.
 *
 * Siblings are sequences that take their slots together, are preempted together and finish
 * together: the beams of a search. A beam that is COMPUTED waits until all of them are; then the
 * search copies and commits. Full recomputation commits as usual, then recomputes.
 *
 * Engine thread only. Nothing here allocates. */
#ifndef TUTTI_LIFECYCLE_H
#define TUTTI_LIFECYCLE_H

#include "engine/schedule/scheduler.h"

/* ---- for the engine's step ---- */

/* After the step: its rows, except draft tokens, count as computed, and full pages enter the prefix
 * cache. The last row of an entry with is_late does not count. */
void scheduler_advance(struct scheduler *s);

/* seq, which has an entry in the step, has just computed its prompt: starts another choice of its
 * request, which shares all its pages. NULL: every choice has started, no slot is free for it (then the
 * request returns to the queue), or seq is past its prompt. Call until it returns NULL. */
struct sequence *scheduler_fork(struct scheduler *s, const struct sequence *seq);

/* Replaces the tokens of to by those of from, its sibling, and shares the pages of from. */
void scheduler_copy(struct scheduler *s, struct sequence *to, const struct sequence *from);

/* Appends the n tokens drawn for seq, which is COMPUTED, or has one assumed token, which it replaces. Those at the beginning that equal its draft
 * tokens are accepted: the step computed them already. The other draft tokens are dropped, with
 * their pages. */
void scheduler_commit(struct scheduler *s, struct sequence *seq, const int32_t *tokens, int n);

/* A token of seq, which is COMPUTED, is being drawn, as the result of input source of the sampling: it counts from now
 * on, and scheduler_commit() follows with the token, or with none, if it was the end. Until then seq may be planned, and
 * preempted. */
void scheduler_assume(struct scheduler *s, struct sequence *seq, int source);

/* The device could not draw the assumed token: seq is preempted. Its last token is computed again, in a step that is
 * waited for. */
void scheduler_redraw(struct scheduler *s, struct sequence *seq);

/* Drops all keys and values of seq: its tokens are computed again. */
void scheduler_recompute(struct scheduler *s, struct sequence *seq);

/* The token mask of seq is ready. */
void scheduler_wake(struct scheduler *s, struct sequence *seq);

/* Ends a sequence and its siblings: drops pages, frees slots. */
void scheduler_finish(struct scheduler *s, struct sequence *seq);

/* ---- for planning ---- */

/* Whether the request may take slots: the last sixteenth of them is for owners who have no more than eight sequences for each slot
 * that stays free, so that one who takes all others does not make the rest wait. Requests without an owner (0) may take all. */
bool lifecycle_may_start(const struct scheduler *s, const struct request *r);
/* Whether the slots that it takes at once are free, and beams leave enough of them by the same rule. */
bool lifecycle_has_slots(const struct scheduler *s, const struct request *r);
/* Whether a request comes before a preempted sequence: of another owner, who has more sequences, or worse priority. */
bool lifecycle_is_before(const struct request *r, const struct sequence *seq);
/* Preempted sequences gain priorities with time, as requests in the queue do, and keep them: an endless stream of better priority
 * delays them, but does not stop them. */
void lifecycle_age_preempted(struct scheduler *s);
/* Starts a request: gives it its slots, and pages for its prompt. NULL: not now. */
struct sequence *lifecycle_start(struct scheduler *s, struct request *r);
/* Takes the pages of a sequence that starts or was preempted, and runs it. False: not now. */
bool lifecycle_run(struct scheduler *s, struct sequence *seq);
/* Takes over pages that other sequences have filled since seq started. Of many requests that arrive
 * together with the same long prefix, only one prefills it. */
void lifecycle_adopt(struct scheduler *s, struct sequence *seq);
/* Drops seq's draft tokens, with their pages and rows. */
void lifecycle_drop_drafts(struct scheduler *s, struct sequence *seq);
/* Preempts the last running sequence by order, with its siblings. */
void lifecycle_preempt_last(struct scheduler *s);

/* ---- for the spiller: seq is RESTORING ---- */

/* The content of the sequence's next full page was restored, so it is not computed. */
void lifecycle_restored_page(struct scheduler *s, struct sequence *seq);
/* The sequence waits for no further page. */
void lifecycle_restored(struct scheduler *s, struct sequence *seq);

#endif
