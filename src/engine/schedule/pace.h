/* Chunked prefill: how many prompt tokens a step may prefill while other sequences decode.
 *
 * The limit keeps inter-token latency within max_slowdown and is learned from the steps themselves.
 * The duration of a step that only decodes is measured again every few steps, by leaving prefill
 * out of one: nothing else shows how long decoding by itself would take. The cost of a prefill row is
 * learned in two parts, because a row far into a long prompt attends to all of it. Where a step
 * with few rows is bound by memory bandwidth, the first rows of prefill cost nothing, so a step
 * grows until it takes as long as it may. Agrawal et al., 2024 (Sarathi-Serve). Outputs do not
 * depend on the chunks: a row has the same bits in any step. */
#ifndef TUTTI_PACE_H
#define TUTTI_PACE_H

#include <stdint.h>

struct pace {
    /* A step with prefill may take this many times as long as one without, above 1; 0: no limit. */
    double max_slowdown;
    double decode_us;  /* duration of a step that only decodes; 0 here and below: not known yet */
    double prefill_us; /* added by a prefill row at position 0 */
    double far_us;     /* added for each PACE_FAR positions before the row */
    double row_us;     /* mean cost of any row of a step with prefill */
    int decode_rows;   /* rows of the last step that only decoded */
    int n_prefills;    /* steps with prefill since then */
};

enum { PACE_FAR = 4096 };

/* Records the duration of a step with n_decoding and n_prefill (prefill) rows. distance: sum of the
 * prefill rows' positions. */
void pace_note(struct pace *p, int n_decoding, int n_prefill, double distance, uint64_t us);

/* Microseconds that a step with n_decoding >= 1 decoding rows may spend on prefill; INFINITY: no
 * limit. 0: no prefill in this step, which measures decode_us. */
double pace_budget(const struct pace *p, int n_decoding);

/* Prefill rows at the start of a prompt that fit into a usual step with n_decoding decoding rows,
 * at least 1; INT32_MAX: no limit. */
int pace_usual_rows(const struct pace *p, int n_decoding);

/* Prefill rows from position pos on that budget_us > 0 pays for, at least 1. pace_spend(): the
 * budget left after n of them. */
int pace_rows(const struct pace *p, double budget_us, int pos);
double pace_spend(const struct pace *p, double budget_us, int n, int pos);

#endif
