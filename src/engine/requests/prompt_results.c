#include "engine/requests/prompt_results.h"

#include <math.h>
#include <stdlib.h>

enum tutti_status prompt_results_new(struct prompt_results **out, int n_scores, int n_embedding,
                                     struct tutti_error *err)
{
    struct prompt_results *results = calloc(1, sizeof *results);
    if (results) {
        results->n_scores = n_scores;
        results->n_embedding = n_embedding;
        results->scores = calloc((size_t)n_scores + 1, sizeof *results->scores);
        results->embedding = calloc((size_t)n_embedding + 1, sizeof *results->embedding);
        results->sum = calloc((size_t)n_embedding + 1, sizeof *results->sum);
    }
    if (!results || !results->scores || !results->embedding || !results->sum) {
        prompt_results_free(results);
        return error_set(err, TUTTI_E_MEMORY, "results of a prompt of %d tokens: out of memory", n_scores);
    }
    *out = results;
    return TUTTI_OK;
}

size_t prompt_results_bytes(int n_scores)
{
    return ((size_t)n_scores + 1) * sizeof(struct sample);
}

void prompt_results_free(struct prompt_results *results)
{
    if (!results)
        return;
    free(results->scores);
    free(results->embedding);
    free(results->sum);
    free(results);
}

void prompt_results_add(struct prompt_results *results, const float *rows, int n_rows)
{
    int n = results->n_embedding;
    for (int r = 0; r < n_rows; r++, rows += n)
        for (int i = 0; i < n; i++)
            results->sum[i] += (double)rows[i];
}

bool prompt_results_finish(struct prompt_results *results, int n_rows)
{
    bool is_finite = true;
    for (int i = 0; i < results->n_embedding; i++) {
        results->embedding[i] = (float)(results->sum[i] / n_rows);
        is_finite = is_finite && isfinite(results->embedding[i]);
    }
    return is_finite;
}
