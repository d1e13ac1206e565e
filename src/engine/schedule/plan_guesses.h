/* Which of the decoding sequences are guessed for in the step that is planned, from what, and how far. */
#ifndef TUTTI_PLAN_GUESSES_H
#define TUTTI_PLAN_GUESSES_H

#include "engine/schedule/scheduler.h"

/* The step has n_seqs rows of sequences that decode, and room for n_rows of guesses. Lets the draft model guess; puts the guessed
 * tokens behind the ids of their sequences, and sets n_guesses, n_planned and is_drafted of those, n_guess_rows, may_guess,
 * draft_us and plan_us. */
void plan_guesses(struct scheduler *s, int n_seqs, int n_rows);

#endif
