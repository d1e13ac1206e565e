/* Chooses the draft tokens of the step being planned: for which sequences, from which source, and
 * how many. */
#ifndef TUTTI_PLAN_GUESSES_H
#define TUTTI_PLAN_GUESSES_H

#include "engine/schedule/scheduler.h"

/* The step has n_seqs decoding rows and room for n_rows draft tokens. Runs the draft model; writes
 * draft tokens after the ids of their sequences. Sets n_guesses, n_planned and is_drafted of those
 * sequences, and n_guess_rows, may_guess, draft_us and plan_us of s. */
void plan_guesses(struct scheduler *s, int n_seqs, int n_rows);

#endif
