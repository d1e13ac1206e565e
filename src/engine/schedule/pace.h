/* How much of a prompt a step may read while others decode: what keeps their tokens coming.
 *
 * Learned from the steps themselves. How long one takes that only decodes is measured again every few steps, by leaving the
 * prompts out of one: nothing else tells how long the others would wait if nobody read. What a row of a prompt costs is learned in two
 * parts, since a row far into a long prompt looks back on all of it. Where few rows wait for the weights to come from memory,
 * the first ones cost nothing, and a step grows until it takes as long as it may.
 * Chunked prefill: Agrawal et al., 2024 (Sarathi-Serve). Outputs do not depend on it: a row has the same bits in any step. */
#ifndef TUTTI_PACE_H
#define TUTTI_PACE_H

#include <stdint.h>

struct pace {
    /* A step that reads may take so many times one that does not, above 1; 0: no limit. */
    double max_slowdown;
    double decode_us; /* of a step that only decodes; 0: not known yet, as for the others */
    double read_us;   /* that a row of a prompt adds to it, but for */
    double far_us;    /* what PACE_FAR tokens before the row add */
    double row_us;    /* of any row of a step that reads, in the mean */
    int decode_rows;  /* of the last step that only decoded */
    int n_reads;      /* steps since then */
};

enum { PACE_FAR = 4096 };

/* A step of n_decoding and n_reading rows took so long. distance: sum of the reading rows' positions. */
void pace_note(struct pace *p, int n_decoding, int n_reading, double distance, uint64_t us);

/* Microseconds that a step with n_decoding >= 1 decoding rows may spend on prompts; INFINITY: any. 0: none is to be read in this
 * one step. */
double pace_budget(const struct pace *p, int n_decoding);

/* Rows at the begin of prompts that a usual step reads beside so many decoding ones, at least 1; INT32_MAX: any. */
int pace_usual_rows(const struct pace *p, int n_decoding);

/* Rows of a prompt from position pos on that a budget above 0 pays, at least 1; and what is left of it after n of them. */
int pace_rows(const struct pace *p, double budget_us, int pos);
double pace_spend(const struct pace *p, double budget_us, int n, int pos);

#endif
