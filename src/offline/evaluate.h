/* Evaluates a model on a long text in windows: gives the logits of each next token, for
 * perplexity.
 *
 * Window w holds ids[w * step .. w * step + n_context - 1]. Its first ids may be replaced by a
 * head, such as the prefix that the model expects before any text. The rows from first on are
 * scored: row p against the next id in the window. So every scored row has at least first ids of
 * context. */
#ifndef TUTTI_OFFLINE_EVALUATE_H
#define TUTTI_OFFLINE_EVALUATE_H

#include "model/model.h"

struct windows {
    const int32_t *ids; /* [(n - 1) * step + n_context] */
    int n, n_context, step, first;
    const int32_t *head; /* [n_head], n_head <= first + 1 */
    int n_head;
};

/* Rows scored in each window: n_context - 1 - first. */
int windows_n_scored(const struct windows *windows);

/* Windows that windows_run() batches in one step: 1, or more if they are short. */
int windows_n_together(const struct windows *windows);

/* The id that a scored row is compared with. row: 0 .. windows_n_scored() - 1. */
int32_t windows_target(const struct windows *windows, int window, int row);

/* Receives n_rows scored rows of one window, in order, from row on. logits: [n_rows][n_vocab],
 * valid during the call. */
typedef enum tutti_status windows_fn(void *user, int window, int row, int n_rows, const float *logits,
                                     struct tutti_error *err);

/* Calls fn for every scored row, windows in order, from the calling thread. No engine may be open
 * on the model. TUTTI_E_ARGUMENT: the windows are not as described, contain an id outside the
 * vocabulary, or are longer than the model's table of positions. If fn fails, its status. */
MUST_CHECK enum tutti_status windows_run(struct model *model, const struct windows *windows, windows_fn *fn,
                                         void *user, struct tutti_error *err);

#endif
