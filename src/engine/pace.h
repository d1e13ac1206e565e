/* How much of a prompt a step may read while others decode: what keeps their tokens coming.
 *
 * Learned from the steps themselves: how long one takes that only decodes, and what a row costs in one that reads. Where
 * few rows wait for the weights to come from memory, more of them cost nothing, and the cost of a row falls with their
 * number: a step grows until it takes as long as it may. Chunked prefill: Agrawal et al., 2024 (Sarathi-Serve). Outputs
 * do not depend on it: a row has the same bits in any step. */
#ifndef TUTTI_PACE_H
#define TUTTI_PACE_H

#include <stdint.h>

struct pace {
    double
        max_slowdown; /* a step that reads may take so many times one that does not, above 1; 0: no limit */
    double decode_us, row_us; /* 0: not known yet */
};

/* A step of n_decoding and n_reading rows took so long. */
void pace_note(struct pace *p, int n_decoding, int n_reading, uint64_t us);

/* Rows of prompts that a step with n_decoding >= 1 decoding rows may hold; at least 1. INT32_MAX: any number. */
int pace_reading_rows(const struct pace *p, int n_decoding);

#endif
