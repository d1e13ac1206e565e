/* Plans the next step: its rows, the pages they are written to, and which rows have outputs. */
#ifndef TUTTI_PLAN_STEP_H
#define TUTTI_PLAN_STEP_H

#include "engine/schedule/scheduler.h"

/* Fills step, entries and copies from the running sequences, by the rules of scheduler.h. May
 * preempt sequences to free pages. step.n_rows is 0 if there is nothing to do. */
void plan_step(struct scheduler *s);

#endif
