/* Merges adapters into the weights during conversion: W + scale * B . A, and what else an adapter changes
 * of a model's weights. */
#ifndef TUTTI_OFFLINE_MERGE_H
#define TUTTI_OFFLINE_MERGE_H

#include "model/adapters/adapter.h"

struct merge_source {
    const char *path; /* an adapter's folder */
    double scale;     /* multiplies the adapter's own scale; usually 1 */
};

/* The updates of all sources. Zero-initialised: none. */
struct merge {
    struct adapter_update *updates; /* [n], by layer and slot */
    int n;
    struct adapter_file rest; /* what a single source has besides updates */
};

/* TUTTI_E_UNSUPPORTED: what the converted file cannot hold (a tied output that differs from the
 * embedding, biases that the model lacks, virtual tokens), or several sources of which one is more than
 * low-rank updates. */
MUST_CHECK enum tutti_status merge_open(struct merge *out, const struct merge_source *sources, int n_sources,
                                        const struct model_desc *desc, const struct family *family,
                                        bool is_gguf, struct tutti_error *err);
void merge_clear(struct merge *merge);

/* Some rows of one weight of the forward pass, or elements of its bias, and their changes. */
struct merge_rows {
    const struct merge *merge; /* NULL: they do not change */
    enum weight_slot slot;
    bool is_bias;
    int first_row;
    /* Those of this weight: */
    const struct adapter_update *updates;
    const struct adapter_bias *biases;
    const struct adapter_module *modules;
    int n, n_biases, n_modules;
};

struct merge_rows merge_find(const struct merge *merge, enum weight_slot slot, int layer, int first_row,
                             bool is_bias);

/* Changes row number row of these rows. x: [n_columns]; of a vector that is one row all its elements. */
void merge_change(const struct merge_rows *rows, int64_t row, float *x, int64_t n_columns);

#endif
