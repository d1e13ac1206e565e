/* Results of a prompt's rows other than the answer: log-probabilities of its tokens, or an
 * embedding.
 *
 * Hidden states are summed in float64 in the order of their positions, so the bits of an embedding
 * do not depend on the chunks of the prefill. */
#ifndef TUTTI_PROMPT_RESULTS_H
#define TUTTI_PROMPT_RESULTS_H

#include "backend/sample.h"

struct prompt_results {
    struct sample *scores; /* [n_scores]: of each token of the prompt; the first has none */
    int n_scores;
    float *embedding; /* [n_embedding] */
    double *sum;      /* [n_embedding] */
    int n_embedding;
};

/* Creates zeroed results. Either number may be 0. TUTTI_E_MEMORY. */
MUST_CHECK enum tutti_status prompt_results_new(struct prompt_results **out, int n_scores, int n_embedding,
                                                struct tutti_error *err);
size_t prompt_results_bytes(int n_scores);                /* that log-probabilities take */
void prompt_results_free(struct prompt_results *results); /* NULL is allowed */

/* Adds the hidden states of the next n_rows rows. rows: [n_rows][n_embedding]. */
void prompt_results_add(struct prompt_results *results, const float *rows, int n_rows);

/* Sets embedding to the mean of the n_rows rows that were added. False: it is not finite. */
MUST_CHECK bool prompt_results_finish(struct prompt_results *results, int n_rows);

#endif
