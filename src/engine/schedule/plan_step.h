/* Which rows of which sequences the next step computes, the pages they are written to, and which of them have results. */
#ifndef TUTTI_PLAN_STEP_H
#define TUTTI_PLAN_STEP_H

#include "engine/schedule/scheduler.h"

/* Fills step, entries and copies from the sequences that run, by the rules of scheduler.h; may preempt some of them for pages. step.n_rows
 * is 0 where there is nothing to do. */
void plan_step(struct scheduler *s);

#endif
